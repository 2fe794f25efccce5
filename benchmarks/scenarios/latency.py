"""From the call of enqueue to the start of the job, in another process that was asleep."""

from __future__ import annotations

import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.stopwatch import percentile
from benchmarks.worker_process import rest, running_worker

JOBS = 200
NOT_ABOVE_PGQUEUER = Goal(times=1.0, engine="postgres", than=("pgqueuer",))


def measure(contender: Contender, scale: Scale) -> Figures:
    """Milliseconds: half of all jobs, and 99 of 100, start within this time."""
    waits = []
    with running_worker(contender) as other:
        for _ in range(scale.jobs(JOBS)):
            called_at = time.time()
            contender.enqueue_stamp()
            waits.append((other.started_at() - called_at) * 1000)
            rest()
    return {"p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99), "all": waits}


SCENARIO = Scenario(
    about="idle latency across processes",
    figures=(
        Figure(
            "p50",
            "ms",
            (Goal(most=5.0, engine="sqlite"), NOT_ABOVE_PGQUEUER),
            less_is_better=True,
        ),
        Figure(
            "p99",
            "ms",
            (Goal(most=20.0, engine="sqlite"), NOT_ABOVE_PGQUEUER),
            less_is_better=True,
        ),
    ),
    run=measure,
)
