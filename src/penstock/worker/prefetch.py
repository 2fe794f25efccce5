"""How many jobs a worker claims at once: its free slots plus what it will finish meanwhile.

Prefetching is measured, not configured: what the slots finish during one round trip to the store is
asked for on top. Long jobs finish less than one in that time, so they are never prefetched.

A worker with several kinds of tasks cannot know which kind it will get: it asks for as many as the
scarcest kind can take at the recent mix. When one kind has no free slots, its tasks are skipped now
and then, so that jobs waiting for a thread do not keep idle coroutine slots from theirs. Not
each time: to find what is behind a long line, the store may have to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf
from typing import Final

from penstock.clock import Clock
from penstock.core.spec import KINDS, Kind, Spec
from penstock.worker.inflight import Attempt, Inflight
from penstock.worker.pool import Pool, StartGate
from penstock.worker.reserve import ANY, free_for
from penstock.worker.settings import WorkerSettings

MEMORY: Final = 0.1
"""Seconds over which the rate of finished attempts is averaged."""

AHEAD: Final = 3.0
"""How many round trips are prefetched for; the second covers what is being run on arrival, the
third one that takes longer than most.
"""

SHORTEST: Final = 0.005
"""Seconds that a round trip counts at least: a loop and its threads need a while to wake up, and
what waits no longer than that delays no other worker.
"""

RARE: Final = 0.02
"""No kind is thought to be rarer than this."""


SKIP_EVERY: Final = (0.005, 0.25)
"""Shortest and longest pause, in seconds, between two claims that skip a kind of tasks."""

SKIP_SHARE: Final = 20
"""How many times its own duration such a claim pauses, at most the poll: it may have to read a
long line."""

MOMENT: Final = 0.02
"""Seconds for which all slots of a kind may be taken before others are looked for."""


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
class Demand:
    """What to ask for."""

    want: int = 0
    slots: int = 0
    skipped_kinds: frozenset[Kind] = frozenset()
    """The kinds whose tasks are left to other workers this time."""
    least_urgent: int | None = None
    """The greatest priority number that there is room for; None: for any."""


class Prefetch:
    """Learns from each exchange, decides about the next."""

    def __init__(self, most: int, most_keyed: int = 50) -> None:
        """``most`` is how many jobs of a kind are claimed ahead at most, ``most_keyed`` the same
        where keys take turns: a job of another key waits for all of them.
        """
        self._most = most
        self._most_keyed = most_keyed
        self.is_keyed = False
        """Keys take turns in a queue that the worker serves: what it claims ahead delays them."""
        self._finished: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._rate: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._share: dict[Kind, float] = dict.fromkeys(KINDS, 0.5)
        """How common each kind was of late; what counts is the proportion."""
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

    def stalled(self) -> None:
        """A claimed job waited too long: no prefetch until jobs end again."""
        for kind in self._rate:
            self._rate[kind] = 0.0
            self._finished[kind] = 0

    def ahead(self, kind: Kind) -> int:
        """How many jobs of this kind will end while the next ones are fetched."""
        ahead = max(SHORTEST, self._round_trip) * AHEAD
        most = min(self._most, self._most_keyed) if self.is_keyed else self._most
        return min(most, int(self._rate[kind] * ahead))

    def lasts(self, rooms: Mapping[Kind, Room]) -> float:
        """Seconds for which what waits keeps the slots busy beyond the next round trip, of every
        kind that has anything to do.
        """
        waiting = {kind: room.load - room.size for kind, room in rooms.items() if room.load}
        if not waiting or min(waiting.values()) <= 0:
            return 0.0
        shortest = min(waiting[kind] / max(1.0, self._rate[kind]) for kind in waiting)
        return shortest - max(SHORTEST, self._round_trip)

    def demand(self, rooms: Mapping[Kind, Room], *, may_skip: bool) -> Demand:
        """What to ask for, with this room for the kinds of tasks that there are."""
        full = full_kinds(rooms)
        if full and may_skip:
            left = {kind: room for kind, room in rooms.items() if kind not in full}
            return Demand(*self._mixed(left), skipped_kinds=full)
        return Demand(*self._mixed(rooms))

    def _mixed(self, rooms: Mapping[Kind, Room]) -> tuple[int, int]:
        """How many jobs fit in whatever kind they come, and how many of them would start."""
        room = {
            kind: max(0, each.size + self.ahead(kind) - each.load) for kind, each in rooms.items()
        }
        slots = min(each.free for each in rooms.values())
        if len(rooms) == 1:
            return sum(room.values()), slots
        shares = sum(self._share[kind] for kind in rooms) or 1.0
        most = min(room[kind] / max(RARE, self._share[kind] / shares) for kind in rooms)
        return max(min(int(most), sum(room.values())), slots), slots


def full_kinds(rooms: Mapping[Kind, Room]) -> frozenset[Kind]:
    """The kinds that have no free slot while another one has."""
    full = frozenset(kind for kind, room in rooms.items() if not room.free)
    return full if len(full) < len(rooms) else frozenset()


class DemandPlanner:
    """Decides what to ask the store for, from the room in the pools, one for each kind of tasks."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        settings: WorkerSettings,
        gate: StartGate,
        inflight: Inflight,
        pools: Mapping[Kind, Pool],
    ) -> None:
        self._kept = settings.reserve
        self._gate = gate
        self._inflight = inflight
        self._pools = pools
        self._names: dict[Kind, frozenset[str]] = {
            kind: frozenset(name for name, spec in specs.items() if spec.kind == kind)
            for kind in KINDS
        }
        self.prefetch = Prefetch(settings.prefetch, settings.keyed_prefetch)
        self.unknown: set[str] = set()
        """Tasks of jobs that came and that this process does not have."""

    def demand(self, *, may_skip: bool) -> Demand:
        """How many jobs to ask for now."""
        if self._gate.alone is not None or not self._gate.is_trusted:
            return Demand()
        demand = self.prefetch.demand(self._rooms(ANY), may_skip=may_skip)
        if demand.want == 0 and self._kept:
            return self._urgent_demand(may_skip=may_skip)
        return demand

    def _urgent_demand(self, *, may_skip: bool) -> Demand:
        """What to ask for when only slots are free that are kept for urgent jobs."""
        for level in sorted(self._kept, reverse=True):
            rooms = self._rooms(level)
            full = full_kinds(rooms)
            slots = min(room.free for kind, room in rooms.items() if kind not in full)
            if slots and (may_skip or not full):
                return Demand(slots, slots, full, level)
        return Demand()

    @property
    def is_half_full(self) -> bool:
        """One kind of tasks has no free slot while another one has, for jobs of some priority."""
        return any(full_kinds(self._rooms(level)) for level in (ANY, *self._kept))

    def _rooms(self, priority: float) -> dict[Kind, Room]:
        """The room for jobs of a priority, by kind: what waits and is less urgent takes none."""
        kinds = [kind for kind in KINDS if self._names[kind]] or KINDS[:1]
        pools = {kind: self._pools[kind] for kind in kinds}
        if not self._kept:
            return {kind: Room(pool.size, pool.load) for kind, pool in pools.items()}
        there = list(self._inflight)
        rooms = {}
        for kind, pool in pools.items():
            here = [each for each in there if each.pool is pool]
            before = [each for each in here if not _comes_after(each, priority)]
            load = pool.load - (len(here) - len(before))
            free = free_for(priority, pool.size, self._kept, [each.job.priority for each in before])
            rooms[kind] = Room(load + min(pool.size - load, free), load)
        return rooms

    def avoid(self, demand: Demand) -> frozenset[str]:
        """The tasks whose jobs should go to other workers."""
        full = frozenset[str]().union(*(self._names[kind] for kind in demand.skipped_kinds))
        return full.union(self.unknown) if self.unknown else full


def _comes_after(attempt: Attempt, priority: float) -> bool:
    """It waits, and lets a job of this priority go first."""
    return attempt.is_waiting and attempt.job.priority > priority


class SkipPace:
    """When a claim may skip the kinds of tasks that have no free slot."""

    def __init__(self, clock: Clock, longest: float) -> None:
        self._clock = clock
        self._longest = longest
        self._next_at = -inf
        self._pause = SKIP_EVERY[0]
        self._uneven_since = inf

    def may_skip(self, *, is_uneven: bool) -> bool:
        """It is time to look behind jobs that have no free slot.

        ``is_uneven``: the last claim took all there was, and one kind of tasks is without a slot
        while another has some. Then it is so only when this has lasted for a moment.
        """
        now = self._clock.monotonic()
        if not is_uneven:
            self._uneven_since = inf
            return now >= self._next_at
        self._uneven_since = min(self._uneven_since, now)
        return now >= max(self._next_at, self._uneven_since + MOMENT)

    def skipped(self, asked_at: float, *, found: bool) -> None:
        """A claim that skipped some kinds was answered; ``found``: it brought jobs."""
        shortest, longest = SKIP_EVERY
        self._pause = shortest if found else min(longest, 2 * self._pause)
        now = self._clock.monotonic()
        share = min(self._longest, SKIP_SHARE * (now - asked_at))
        self._next_at = now + max(self._pause, share)

    def due_in(self) -> float:
        """Seconds until the next such claim may be made."""
        now = self._clock.monotonic()
        return max(0.001, max(self._next_at, min(self._uneven_since, now) + MOMENT) - now)
