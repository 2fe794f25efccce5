"""Enqueue one job after the other from one thread; each call returns when its job is stored."""

from __future__ import annotations

from benchmarks.contenders import PYTHON_PEERS
from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.stopwatch import seconds

JOBS = 4_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second; the first one, which opens the store, is not counted."""
    count = scale.jobs(JOBS)
    contender.enqueue(0)

    def enqueue() -> None:
        for number in range(count):
            contender.enqueue(number)

    return {"rate": count / seconds(enqueue)}


SCENARIO = Scenario(
    about="enqueue, one call after the other",
    figures=(
        Figure(
            "rate",
            "jobs/s",
            (
                Goal(times=1.5, engine="sqlite"),
                Goal(times=1.0, engine="postgres", than=PYTHON_PEERS),
            ),
        ),
    ),
    run=measure,
)
