"""Slots that are kept for urgent jobs: what is less urgent never has them all.

With ``{0: 2}`` (``--reserve high=2``) of eight slots, jobs less urgent than high have at most six
at a time, so two are free for high ones, or have high ones in them. Of several levels each keeps
its own. Of every kind of slots at least one stays for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

ANY: Final = inf
"""A priority that is less urgent than all."""


class Reserve:
    """The reserve of ``size`` slots; counts what runs in them."""

    __slots__ = ("_less_urgent", "_levels")

    def __init__(self, size: int, kept: Mapping[int, int]) -> None:
        self._levels = levels(size, kept)
        self._less_urgent = [0] * len(self._levels)

    def admits(self, priority: int) -> bool:
        """One more job of this priority may start, if a slot is free."""
        for (level, most), count in zip(self._levels, self._less_urgent, strict=True):
            if priority > level and count >= most:
                return False
        return True

    def count(self, priority: int, change: int) -> None:
        """A job has started (1) or ended (-1)."""
        for index, (level, _) in enumerate(self._levels):
            if priority > level:
                self._less_urgent[index] += change


def levels(size: int, kept: Mapping[int, int]) -> list[tuple[int, int]]:
    """For each level, the most urgent first: how many slots all jobs less urgent may have."""
    found, left = [], size
    for level in sorted(kept):
        left = max(1, left - kept[level])
        found.append((level, left))
    return found


def free_for(priority: float, size: int, kept: Mapping[int, int], priorities: Iterable[int]) -> int:
    """How many more jobs of this priority could start beside those of ``priorities``; less than 0:
    so many of these cannot start either.
    """
    there = list(priorities)
    free: float = size - len(there)
    for level, most in levels(size, kept):
        if priority > level:
            free = min(free, most - sum(each > level for each in there))
    return int(free)
