"""Drain jobs beside a million that have finished, and beside none.

Measured as ``backlog``: two stores, in turns.
"""

from __future__ import annotations

from benchmarks.contenders.contender import Contender
from benchmarks.drain_rate import SHARE, DrainMeter, shares
from benchmarks.scenario import Figures, Scale, Scenario

JOBS = 10_000
HISTORY = 1_000_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second without and with a history, and the share that it leaves."""
    old = DrainMeter(contender.location, "old")
    old.fill_history(scale.jobs(HISTORY))
    return shares(contender.location, old, scale.jobs(JOBS), scale)


SCENARIO = Scenario(
    about="drain beside 1,000,000 finished jobs",
    figures=SHARE,
    run=measure,
    contenders=("penstock",),
    rounds=1,
)
