"""The same work done in several ways, in turns: how fast the first is, and what the others keep.

A machine is quicker one minute than the next, so each way is measured once per turn; then the
medians are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from benchmarks.scenario import Figures, Scale

TURNS = 3

Way = Callable[[str], float]
"""Does the work once, in a store of the name that it is given; returns jobs per second."""


def in_turns(ways: Mapping[str, Way], scale: Scale) -> Figures:
    """The rate of the first way, and the share of it that each of the others reaches."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(scale.jobs(TURNS, least=2)):
        for name, rate in ways.items():
            rates[name].append(rate(f"{name}_{turn}"))
    first, *others = rates
    medians = {name: statistics.median(found) for name, found in rates.items()}
    shares = {name: medians[name] / medians[first] for name in others}
    return {first: medians[first], **shares, "turns": rates}
