"""The leader: stands for election, and runs the chores while it trusts its term.

The renewals and each chore are tasks of their own: a chore that hangs delays no other, and none
of them the next renewal. A chore sleeps until the instant it asked for. One that fails, or takes
longer than its timeout, is logged and tried again, alone, at growing intervals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Final

from penstock.clock import Clock, within
from penstock.engines.engine import Engine
from penstock.engines.retrying import Backoff
from penstock.errors import EngineClosed, EngineError
from penstock.leader.chores import Chore
from penstock.leader.election import Election
from penstock.worker.lease import open_patiently
from penstock.worker.log import Journal

FAREWELL: Final = 2.0
"""Seconds that a resignation may take."""

_log = logging.getLogger("penstock.leader")


class Leader:
    """One candidate with its chores, on a handle of its own."""

    def __init__(
        self,
        connect: Callable[[], Engine],
        election: Election,
        chores: Sequence[Chore],
        clock: Clock,
    ) -> None:
        self._connect = connect
        self._election = election
        self._chores = chores
        self._clock = clock
        self._elected = asyncio.Event()
        """Set while the last try has won the term; whether it still stands is the election's."""

    async def run(self) -> None:
        """Stand for election, and lead when elected, until cancelled; then resign."""
        engine = self._connect()
        try:
            await open_patiently(engine, self._clock, Journal())
            try:
                async with asyncio.TaskGroup() as group:
                    for chore in self._chores:
                        group.create_task(self._keep_doing(chore, engine))
                    await self._keep_standing(engine)
            finally:
                await self._resign(engine)
        finally:
            await engine.close()

    # --- the term ------------------------------------------------------------------------------

    async def _keep_standing(self, engine: Engine) -> None:
        """Ask for the term, or renew it, every third of its ttl."""
        while True:
            try:
                is_elected = await self._election.stand(engine)
            except EngineClosed:
                raise
            except EngineError as error:
                _log.debug("election failed error=%s", error)
            else:
                self._note(is_elected)
            await self._clock.sleep(self._election.every)

    def _note(self, is_elected: bool) -> None:
        if is_elected and not self._elected.is_set():
            _log.info("elected leader=%s epoch=%s", self._election.candidate, self._election.epoch)
            self._elected.set()
        elif not is_elected and self._elected.is_set():
            _log.warning("leadership lost leader=%s", self._election.candidate)
            self._elected.clear()

    async def _resign(self, engine: Engine) -> None:
        try:
            await within(self._clock, FAREWELL, self._election.resign(engine))
        except (EngineError, TimeoutError) as error:
            _log.debug("resignation failed error=%s", error)

    # --- the chores ----------------------------------------------------------------------------

    async def _keep_doing(self, chore: Chore, engine: Engine) -> None:
        """Run one chore whenever it is due while this process leads; watch while it does not."""
        backoff = Backoff(longest=max(chore.period, 1.0))
        while True:
            if self._election.is_trusted:
                step = chore.run(engine)
            else:
                step = chore.watch(engine)
            due_in = await self._do(chore, step, backoff)
            if self._election.is_trusted:
                await self._clock.sleep(min(due_in, chore.period))
            else:
                await self._until_elected(due_in)

    async def _do(self, chore: Chore, step: Coroutine[Any, Any, float], backoff: Backoff) -> float:
        """Take one step of a chore; return how long it wants to rest."""
        try:
            due_in = await within(self._clock, chore.timeout, step)
        except EngineClosed:
            raise
        except Exception as error:
            # Also what no engine should raise: one chore must not take the others down.
            chore.rest()
            _log.warning("chore failed chore=%s error=%r: %s", chore.name, type(error), error)
            return backoff.next()
        backoff.reset()
        return due_in

    async def _until_elected(self, timeout: float) -> None:
        """Sleep until a try has won the term; one that has run out must be won again."""
        if self._elected.is_set() and not self._election.is_trusted:
            self._elected.clear()
        await self._clock.wait(self._elected, None if timeout == inf else timeout)
