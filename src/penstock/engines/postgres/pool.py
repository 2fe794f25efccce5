"""The connections of one handle: opened when they are needed, kept while they are used.

A handle has few: one caller's call after another goes over the same one. A connection that broke is
closed and forgotten; the next caller opens a new one. The one that was used last is used next, so
that the others stay idle and are closed after a while.

A connection that is closed while something was under way may still be served: what was sent on it
may arrive late, and happen. So the next caller first ends its process on the server: what did not
happen by then cannot happen any more (law 3).

Only one is opened at a time, and whoever waited for an attempt that failed shares its error: a
server that comes back is not met by a crowd.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import psycopg

from penstock.engines.postgres.connection import Backend, Link
from penstock.errors import EngineClosed, EngineCrowded, EngineUnavailable

IDLE: Final = 60.0
"""Seconds after which a connection that nobody needed is closed, unless it is the only one."""
PARTING: Final = 1.0
"""Seconds that those who use a connection have to let go of it when all are closed."""
SPOILT: Final = frozenset({"0A000", "25006", "26000"})
"""Errors that another connection may not have: what was prepared on this one fits no more, or it
leads to a server that was the primary."""


class Links:
    """At most ``most`` connections at once. Belongs to one loop and one process."""

    def __init__(
        self, connect: Callable[[], Awaitable[Link]], name: str, *, most: int, patience: float
    ) -> None:
        self._connect = connect
        self._name = name
        self._most = most
        self._patience = patience
        self._pid = os.getpid()
        self._idle: list[Link] = []
        self._used: set[Link] = set()
        self._room = asyncio.Semaphore(most)
        self._abandoned: set[Backend] = set()
        self._opening = asyncio.Lock()
        self._attempts = 0
        self._failure: BaseException | None = None
        self._returned = asyncio.Event()
        self._is_closed = False

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Link]:
        """A connection that nobody else uses meanwhile.

        On failure: ``EngineCrowded`` if all are in use for too long; what connecting raises.
        """
        await self._enter()
        try:
            link = await self._taken()
            self._used.add(link)
            is_spoilt = False
            try:
                if self._abandoned:
                    await self._bury(link)
                yield link
            except psycopg.Error as error:
                is_spoilt = error.sqlstate in SPOILT
                if self._is_closed:
                    raise EngineClosed(self._name) from error
                raise
            finally:
                await self._put_back(link, is_spoilt=is_spoilt)
                self._used.discard(link)
                if not self._used:
                    self._returned.set()
        finally:
            self._room.release()

    def free(self) -> Link | None:
        """One that nobody uses now and that owes nothing, for something that is only posted."""
        return next((link for link in self._idle if not link.owes and link.is_usable), None)

    def abandon(self, backend: Backend) -> None:
        """Let the next caller end what was sent there before it happens. Any thread may call."""
        self._abandoned.add(backend)

    async def close(self) -> None:
        """Close all; those who use one get an error. Idempotent."""
        if self._pid != os.getpid():
            return  # a forked child: they are its parent's
        self._is_closed = True
        links, self._idle = self._idle, []
        for link in links:
            await link.close()
        for link in self._used:
            link.hang_up()
        if self._used:
            self._returned.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PARTING):
                    await self._returned.wait()

    # --- inside --------------------------------------------------------------------------------

    async def _enter(self) -> None:
        self._check()
        if not self._room.locked():
            await self._room.acquire()  # at once: a time limit would cost more
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._room.acquire()
        except TimeoutError as error:
            why = f"all {self._most} of this handle are in use for {self._patience:g} s"
            raise EngineCrowded(self._name, why) from error

    async def _taken(self) -> Link:
        self._check()
        while self._idle:
            link = self._idle.pop()
            if link.is_alive():
                return link
            await link.close()
        return await self._opened()

    async def _opened(self) -> Link:
        attempts = self._attempts
        async with self._opening:
            self._check()
            if self._failure is not None and self._attempts > attempts:
                raise type(self._failure)(*self._failure.args) from self._failure
            try:
                link = await self._connect()
            except Exception as error:
                self._failure = error
                raise
            finally:
                self._attempts += 1
            self._failure = None
            return link

    async def _bury(self, link: Link) -> None:
        """See to it that nothing happens any more on connections that were abandoned."""
        abandoned = list(self._abandoned)
        if not await link.end(abandoned):
            why = "the server has not ended an earlier call, which may still happen"
            raise EngineUnavailable(self._name, why)
        self._abandoned.difference_update(abandoned)

    async def _put_back(self, link: Link, *, is_spoilt: bool) -> None:
        if not link.is_usable and not link.is_pooled:
            self._abandoned.add(link.backend)
        if is_spoilt or self._is_closed or not link.is_usable:
            await link.close()
            return
        link.used_at = asyncio.get_running_loop().time()
        self._idle.append(link)
        if len(self._idle) > 1 and link.used_at - self._idle[0].used_at > IDLE:
            await self._idle.pop(0).close()

    def _check(self) -> None:
        if self._is_closed or self._pid != os.getpid():
            raise EngineClosed(self._name)
