"""The LISTEN connection of one engine, and proof that it hears.

That LISTEN was accepted says little: behind a pooler it was said on a connection that another
client has by now, and a connection that died without a word looks like one on which nothing
happens. So a notification of our own, the probe, is sent over another connection and has to come:
at the start, and whenever nothing was heard for a while. As every listener hears it, one process at
a time sends one, however many there are.

While it does not hear, it tries again, at growing intervals.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg

from penstock.engines.postgres.connection import Connection
from penstock.errors import EngineCrowded, EngineError

QUIET: Final = 15.0
"""Seconds without a notification after which a probe is sent."""
PATIENCE: Final = 5.0
"""Seconds that a probe may take."""
AGAIN: Final = (0.1, 30.0)
"""Shortest and longest pause before it is tried again."""
SURE: Final = 3
"""Failures in a row after which it is not a passing one."""

PROBE: Final = "probe"


class CannotListen(Exception):
    """Nothing will be heard here, however often it is tried; its text says why."""


class Listener:
    """Listens to one channel. Belongs to one loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        channel: str,
        send: Callable[[str], Awaitable[None]],
        heard: Callable[[str], object],
        changed: Callable[[], None],
    ) -> None:
        """``send`` notifies the channel over another connection; ``heard`` is called with what
        others notify; ``changed`` is called when it begins to hear, or does no more.
        """
        self._connect = connect
        self._channel = channel
        self._send = send
        self._heard = heard
        self._changed = changed
        self._count = 0
        self._came = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.hears = False
        """It was proven to hear, and nothing speaks against it."""
        self.trouble = ""
        """Why it did not hear the last time."""
        self.is_decided = asyncio.Event()
        """Set once it hears, or could not."""

    @property
    def has_failed(self) -> bool:
        """It does not hear, and that will not pass by itself in a moment."""
        return not self.hears and self._failures >= SURE

    def start(self) -> None:
        """Listen from now on. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._live(), name="penstock listener")

    async def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _live(self) -> None:
        while True:
            try:
                await self._listen()
            except CannotListen as error:
                self._fail(str(error), SURE)
            except (psycopg.Error, OSError, EngineError) as error:
                self._fail(" ".join(str(error).split()), 1)
            shortest, longest = AGAIN
            pause = min(longest, shortest * 2.0 ** min(self._failures, 20))
            await asyncio.sleep(pause * (0.5 + random.random() / 2))

    async def _listen(self) -> None:
        """Hear until the connection breaks or is found dead."""
        connection = await self._connect()
        self._came.clear()  # what the connection before heard proves nothing of this one
        try:
            if connection.is_pooled:
                raise CannotListen("a pooler lends its connections for one transaction each")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hear(connection))
                group.create_task(self._prove())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await connection.close()

    async def _hear(self, connection: Connection) -> None:
        async for payload in connection.listen(self._channel):
            self._count += 1
            self._came.set()
            if payload and payload != PROBE:
                self._heard(payload)
        raise psycopg.OperationalError("the connection that listens was closed")

    async def _prove(self) -> None:
        """Send a probe whenever nothing came for a while, and hear it."""
        if not await self._comes():
            raise psycopg.OperationalError(f"LISTEN was not answered for {PATIENCE:g} s")
        while True:
            if await self._was_sent():
                if not await self._comes():
                    raise CannotListen(f"a notification of our own did not come for {PATIENCE:g} s")
                self._succeed()
            before = -1
            while self._count != before:
                before = self._count
                await asyncio.sleep(QUIET * (0.5 + random.random() / 2))

    async def _was_sent(self) -> bool:
        self._came.clear()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._send(PROBE)
        except (EngineCrowded, TimeoutError):
            return False  # then nothing is known
        return True

    async def _comes(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._came.wait()
        except TimeoutError:
            return False

    def _succeed(self) -> None:
        self._failures = 0
        self.is_decided.set()
        if not self.hears:
            self.hears = True
            self._changed()

    def _fail(self, why: str, count: int) -> None:
        self._failures += count
        self.trouble = why
        self.is_decided.set()
        if self.hears:
            self.hears = False
            self._changed()
