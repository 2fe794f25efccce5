"""Drain a part of a line of a million jobs, and a line of ten thousand.

Both lines are there at once, in two stores, and are drained in turns; what counts is how the two
speeds compare, so each machine is its own measure.
"""

from __future__ import annotations

import statistics

from benchmarks.contenders.contender import Contender
from benchmarks.drained import Meter
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario

SHORT = 10_000
LONG = 1_000_000
TURNS = 5


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second with either line, and the share that the long one leaves."""
    count = scale.jobs(SHORT)
    long = Meter(contender.place / "long.db")
    long.fill(scale.jobs(LONG))
    rates: dict[str, list[float]] = {"short": [], "long": []}
    for turn in range(TURNS):
        short = Meter(contender.place / f"short-{turn}.db")
        short.fill(count)
        rates["short"].append(short.rate(count))
        short.close()
        rates["long"].append(long.rate(count))
    long.close()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return {**medians, "share": medians["long"] / medians["short"], "turns": rates}


SCENARIO = Scenario(
    about="drain at a backlog of 1,000,000 against 10,000",
    figures=(
        Figure("short", "jobs/s"),
        Figure("long", "jobs/s"),
        Figure("share", "of 1", Goal(least=0.8)),
    ),
    run=measure,
    contenders=("penstock",),
    rounds=1,
)
