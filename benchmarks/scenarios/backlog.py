"""Drain a part of a line of a million jobs, and a line of ten thousand.

What counts is how the two speeds compare; see ``shares``.
"""

from __future__ import annotations

from benchmarks.contenders.contender import Contender
from benchmarks.drain_rate import SHARE, DrainMeter, shares
from benchmarks.scenario import Figures, Scale, Scenario

SHORT = 10_000
LONG = 1_000_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second with either line, and the share that the long one leaves."""
    long = DrainMeter(contender.location, "long")
    long.fill(scale.jobs(LONG))
    return shares(contender.location, long, scale.jobs(SHORT), scale)


SCENARIO = Scenario(
    about="drain at a backlog of 1,000,000 against 10,000",
    figures=SHARE,
    run=measure,
    contenders=("penstock",),
    rounds=1,
)
