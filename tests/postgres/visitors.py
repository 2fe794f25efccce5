"""Who comes to a counter, and who sleeps meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Receipt
from servers.emptied import emptied
from servers.messages import Message

PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""


async def until(condition: Callable[[], object]) -> None:
    """Return when it is so."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


class Answers:
    """What those are told who handed something in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.told: list[tuple[Receipt | None, Exception | None]] = []
        self._came = asyncio.Event()

    def __call__(self, receipt: Receipt | None, error: Exception | None) -> None:
        self._loop.call_soon_threadsafe(self._tell, receipt, error)

    def _tell(self, receipt: Receipt | None, error: Exception | None) -> None:
        self.told.append((receipt, error))
        self._came.set()

    async def come(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.told) < count:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def asleep() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody who sleeps and hears."""
    url = emptied().url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as sleeper:
        await sleeper.execute('LISTEN "penstock.wake"')
        await sleeper.execute("SELECT penstock.doze('me', 'work', 60)")
        yield sleeper


async def everybody_has_been_served(engine: PostgresEngine, left: int = 1) -> None:
    """Return when what was given up is gone from the server, and so many connections are left."""
    pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock'"
    async with (
        asyncio.timeout(PATIENCE),
        await psycopg.AsyncConnection.connect(emptied().url, autocommit=True) as watcher,
    ):
        while len(await (await watcher.execute(pids)).fetchall()) > left:
            await engine.now()


def begins(message: Message) -> bool:
    """A connection does."""
    return not message.from_server and message.kind == ""
