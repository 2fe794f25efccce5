"""Stride scheduling: which place in line a job gets, so that no key can crowd out another.

Each (queue, priority) has a virtual time, the greatest place claimed so far. A key's jobs stand one
stride apart, but never before the virtual time: a key that was idle starts level with the others,
it does not get its idle time back. A key's next place that is not after the virtual time says
nothing more and may be forgotten.
"""

from __future__ import annotations


def place(virtual_time: float, next_place: float | None) -> float:
    """Return where a key's next job stands."""
    return virtual_time if next_place is None else max(virtual_time, next_place)


def following(place: float, weight: float = 1.0) -> float:
    """Return the next place of a key whose last job stands at ``place``."""
    return place + 1.0 / weight
