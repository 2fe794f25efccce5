"""From the call of enqueue to the start of the job, in another process that is half busy.

Jobs that do nothing come in evenly, at half the rate at which they were drained just before; now
and then there is one among them that tells when it started.
"""

from __future__ import annotations

import threading
import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.stopwatch import percentile
from benchmarks.worker_process import running_worker

DRAINED = 30_000
SECONDS = 15.0
PAUSE = 0.01
"""Seconds between two batches of jobs."""
EACH = 3
"""So many batches, one job that tells."""


def measure(contender: Contender, scale: Scale) -> Figures:
    """Milliseconds: half of all jobs, and 99 of 100, start within this time."""
    count = scale.jobs(int(DRAINED * contender.pace))
    contender.enqueue_many(count)
    contender.location.settle(contender.name)
    rate = count / contender.drain(count) / 2
    with running_worker(contender) as other:
        called: list[float] = []
        started: list[float] = []

        def hear(expected: int) -> None:
            started.extend(other.started_at() for _ in range(expected))

        batches = int(scale.seconds(SECONDS) / PAUSE)
        batch = max(1, round(rate * PAUSE))
        listener = threading.Thread(target=hear, args=[-(-batches // EACH)])
        listener.start()
        begun_at = time.perf_counter()
        for number in range(batches):
            contender.enqueue_many(batch)
            if number % EACH == 0:
                called.append(time.time())
                contender.enqueue_stamp()
            time.sleep(max(0.0, begun_at + (number + 1) * PAUSE - time.perf_counter()))
        load = batches * batch / (time.perf_counter() - begun_at)
        listener.join()
    # Sorted, the nth to start is compared with the nth called: who overtook whom does not matter.
    waits = [(at - then) * 1000 for at, then in zip(sorted(started), called, strict=True)]
    late = {"p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99)}
    return {**late, "load": load, "share": load / rate, "all": waits}


SCENARIO = Scenario(
    about="start latency at half the drain rate",
    figures=(
        Figure("p50", "ms", less_is_better=True),
        Figure("p99", "ms", (Goal(most=50.0),), less_is_better=True),
        Figure("load", "jobs/s"),
    ),
    run=measure,
    engines=("postgres",),
    contenders=("penstock", "pgqueuer", "graphile"),
)
