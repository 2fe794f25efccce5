"""The connections of one handle: opened when they are needed, kept while they are used.

A handle has few: one caller's call after another goes over the same one. A connection that broke is
closed and forgotten; the next caller opens a new one. The one that was used last is used next, so
that the others stay idle and are closed after a while.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from penstock.engines.postgres.link import Link
from penstock.errors import EngineBusy, EngineClosed


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
        self._is_closed = False

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Link]:
        """A connection that nobody else uses meanwhile.

        On failure: ``EngineBusy`` if all are in use for too long; what connecting raises.
        """
        await self._enter()
        try:
            link = await self._open()
            self._used.add(link)
            try:
                yield link
            finally:
                self._used.discard(link)
                if link.is_usable and not self._is_closed:
                    self._idle.append(link)
                else:
                    await link.close()
        finally:
            self._room.release()

    async def close(self) -> None:
        """Close all, also those in use: their callers get an error. Idempotent."""
        if self._pid != os.getpid():
            return  # a forked child: they are its parent's
        self._is_closed = True
        links, self._idle = [*self._idle, *self._used], []
        for link in links:
            await link.close()

    async def _enter(self) -> None:
        self._check()
        try:
            async with asyncio.timeout(self._patience):
                await self._room.acquire()
        except TimeoutError as error:
            why = f"all {self._most} connections are in use for {self._patience:g} s"
            raise EngineBusy(self._name, why) from error

    async def _open(self) -> Link:
        self._check()
        while self._idle:
            link = self._idle.pop()
            if link.is_usable:
                return link
            await link.close()
        return await self._connect()

    def _check(self) -> None:
        if self._is_closed or self._pid != os.getpid():
            raise EngineClosed(self._name)
