"""Drain jobs from twenty queues with one worker, and from one.

All twenty have jobs, or one or three of them: a worker looks into each of its queues, but the empty
ones must not cost it its speed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.contenders.contender import Contender
from benchmarks.drains import Drains
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.turns import in_turns

QUEUES = tuple(f"queue-{number}" for number in range(20))


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second from one queue, and the share of it from twenty."""
    drains = Drains(contender, scale)

    def rate(queues: tuple[str, ...], filled: tuple[str, ...], name: str) -> float:
        def enqueue(idle: Any) -> None:
            for index, queue in enumerate(filled):
                idle.using(queue=queue).enqueue_many(drains.items[index :: len(filled)])

        return drains.rate(name, enqueue, worker={"queues": queues})

    return in_turns(
        {
            "plain": partial(rate, QUEUES[:1], QUEUES[:1]),
            "all": partial(rate, QUEUES, QUEUES),
            "one": partial(rate, QUEUES, QUEUES[7:8]),
            "three": partial(rate, QUEUES, QUEUES[7:10]),
        },
        scale,
    )


GOALS = (Goal(least=0.7, engine="postgres"),)

SCENARIO = Scenario(
    about="drain 20 queues, all or some with jobs, as a share of one",
    figures=(
        Figure("plain", "jobs/s"),
        Figure("all", "of plain", GOALS),
        Figure("one", "of plain", GOALS),
        Figure("three", "of plain", GOALS),
    ),
    run=measure,
    engines=("memory", "sqlite", "postgres"),
    contenders=("penstock",),
)
