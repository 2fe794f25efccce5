"""Ids of jobs: made by the process that enqueues, so that a repeated call is the same call."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Final, overload


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

    def ends(self) -> list[str]:
        """Twelve digits for each of many ids at once, in order, no two alike."""
        if self._pid != os.getpid():
            self._begin()
        digits = self._random.randbytes(6 * _AT_ONCE).hex()
        return sorted({digits[index : index + 12] for index in range(0, len(digits), 12)})


_AT_ONCE: Final = 256
_LENGTH: Final = 26
_chance = _Chance()


def new_id(at: float = 0.0) -> str:
    """Return a new id: ten digits that grow with the time, sixteen at random.

    That it grows, where ``at`` is given, is only for the store's index, where ids of one hour are
    neighbours then: nothing may read an order from it.
    """
    return f"{int(at * 100) & 0xFFFFFFFFFF:010x}{_chance.number():016x}"


def new_ids(at: float) -> Iterator[str]:
    """Return any number of ids as ``new_id`` makes them, millions of them in order.

    The store's index takes what comes in order for less. For that, four of the digits at random
    only begin so, and count hundreds of ids.
    """
    start = f"{int(at * 100) & 0xFFFFFFFFFF:010x}"
    for number in count(_chance.number() >> 49):
        middle = f"{start}{number & 0xFFFF:04x}"
        yield from [middle + end for end in _chance.ends()]


class Ids(Sequence[str]):
    """So many ids as ``new_ids`` makes them, each made when it or a later one is asked for: many
    are on their way to the store while others are made.
    """

    __slots__ = ("_count", "_made", "_more")

    def __init__(self, at: float, count: int) -> None:
        self._count = count
        self._made: list[str] = []
        self._more = new_ids(at)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        places = range(self._count)[index]
        if isinstance(places, int):
            self._make(places + 1)
            return self._made[places]
        self._make(max(places, default=-1) + 1)
        if places.step == 1:
            return self._made[places.start : places.stop]
        return [self._made[place] for place in places]

    def _make(self, most: int) -> None:
        self._made += islice(self._more, max(0, most - len(self._made)))

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])


def made_at(id: str) -> float:
    """When an id may have been made, at the earliest: 0, unless it looks like one of ours."""
    return all_made_at([id])


def all_made_at(ids: Sequence[str]) -> float:
    """When the first of some ids may have been made, at the earliest."""
    digits = "".join(ids)
    try:
        is_ours = len(bytes.fromhex(digits)) == _LENGTH // 2 * len(ids) and digits.islower()
    except ValueError:
        return 0.0
    # Without capitals, the order of the texts is that of the numbers.
    if not (is_ours or digits.isdigit()) or set(map(len, ids)) != {_LENGTH}:
        return 0.0
    return int(min(ids)[:10], 16) / 100
