"""Run waiting jobs that do nothing, as coroutines, in one worker process.

The clock runs from the start of the worker to the last settled job: joining, claiming and leaving
are in it. A queue without coroutines runs them as it does, in one thread.
"""

from __future__ import annotations

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario

JOBS = 20_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second."""
    count = scale.jobs(JOBS)
    contender.enqueue_many(count)
    return {"rate": count / contender.drain(count)}


SCENARIO = Scenario(
    about="drain idle async tasks",
    figures=(Figure("rate", "jobs/s", Goal(times=6.0)),),
    run=measure,
)
