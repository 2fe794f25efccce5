"""The leader: stands for election, and runs the chores while it trusts its term.

Every third of a term's ttl a candidate reads or renews the term, and reads the workers' beats; that
is all that it asks of the store while another one leads. The
renewals and each chore are tasks of their own: a chore that hangs delays no other, and none of them
the next renewal. A chore sleeps until the instant it asked for. One that fails, or takes longer
than its timeout, is tried again, alone, at growing intervals; the log says when that begins and
when it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from penstock.clock import Clock, within
from penstock.engines.engine import Engine
from penstock.engines.records import Sighting
from penstock.engines.retrying import Backoff
from penstock.errors import EngineClosed, EngineError, EngineFull, EngineUnavailable
from penstock.leader.chores import Chore, Rescue
from penstock.leader.election import Election
from penstock.logs import say

FAREWELL: Final = 2.0
"""Seconds that a resignation may take."""

AWAY: Final = (EngineUnavailable, EngineFull)
"""Errors of the store as a whole: the worker, which asks it all the time, logs that outage."""

_log = logging.getLogger("penstock.leader")


SAID: Final = -1


def _unheard(candidate: str, epoch: int) -> None: ...


class Leader:
    """One candidate with its chores."""

    def __init__(
        self,
        election: Election,
        rescue: Rescue,
        chores: Sequence[Chore],
        clock: Clock,
        elected: Callable[[str, int], None] = _unheard,
    ) -> None:
        """``elected`` is told of each new term of this candidate: its name and the epoch."""
        self._election = election
        self._rescue = rescue
        self._chores = chores
        self._clock = clock
        self._elected = elected
        self._epoch: int | None = None
        """Of the term that the last try has won; whether it still stands is the election's to
        say."""
        self._won = asyncio.Event()
        """Set by each try that has won the term."""
        self._looked = asyncio.Event()
        """Set by each look at the workers."""
        self._looks = 0
        """How many looks the store has answered."""
        self._failing: dict[str, int] = {}
        """Chores that failed: at which look they began to; ``SAID`` once that is in the log."""

    async def run(self, engine: Engine) -> None:
        """Stand for election, and lead when elected, until cancelled; then resign."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_rescuing(engine))
                for chore in self._chores:
                    group.create_task(self._keep_doing(chore, engine))
                await self._keep_standing(engine)
        finally:
            await self._resign(engine)

    # --- the term ------------------------------------------------------------------------------

    async def _keep_standing(self, engine: Engine) -> None:
        while True:
            try:
                await self._stand(engine)
            except EngineClosed:
                raise
            except Exception as error:
                # Also what no engine should raise: a row that cannot be read must not end workers.
                self._rescue.missed()
                self._failed("election failed", "election", error)
            else:
                self._succeeded("election works again", "election")
            await self._clock.sleep(self._election.every)

    async def _stand(self, engine: Engine) -> None:
        asked = self._clock.monotonic()
        await self._election.stand(engine)
        self._note(self._election.epoch)
        beats = [Sighting(each.id, each.beat) for each in await engine.workers()]
        self._rescue.saw(asked, self._clock.monotonic(), beats)
        self._looks += 1
        self._looked.set()

    def _note(self, epoch: int | None) -> None:
        if epoch is None and self._epoch is not None:
            say(_log, logging.WARNING, "leadership lost", leader=self._election.candidate)
        elif epoch is not None and epoch != self._epoch:
            say(_log, logging.INFO, "elected", leader=self._election.candidate, epoch=epoch)
            self._elected(self._election.candidate, epoch)
        self._epoch = epoch
        if epoch is not None:
            self._won.set()

    async def _resign(self, engine: Engine) -> None:
        try:
            await within(self._clock, FAREWELL, self._election.resign(engine))
        except (EngineError, TimeoutError) as error:
            kind = type(error).__name__
            say(_log, logging.DEBUG, "resignation failed", error=kind, why=str(error))

    # --- the chores ----------------------------------------------------------------------------

    async def _keep_rescuing(self, engine: Engine) -> None:
        """After each look, rescue what it has proven; one that fails waits for the next look."""
        backoff = Backoff()
        while True:
            await self._looked.wait()
            self._looked.clear()
            if not self._election.is_trusted:
                self._rescue.rest()
            while self._election.is_trusted:
                step = self._rescue.run(engine)
                if await self._do("rescue", step, self._rescue.timeout, backoff) > 0:
                    break

    async def _keep_doing(self, chore: Chore, engine: Engine) -> None:
        backoff = Backoff(longest=max(chore.period, 1.0))
        while True:
            if not self._election.is_trusted:
                await self._until_elected()
                continue
            due_in = await self._do(chore.name, chore.run(engine), chore.timeout, backoff)
            await self._clock.sleep(min(due_in, chore.period))

    async def _do(
        self, name: str, step: Coroutine[Any, Any, float], timeout: float, backoff: Backoff
    ) -> float:
        """Take one step of a chore; return how long it wants to rest."""
        try:
            due_in = await within(self._clock, timeout, step)
        except EngineClosed:
            raise
        except Exception as error:
            # Also what no engine should raise: one chore must not take the others down.
            self._failed("chore failed", name, error, chore=name)
            return backoff.next()
        self._succeeded("chore works again", name, chore=name)
        backoff.reset()
        return due_in

    def _failed(self, event: str, what: str, error: Exception, **fields: Any) -> None:
        """Log what begins to fail; an outage of the store only if the store answers others."""
        began = self._failing.setdefault(what, self._looks)
        is_news = began != SAID and (not isinstance(error, AWAY) or self._looks > began)
        if is_news:
            self._failing[what] = SAID
        # An error that no engine should raise is a fault, and a fault needs its traceback.
        fault = None if isinstance(error, (EngineError, TimeoutError)) else error
        level, kind = logging.WARNING if is_news else logging.DEBUG, type(error).__name__
        say(_log, level, event, exc_info=fault, **fields, error=kind, why=str(error))

    def _succeeded(self, event: str, what: str, **fields: Any) -> None:
        if what in self._failing and self._failing.pop(what) == SAID:
            say(_log, logging.INFO, event, **fields)

    async def _until_elected(self) -> None:
        """Sleep until a try has won the term; one that has run out must be won again."""
        self._won.clear()
        await self._won.wait()
