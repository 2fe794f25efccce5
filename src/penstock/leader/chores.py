"""The leader's duties: each one bounded step, and when it wants to be done again.

Every chore is safe to run twice at once and to die half-way: what must be atomic is a verb of the
engine. A chore that found a full batch asks to be run again at once; the leader makes sure between
two runs that it still leads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from penstock.clock import Clock
from penstock.core.job import CRASH_LIMIT, Job
from penstock.engines import changes
from penstock.engines.engine import Engine
from penstock.engines.records import Sighting, WorkerInfo
from penstock.leader.dead_workers import Observer
from penstock.logs import say, say_rescued

BATCH: Final = 200
"""Jobs per step, unless a setting says otherwise."""
EVERY: Final = 60.0
"""Seconds between two rounds, likewise."""

SELDOM: Final = 60.0
"""Seconds after which jobs without a worker are looked for, though no worker has gone."""

SHORTEST: Final = 0.01
"""Seconds between two looks at something that falls due."""

_log: Final = logging.getLogger("penstock.leader")


@dataclass(frozen=True, slots=True)
class Chore:
    """One duty, done at least once per ``period`` seconds; a step may take ``timeout`` seconds."""

    name: str
    run: Callable[[Engine], Coroutine[Any, Any, float]]
    """Do one step; return in how many seconds the next one is due, at most ``period``."""
    period: float = EVERY
    timeout: float = 60.0


def all_chores(every: float = EVERY, batch: int = BATCH) -> list[Chore]:
    """Every duty of a leader but the rescue. Due jobs are promoted by claims as well; the leader
    does it for queues that no worker claims from just now.
    """

    async def promote_due(engine: Engine) -> float:
        return await promote(engine, batch)

    async def prune_old(engine: Engine) -> float:
        return await prune(engine, batch)

    return [
        Chore("promote", promote_due, every, timeout=15.0),
        Chore("prune", prune_old, every),
        Chore("repair", Repair(batch).run, every),
    ]


async def promote(engine: Engine, batch: int = BATCH) -> float:
    """Make due jobs ready, and let those end that waited too long."""
    promoted = await engine.promote(batch)
    if promoted.ready >= batch or promoted.expired >= batch:
        return 0.0
    return inf if promoted.due_in is None else max(promoted.due_in, SHORTEST)


async def prune(engine: Engine, batch: int = BATCH) -> float:
    """Delete what ended longer ago than it is kept."""
    pruned = await engine.prune(batch)
    if max(pruned.jobs, pruned.ids, pruned.keys) >= batch:
        return 0.1
    return inf if pruned.again_in is None else pruned.again_in


class Repair:
    """Repairs what a lost step may have left, a batch at a time: the holds, then the rest."""

    def __init__(self, batch: int = BATCH) -> None:
        self._batch = batch
        self._holds: str | None = None
        self._order: str | None = None

    async def run(self, engine: Engine) -> float:
        """Do one step; return 0 while there is more to look at."""
        if self._order is None:
            _, self._holds = await changes.repair_holds(engine, self._batch, self._holds)
            if self._holds is not None:
                return 0.0
        self._order = (await engine.repair(self._batch, self._order)).cursor
        return inf if self._order is None else 0.0


class Rescue:
    """Takes the jobs of workers that are proven dead or have gone.

    Candidates look at the workers as well, so that a new leader need not begin its proofs at
    nothing: what a dead leader held is rescued one lease after its death, not one lease after the
    next election.
    """

    def __init__(
        self,
        lease: float,
        clock: Clock,
        wrote_at: Callable[[], float],
        batch: int = BATCH,
        crash_limit: int = CRASH_LIMIT,
    ) -> None:
        """``wrote_at`` says when the last beat of our own worker was sent that succeeded."""
        self._wrote_at = wrote_at
        self._batch = batch
        self._crash_limit = crash_limit
        self._observer = Observer(lease)
        self._clock = clock
        self._dead: list[Sighting] = []
        self._before: frozenset[str] | None = None
        """The workers there were at the last step; None: this process did not lead then."""
        self._rescued_at = 0.0
        self.timeout = lease

    def saw(self, asked: float, answered: float, beats: Sequence[Sighting]) -> None:
        """The beat of every worker was read between two monotonic instants."""
        self._dead = self._observer.saw(asked, answered, beats, self._wrote_at())

    def missed(self) -> None:
        """A look failed."""
        self._observer.missed()
        self.rest()

    def rest(self) -> None:
        """Another process leads."""
        self._dead, self._before = [], None

    async def run(self, engine: Engine) -> float:
        """Do one step after a look; return 0 if there may be more, else infinity."""
        now, living = self._clock.monotonic(), self._observer.living
        # Without a reason it is asked only once in a while: what another leader left half-done.
        has_reason = self._dead or self._before is None or not self._before <= living
        if has_reason or now - self._rescued_at >= SELDOM:
            rescued = await self._rescue(engine, now)
            self._rescued_at = now
            if len(rescued) >= self._batch:
                self._before = None
                return 0.0
        self._before = living
        return inf

    async def _rescue(self, engine: Engine, now: float) -> list[Job]:
        """Take a batch; log which workers have lost their lease by it, and which jobs failed."""
        dead = self._dead
        silent = {each.worker: self._observer.silent(each.worker, now) for each in dead}
        before = [each for each in await engine.workers() if each.id in silent] if dead else []
        running = await engine.running() if before else []
        rescued = await changes.rescue(engine, dead, self._batch, self._crash_limit)
        # One whose beat came at last has kept its lease.
        alive = {each.id for each in await engine.workers()} if before else set()
        for worker in before:
            if worker.id not in alive:
                jobs = sum(each.jobs for each in running if each.worker == worker.id)
                _say_dead(worker, jobs, silent[worker.id])
        say_rescued(_log, rescued)
        return rescued


def _say_dead(worker: WorkerInfo, jobs: int, silent: float) -> None:
    say(
        _log,
        logging.WARNING,
        "worker found dead",
        worker=worker.id,
        host=worker.host,
        pid=worker.pid,
        jobs=jobs,
        silent=round(silent, 1),
    )
