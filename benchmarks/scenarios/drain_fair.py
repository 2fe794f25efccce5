"""Drain a fair queue whose jobs have 1, 100 or 10,000 keys, and one that is not fair.

Both are claimed in equal batches: a worker claims no more than its slots and 50 jobs at once. The
jobs of a key are not in a row. *cost* is how many times longer a job takes with 10,000 keys than
with one.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contenders.contender import Contender
from benchmarks.drains import Drains
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.turns import in_turns

KEYS = {"one": 1, "hundred": 100, "many": 10_000}
AHEAD = 50
"""Jobs that a worker claims beyond its slots where a fair queue is served."""


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second if the queue is not fair, and the share of it with each number of keys."""
    drains = Drains(contender, scale)

    def rate(keys: int, name: str) -> float:
        options = {"key": lambda number: f"tenant-{number % keys}"} if keys else {}
        return drains.rate(
            name,
            lambda idle: idle.using(**options).enqueue_many(drains.items),
            worker={"prefetch": AHEAD},
            queue={"fair": keys > 0},
        )

    found = in_turns(
        {"plain": partial(rate, 0), **{name: partial(rate, keys) for name, keys in KEYS.items()}},
        scale,
    )
    return {**found, "cost": found["one"] / found["many"]}


SCENARIO = Scenario(
    about="drain a fair queue of 1, 100 and 10,000 keys, as a share of plain",
    figures=(
        Figure("plain", "jobs/s"),
        Figure("one", "of plain"),
        Figure("hundred", "of plain", (Goal(least=0.45, engine="postgres"),)),
        Figure("many", "of plain"),
        Figure("cost", "times", (Goal(most=2.0),), less_is_better=True),
    ),
    run=measure,
    engines=("memory", "sqlite", "postgres"),
    contenders=("penstock",),
)
