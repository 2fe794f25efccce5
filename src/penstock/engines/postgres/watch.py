"""The wake-up of the PostgreSQL engine: LISTEN on a connection of its own, polling behind it.

A NOTIFY takes a lock of the whole cluster when it commits, so ours are sent only when somebody
sleeps. Whoever is about to sleep says so in ``penstock.sleeper`` (committed), then looks once more.
Whoever has committed something asks, after the commit, whether anybody sleeps, and only then
notifies: either the sleeper's look sees the commit, or the writer's look sees the sleeper (law 11).
Being a sleeper is good for a few seconds and renewed while somebody sleeps, so that a busy store is
not written to at every nap. Transactions of others always notify, for nobody looks after them.

A notification that does not come (a pooler in between, a dead connection) costs a poll: nobody
sleeps longer than ``POLL`` without a look. Where a probe of one's own does not come back, we say so
once and poll, from often to seldom.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg

from penstock.clock import Clock
from penstock.core.ids import new_id
from penstock.engines.postgres.link import Link
from penstock.engines.postgres.links import Links
from penstock.engines.postgres.schema import placed
from penstock.errors import EngineClosed, EngineError

POLL: Final = 1.0
"""Seconds after which a sleeper looks, whatever it was told."""
LEASE: Final = 6.0
"""Seconds for which somebody is known to sleep; renewed at half of it."""

WORK: Final = "work"
DONE: Final = "done"
ANY: Final = "any"


class Watch:
    """One handle's ear on the store. Belongs to the handle's loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Link]] | None,
        links: Links,
        schema: str,
        clock: Clock,
    ) -> None:
        self._connect = connect
        self._links = links
        self._schema = schema
        self._clock = clock
        self._id = new_id()
        self._version = 1
        self._listeners: set[asyncio.Event] = set()
        self._known_until: dict[str, float] = {}
        self._ear: asyncio.Task[None] | None = None
        self._hears = asyncio.Event()
        self._is_closed = False

    # --- whoever writes ------------------------------------------------------------------------

    def after_commit(self, link: Link, kind: str) -> None:
        """Wake who sleeps for this, in this process and elsewhere."""
        link.post(placed(f"SELECT penstock.wake('{kind}')", self._schema))
        self._stir()

    # --- whoever sleeps ------------------------------------------------------------------------

    async def version(self, kind: str = ANY) -> int:
        """Return a number that changes after any commit of this kind."""
        if self._is_closed:
            raise EngineClosed("postgresql")
        if self._connect is not None:
            await self._prick_up()
            await self._register(kind)
        return self._version

    async def listen(self, seen: int, timeout: float) -> int:
        """Sleep until the version is no longer ``seen``, at most ``timeout`` seconds."""
        if self._version != seen:
            return self._version
        event = asyncio.Event()
        self._listeners.add(event)
        loop = asyncio.get_running_loop()
        pause = POLL * (0.75 + random.random() / 4)
        # In real time: what writes is real, whatever the clock of a test says.
        poll = loop.call_later(pause, event.set)
        try:
            await self._clock.wait(event, timeout)
        finally:
            poll.cancel()
            self._listeners.discard(event)
        if self._is_closed:
            raise EngineClosed("postgresql")
        return self._version

    async def close(self) -> None:
        """Stop listening, and end whoever still sleeps."""
        self._is_closed = True
        self._stir()
        if self._ear is not None:
            self._ear.cancel()
            await asyncio.gather(self._ear, return_exceptions=True)
            self._ear = None

    # --- inside --------------------------------------------------------------------------------

    def _stir(self) -> None:
        self._version += 1
        for event in self._listeners:
            event.set()

    async def _prick_up(self) -> None:
        """Listen, if nobody does yet."""
        if self._ear is None or self._ear.done():
            self._hears.clear()
            self._ear = asyncio.create_task(self._listening(), name="penstock listener")
        if not self._hears.is_set():
            hears = asyncio.create_task(self._hears.wait())
            await asyncio.wait([hears, self._ear], return_when=asyncio.FIRST_COMPLETED)
            hears.cancel()

    async def _register(self, kind: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._known_until.get(kind, 0.0) - now > LEASE / 2:
            return
        async with self._links.use() as link:
            await link.rows(
                placed("SELECT penstock.doze(%s, %s, %s)", self._schema),
                (f"{self._id}-{kind}", kind, LEASE),
            )
        self._known_until[kind] = now + LEASE

    async def _listening(self) -> None:
        """Hear notifications until the connection breaks; the next sleeper begins anew."""
        assert self._connect is not None
        with contextlib.suppress(psycopg.Error, OSError, EngineError):
            link = await self._connect()
            try:
                await link.script(placed('LISTEN "penstock.wake"', self._schema))
                self._hears.set()
                async for _ in link.notifications():
                    self._stir()
            finally:
                self._stir()
                await link.close()
