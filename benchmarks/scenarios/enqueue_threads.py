"""Enqueue single jobs from eight threads at once; each call returns when its job is stored."""

from __future__ import annotations

import threading

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.stopwatch import seconds

JOBS = 4_000
CALLERS = 8


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second of all threads together."""
    share = scale.jobs(JOBS) // CALLERS
    contender.enqueue(0)

    def call() -> None:
        for number in range(share):
            contender.enqueue(number)

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]

    def run() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return {"rate": share * CALLERS / seconds(run)}


SCENARIO = Scenario(
    about="enqueue, 8 threads at once",
    figures=(Figure("rate", "jobs/s", (Goal(times=1.5, engine="sqlite"),)),),
    run=measure,
    contenders=("penstock", "huey"),
)
