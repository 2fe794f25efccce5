"""Ids of jobs: made by whoever enqueues, so that a repeated call is the same call."""

from __future__ import annotations

import os
import random


class _Chance:
    """Random numbers of this process alone.

    Asking the system for each id would let other threads in between, and wait for all of them. A
    forked process begins with numbers of its own, however it was forked.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._random = random.Random()
        self._pid = os.getpid()

    def number(self) -> int:
        """64 bits."""
        if self._pid != os.getpid():
            self._begin()
        return self._random.getrandbits(64)


_chance = _Chance()


def new_id(at: float = 0.0) -> str:
    """Return an id nobody else has: ten digits that grow with the time, sixteen at random.

    That it grows, where ``at`` is given, is only for the store's index, where ids of one hour are
    neighbours then: nothing may read an order from it.
    """
    return f"{int(at * 100) & 0xFFFFFFFFFF:010x}{_chance.number():016x}"


def made_at(id: str) -> float:
    """When an id may have been made, at the earliest: 0, unless it looks like one of ours."""
    if len(id) != 26:
        return 0.0
    try:
        int(id, 16)
    except ValueError:
        return 0.0
    return int(id[:10], 16) / 100
