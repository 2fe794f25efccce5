"""The leader's duties: each one bounded step, and when it wants to be done again.

Every chore is safe to run twice at once and to die half-way: what must be atomic is a verb of the
engine. A chore that found a full batch asks to be run again at once; the leader makes sure between
two runs that it still leads.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from penstock.clock import Clock
from penstock.engines.engine import Engine
from penstock.engines.records import Sighting
from penstock.leader.dead_workers import Observer

BATCH: Final = 500
"""Jobs per step."""

SHORTEST: Final = 0.01
"""Seconds between two looks at something that falls due."""


@dataclass(frozen=True, slots=True)
class Chore:
    """One duty, done at least once per ``period`` seconds; a step may take ``timeout`` seconds."""

    name: str
    run: Callable[[Engine], Coroutine[Any, Any, float]]
    """Do one step; return in how many seconds the next one is due, at most ``period``."""
    period: float = 60.0
    timeout: float = 60.0


def all_chores(keep_finished: float) -> list[Chore]:
    """Every duty of a leader but the rescue. Due jobs are promoted by claims as well; the leader
    does it for queues that no worker claims from just now.
    """

    async def prune_old(engine: Engine) -> float:
        return await prune(engine, keep_finished)

    return [
        Chore("promote", promote, timeout=15.0),
        Chore("prune", prune_old),
        Chore("mend", mend),
        Chore("tidy", tidy, period=600.0),
    ]


async def promote(engine: Engine) -> float:
    """Make due jobs ready, and let those end that waited too long."""
    promoted = await engine.promote(BATCH)
    if promoted.ready >= BATCH or promoted.expired >= BATCH:
        return 0.0
    return inf if promoted.due_in is None else max(promoted.due_in, SHORTEST)


async def prune(engine: Engine, keep: float) -> float:
    """Delete what ended more than ``keep`` seconds ago."""
    pruned = await engine.prune(keep, BATCH)
    is_full = max(pruned.jobs, pruned.ids, pruned.keys) >= BATCH
    return 0.1 if is_full else inf


async def mend(engine: Engine) -> float:
    """Repair what a lost step may have left."""
    await engine.mend()
    return inf


async def tidy(engine: Engine) -> float:
    """Clear away what jobs have left, as often as the store says."""
    return await engine.tidy()


class Rescue:
    """Takes the jobs of workers that are proven dead or have gone.

    Candidates look at the workers as well, so that a new leader need not begin its proofs at
    nothing: what a dead leader held is rescued one lease after its death, not one lease after the
    next election.
    """

    def __init__(self, lease: float, clock: Clock) -> None:
        self._observer = Observer(lease)
        self._clock = clock
        self._lease = lease
        self._dead: list[Sighting] = []
        self._before: frozenset[str] | None = None
        """The workers there were at the last step; None: this process did not lead then."""
        self._rescued_at = 0.0
        self.timeout = lease

    def saw(self, asked: float, answered: float, beats: Sequence[Sighting]) -> None:
        """The beat of every worker was read between two monotonic instants."""
        self._dead = self._observer.saw(asked, answered, beats)

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
        # Without a reason it is asked only once per lease: what a leader left half-done.
        has_reason = self._dead or self._before is None or not self._before <= living
        if has_reason or now - self._rescued_at >= self._lease:
            rescued = await engine.rescue(self._dead, BATCH)
            self._rescued_at = now
            if len(rescued) >= BATCH:
                self._before = None
                return 0.0
        self._before = living
        return inf
