"""Drain a queue of which only so many jobs may run at once: twice as many as the worker has slots.

The limit holds nothing back; what is measured is what it costs to watch it.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contenders.contender import Contender
from benchmarks.drains import Drains
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.turns import in_turns

SLOTS = 100


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second without a limit, and the share of it with one."""
    drains = Drains(contender, scale)

    def rate(limit: int | None, name: str) -> float:
        return drains.rate(name, worker={"concurrency": SLOTS}, queue={"max_running": limit})

    return in_turns({"plain": partial(rate, None), "limited": partial(rate, 2 * SLOTS)}, scale)


SCENARIO = Scenario(
    about="drain with max_running at twice the slots, as a share of plain",
    figures=(
        Figure("plain", "jobs/s"),
        Figure("limited", "of plain", (Goal(least=0.6, engine="postgres"),)),
    ),
    run=measure,
    engines=("memory", "sqlite", "postgres"),
    contenders=("penstock",),
)
