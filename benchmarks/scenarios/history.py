"""Drain jobs beside a million that have finished, and beside none.

Measured as ``backlog``: two stores, in turns.
"""

from __future__ import annotations

import statistics

from benchmarks.contenders.contender import Contender
from benchmarks.drained import Meter
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario

JOBS = 10_000
HISTORY = 1_000_000
TURNS = 5


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second without and with a history, and the share that it leaves."""
    count = scale.jobs(JOBS)
    old = Meter(contender.place / "old.db")
    old.fill_history(scale.jobs(HISTORY))
    rates: dict[str, list[float]] = {"new": [], "old": []}
    for turn in range(TURNS):
        new = Meter(contender.place / f"new-{turn}.db")
        new.fill(count)
        rates["new"].append(new.rate(count))
        new.close()
        old.fill(count)
        rates["old"].append(old.rate(count))
    old.close()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return {**medians, "share": medians["old"] / medians["new"], "turns": rates}


SCENARIO = Scenario(
    about="drain beside 1,000,000 finished jobs",
    figures=(
        Figure("new", "jobs/s"),
        Figure("old", "jobs/s"),
        Figure("share", "of 1", Goal(least=0.8)),
    ),
    run=measure,
    contenders=("penstock",),
    rounds=1,
)
