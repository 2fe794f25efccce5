"""The connections of one engine: opened when they are needed, kept while they are used.

An engine has few: one call after another goes over the same connection. One that broke is closed
and forgotten; the next caller opens a new one. The one that was used last is used next, so that the
others stay idle and are closed after a while.

A connection that is closed while a statement was under way may still be served: what was sent on it
may arrive late, and happen. So the next caller first ends its backend on the server: what did not
happen by then cannot happen any more (law 3).

Only one is opened at a time, and callers that waited for an attempt which failed share its error: a
server that comes back is not met by all of them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import psycopg

from penstock.engines.postgres.connection import Backend, Connection
from penstock.engines.postgres.errors import NAME
from penstock.errors import EngineClosed, EngineCrowded, EngineUnavailable

IDLE: Final = 60.0
"""Seconds after which a connection that was not needed is closed, unless it is the only one."""
PARTING: Final = 1.0
"""Seconds that callers have to let go of their connections when all are closed."""
SPOILT: Final = frozenset({"0A000", "25006", "26000"})
"""Errors that another connection may not have: what was prepared on this one fits no more, or it
leads to a server that was the primary."""


class ConnectionPool:
    """At most ``most`` connections at once. Belongs to one loop and one process."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], *, most: int, patience: float
    ) -> None:
        self._connect = connect
        self._most = most
        self._patience = patience
        self._pid = os.getpid()
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._room = asyncio.Semaphore(most)
        self._abandoned: set[Backend] = set()
        self._opening = asyncio.Lock()
        self._attempts = 0
        self._failure: BaseException | None = None
        self._returned = asyncio.Event()
        self._is_closed = False

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """A connection for this caller alone.

        On failure: ``EngineCrowded`` if all are in use for too long; what connecting raises.
        """
        await self._acquire()
        try:
            connection = await self._taken()
            self._used.add(connection)
            is_spoilt = False
            try:
                if self._abandoned:
                    await self._end_abandoned(connection)
                yield connection
            except psycopg.Error as error:
                is_spoilt = error.sqlstate in SPOILT
                if self._is_closed:
                    raise EngineClosed(NAME) from error
                raise
            finally:
                await self._put_back(connection, is_spoilt=is_spoilt)
                self._used.discard(connection)
                if not self._used:
                    self._returned.set()
        finally:
            self._room.release()

    def free(self) -> Connection | None:
        """One that no caller uses now and that owes no reply, for something that is only posted."""
        return next((each for each in self._idle if not each.owes_reply and each.is_usable), None)

    def abandon(self, backend: Backend) -> None:
        """Let the next caller end what was sent there before it happens. Any thread may call."""
        self._abandoned.add(backend)

    async def close(self) -> None:
        """Close all; callers that use one get an error. Idempotent."""
        if self._pid != os.getpid():
            return  # a forked child: they are its parent's
        self._is_closed = True
        connections, self._idle = self._idle, []
        for connection in connections:
            await connection.close()
        for connection in self._used:
            connection.abort()
        if self._used:
            self._returned.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PARTING):
                    await self._returned.wait()

    # --- inside --------------------------------------------------------------------------------

    async def _acquire(self) -> None:
        self._check()
        if not self._room.locked():
            await self._room.acquire()  # at once: a time limit would cost more
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._room.acquire()
        except TimeoutError as error:
            why = f"all {self._most} of this handle are in use for {self._patience:g} s"
            raise EngineCrowded(NAME, why) from error

    async def _taken(self) -> Connection:
        self._check()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            await connection.close()
        return await self._opened()

    async def _opened(self) -> Connection:
        attempts = self._attempts
        async with self._opening:
            self._check()
            if self._failure is not None and self._attempts > attempts:
                raise type(self._failure)(*self._failure.args) from self._failure
            try:
                connection = await self._connect()
            except Exception as error:
                self._failure = error
                raise
            finally:
                self._attempts += 1
            self._failure = None
            return connection

    async def _end_abandoned(self, connection: Connection) -> None:
        abandoned = list(self._abandoned)
        if not await connection.end_backends(abandoned):
            why = "the server has not ended an earlier call, which may still happen"
            raise EngineUnavailable(NAME, why)
        self._abandoned.difference_update(abandoned)

    async def _put_back(self, connection: Connection, *, is_spoilt: bool) -> None:
        if not connection.is_usable and not connection.is_pooled:
            self._abandoned.add(connection.backend)
        if is_spoilt or self._is_closed or not connection.is_usable:
            await connection.close()
            return
        connection.used_at = asyncio.get_running_loop().time()
        self._idle.append(connection)
        if len(self._idle) > 1 and connection.used_at - self._idle[0].used_at > IDLE:
            await self._idle.pop(0).close()

    def _check(self) -> None:
        if self._is_closed or self._pid != os.getpid():
            raise EngineClosed(NAME)
