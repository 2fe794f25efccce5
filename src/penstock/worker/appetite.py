"""How many jobs to ask for: the free slots, and what will have been eaten before the next meal.

Prefetching is measured, not configured: what the slots finish during one round trip to the store is
asked for on top. Long jobs finish less than one in that time, so they are never prefetched.

A worker with both kinds of tasks cannot know which kind it will get: it asks for as many as the
scarcer kind can take at the recent mix. When only one kind has free slots, the tasks of the other
are passed over now and then, so that jobs waiting for a thread do not keep idle coroutine slots
from theirs. Not each time: to find what is behind a long line, the store may have to read it. So
when such a claim was answered in full, and all of it is done before the next one may be made, the
next one brings more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Final, Literal

Kind = Literal["async", "sync"]
KINDS: Final[tuple[Kind, ...]] = ("async", "sync")

MEMORY: Final = 0.1
"""Seconds over which the rate of finished attempts is averaged."""

AHEAD: Final = 2.0
"""How many round trips are prefetched for; the second covers what is being run on arrival."""

RARE: Final = 0.02
"""No kind is thought to be rarer than this."""


@dataclass(frozen=True, slots=True)
class Room:
    """One kind's slots, and the attempts that wait or run in them."""

    size: int
    load: int

    @property
    def free(self) -> int:
        """Attempts that would start at once."""
        return max(0, self.size - self.load)


@dataclass(frozen=True, slots=True)
class Meal:
    """What to ask for."""

    want: int = 0
    slots: int = 0
    passes_over: Kind | None = None
    """The kind whose tasks are left to others this time."""


class Appetite:
    """Learns from each exchange, decides about the next."""

    def __init__(self, most_prefetched: int) -> None:
        self._most = most_prefetched
        self._finished: dict[Kind, int] = {"async": 0, "sync": 0}
        self._rate: dict[Kind, float] = {"async": 0.0, "sync": 0.0}
        self._share: dict[Kind, float] = {"async": 0.5, "sync": 0.5}
        self._stock: dict[Kind, int] = {"async": 0, "sync": 0}
        """What a claim that passes over the other kind brings beyond the free slots."""
        self._is_plenty: dict[Kind, bool] = {"async": False, "sync": False}
        """The last such claim was answered in full."""
        self._round_trip = 0.0
        self._counted_at: float | None = None

    def finished(self, kind: Kind) -> None:
        """An attempt has ended."""
        self._finished[kind] += 1

    def exchanged(self, now: float, round_trip: float, claimed: Mapping[Kind, int]) -> None:
        """An exchange that took so long has given so many of each kind."""
        self._round_trip += 0.2 * (round_trip - self._round_trip)
        if self._counted_at is not None and now > self._counted_at:
            passed = now - self._counted_at
            weight = 1 - exp(-passed / MEMORY)
            for kind, rate in self._rate.items():
                self._rate[kind] += weight * (self._finished[kind] / passed - rate)
                self._finished[kind] = 0
        self._counted_at = now
        if total := sum(claimed.values()):
            weight = total / (total + 10)
            for kind, share in self._share.items():
                self._share[kind] += weight * (claimed.get(kind, 0) / total - share)

    def passed_over(self, kind: Kind, *, was_idle: bool, in_full: bool) -> None:
        """A claim for this kind alone was answered; ``was_idle``: none of it ran before."""
        stock = self._stock[kind]
        if was_idle and self._is_plenty[kind]:
            self._stock[kind] = min(self._most, 2 * stock + 8)
        elif not was_idle:
            self._stock[kind] = stock // 2
        self._is_plenty[kind] = in_full

    def stalled(self) -> None:
        """Something waited too long in the worker's hands: no prefetch until jobs end again."""
        for kind in self._rate:
            self._rate[kind] = 0.0
            self._finished[kind] = 0
            self._stock[kind] = 0

    def prefetch(self, kind: Kind) -> int:
        """How many jobs of this kind will end while the next ones are fetched."""
        return min(self._most, int(self._rate[kind] * self._round_trip * AHEAD))

    def stock(self, kind: Kind) -> int:
        """How many jobs of this kind may wait in the worker's hands."""
        return max(self.prefetch(kind), self._stock[kind])

    def meal(self, rooms: Mapping[Kind, Room], *, may_pass_over: bool) -> Meal:
        """What to ask for, with this room for the kinds of tasks that there are."""
        room = {
            kind: max(0, room.size + self.prefetch(kind) - room.load)
            for kind, room in rooms.items()
        }
        free = {kind: rooms[kind].free for kind in rooms}
        if len(rooms) == 1:
            (kind,) = rooms
            return Meal(room[kind], free[kind])
        full = one_is_full(rooms)
        if full is not None and may_pass_over:
            other: Kind = "sync" if full == "async" else "async"
            want = max(0, rooms[other].size + self.stock(other) - rooms[other].load)
            return Meal(want, free[other], passes_over=full)
        most = min(room[kind] / max(RARE, self._share[kind]) for kind in rooms)
        want = min(int(most), sum(room.values()))
        slots = min(free.values())
        return Meal(max(want, slots), slots)


def one_is_full(rooms: Mapping[Kind, Room]) -> Kind | None:
    """The kind that has no free slot while the other one has; None: there is none."""
    full = [kind for kind, room in rooms.items() if not room.free]
    return full[0] if len(rooms) > 1 and len(full) == 1 else None
