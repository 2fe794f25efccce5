"""The leader's duties: each one bounded step, and when it wants to be done again.

Every chore is safe to run twice at once and to die half-way: what must be atomic is a verb of the
engine. A chore that found a full batch asks to be run again at once; the leader makes sure between
two runs that it still leads.
"""

from __future__ import annotations

from math import inf
from typing import Final, Protocol

from penstock.clock import Clock
from penstock.engines.engine import Engine
from penstock.engines.records import Sighting
from penstock.leader.observer import Observer, WorkersSeen

BATCH: Final = 500
"""Jobs per step."""

SHORTEST: Final = 0.01
"""Seconds between two looks at something that falls due."""


class Chore(Protocol):
    """One duty. ``period`` is the longest pause between two runs."""

    name: str
    period: float
    timeout: float

    async def run(self, engine: Engine) -> float:
        """Do one step; return in how many seconds the next one is due, at most ``period``."""

    async def watch(self, engine: Engine) -> float:
        """Do what a candidate does while another leads; return when to do it again."""

    def rest(self) -> None:
        """A step failed: forget what only an unbroken watch knows."""


class _Idle:
    """A chore that only a leader has to think of."""

    async def watch(self, engine: Engine) -> float:
        """There is nothing to watch; the leader wakes it when it is elected."""
        return inf

    def rest(self) -> None:
        """It knows nothing."""


class Promote(_Idle):
    """Makes due jobs ready, and lets those end that waited too long.

    Whoever claims does this too; it matters where nobody claims just now.
    """

    name = "promote"
    period = 5.0
    timeout = 15.0

    async def run(self, engine: Engine) -> float:
        promoted = await engine.promote(BATCH)
        if promoted.ready >= BATCH or promoted.expired >= BATCH:
            return 0.0
        return self.period if promoted.due_in is None else max(promoted.due_in, SHORTEST)


class Rescue:
    """Watches the workers, and takes the jobs of those that are proven dead or have gone.

    A candidate watches as well, so that a new leader need not begin its proofs at nothing: what a
    dead leader held is rescued one lease after its death, not one lease after the next election.
    """

    name = "rescue"

    def __init__(self, lease: float, clock: Clock) -> None:
        self._observer = Observer(lease)
        self._clock = clock
        self._lease = lease
        self._before: frozenset[str] | None = None
        self._rescued_at = 0.0
        self.period = self._observer.look_every
        self.timeout = lease

    async def run(self, engine: Engine) -> float:
        asked = self._clock.monotonic()
        dead = await self._look(engine)
        living = self._observer.living
        # Without a reason it is asked only once per lease: what a leader left half-done.
        has_reason = dead or self._before is None or not self._before <= living
        if has_reason or asked - self._rescued_at >= self._lease:
            rescued = await engine.rescue(dead, BATCH)
            self._rescued_at = asked
            if len(rescued) >= BATCH:
                self._before = None
                return 0.0
        self._before = living
        return self.period

    async def watch(self, engine: Engine) -> float:
        """WorkersSeen, so that the proofs are complete when this process is elected."""
        self._before = None
        await self._look(engine)
        return self.period

    async def _look(self, engine: Engine) -> list[Sighting]:
        asked = self._clock.monotonic()
        # Beats are writes. A look proves nothing unless a write could get through as well: a store
        # that can only be read for a while (a locked file) must not look like dead workers.
        await engine.rescue([], 0)
        workers = tuple(await engine.workers())
        return self._observer.saw(WorkersSeen(asked, self._clock.monotonic(), workers))

    def rest(self) -> None:
        self._observer.missed()
        self._before = None


class Prune(_Idle):
    """Deletes what ended long ago."""

    name = "prune"
    period = 60.0
    timeout = 60.0

    def __init__(self, keep: float) -> None:
        self._keep = keep

    async def run(self, engine: Engine) -> float:
        pruned = await engine.prune(self._keep, BATCH)
        is_full = max(pruned.jobs, pruned.ids, pruned.keys) >= BATCH
        return 0.1 if is_full else self.period


class Mend(_Idle):
    """Repairs what a lost step may have left."""

    name = "mend"
    period = 60.0
    timeout = 60.0

    async def run(self, engine: Engine) -> float:
        await engine.mend()
        return self.period


class Tidy(_Idle):
    """Clears away what jobs have left, as often as the store says."""

    name = "tidy"
    period = 600.0
    timeout = 60.0

    async def run(self, engine: Engine) -> float:
        return await engine.tidy()


def all_chores(lease: float, keep_finished: float, clock: Clock) -> list[Chore]:
    """Every duty of a leader."""
    return [Rescue(lease, clock), Promote(), Prune(keep_finished), Mend(), Tidy()]
