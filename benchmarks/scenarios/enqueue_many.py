"""Enqueue many jobs with one call; one by one where a queue has no such call."""

from __future__ import annotations

from benchmarks.contenders import PYTHON_PEERS
from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.stopwatch import seconds

JOBS = 20_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second."""
    count = scale.jobs(JOBS)
    contender.enqueue(0)
    return {"rate": count / seconds(lambda: contender.enqueue_many(count))}


SCENARIO = Scenario(
    about="enqueue, many with one call",
    figures=(
        Figure(
            "rate",
            "jobs/s",
            (
                Goal(times=12.0, engine="sqlite"),
                Goal(times=1.5, engine="postgres", than=PYTHON_PEERS),
            ),
        ),
    ),
    run=measure,
)
