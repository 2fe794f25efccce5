"""The ear of one handle: a connection that listens, and proof that it hears.

That LISTEN was accepted says little: behind a pooler it was said on a connection that somebody else
has by now, and a connection that died without a word looks like one on which nothing happens. So a
notification of our own is sent, over another connection, and has to come. It is sent at the start
and whenever nothing was heard for a while; as everybody hears it, one process at a time sends one,
however many there are.

While it does not hear, it tries again, at growing intervals.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import psycopg

from penstock.engines.postgres.link import Link
from penstock.errors import EngineCrowded, EngineError

QUIET: Final = 15.0
"""Seconds without a sound after which one is made."""
PATIENCE: Final = 5.0
"""Seconds that a sound of our own may take."""
AGAIN: Final = (0.1, 30.0)
"""Shortest and longest pause before it is tried again."""

SURE: Final = 3
"""Failures in a row after which it is not a passing one."""

PROBE: Final = "probe"


class Deaf(Exception):
    """Nothing will be heard here, however often it is tried; its text says why."""


class Ear:
    """Listens to some channels. Belongs to one loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Link]],
        send: Callable[[str], Awaitable[None]],
        heard: Mapping[str, Callable[[str], object]],
        changed: Callable[[], None],
    ) -> None:
        """``send`` notifies one of the channels over another connection; ``heard`` has, for each of
        them, what is called with what others say there; ``changed`` is called when it begins to
        hear, or does no more.
        """
        self._connect = connect
        self._send = send
        self._heard = heard
        self._changed = changed
        self._sounds = 0
        self._sound = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.hears = False
        """It was proven to hear, and nothing speaks against it."""
        self.trouble = ""
        """Why it did not hear the last time."""
        self.is_decided = asyncio.Event()
        """Set once it hears, or could not."""

    @property
    def is_deaf(self) -> bool:
        """It does not hear, and that will not pass by itself in a moment."""
        return not self.hears and self._failures >= SURE

    def prick_up(self) -> None:
        """Listen from now on. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._live(), name="penstock ear")

    async def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # --- inside --------------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                await self._listen()
            except Deaf as error:
                self._fail(str(error), SURE)
            except (psycopg.Error, OSError, EngineError) as error:
                self._fail(" ".join(str(error).split()), 1)
            shortest, longest = AGAIN
            pause = min(longest, shortest * 2.0 ** min(self._failures, 20))
            await asyncio.sleep(pause * (0.5 + random.random() / 2))

    async def _listen(self) -> None:
        """Hear until the connection breaks or is found dead."""
        link = await self._connect()
        try:
            if link.is_pooled:
                raise Deaf("a pooler lends its connections for one transaction each")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hear(link))
                group.create_task(self._prove())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await link.close()

    async def _hear(self, link: Link) -> None:
        async for channel, what in link.listen(*self._heard):
            self._sounds += 1
            self._sound.set()
            if channel and what != PROBE:
                self._heard[channel](what)
        raise psycopg.OperationalError("the connection that listens was closed")

    async def _prove(self) -> None:
        """Make a sound whenever there was none for a while, and hear it."""
        if not await self._comes():
            raise psycopg.OperationalError(f"LISTEN was not answered for {PATIENCE:g} s")
        while True:
            if await self._was_sent():
                if not await self._comes():
                    raise Deaf(f"a notification of our own did not come for {PATIENCE:g} s")
                self._succeed()
            before = -1
            while self._sounds != before:
                before = self._sounds
                await asyncio.sleep(QUIET * (0.5 + random.random() / 2))

    async def _was_sent(self) -> bool:
        self._sound.clear()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._send(PROBE)
        except (EngineCrowded, TimeoutError):
            return False  # then nothing is known
        return True

    async def _comes(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._sound.wait()
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
