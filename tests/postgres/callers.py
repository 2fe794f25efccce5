"""Threads that store jobs by themselves, and who listens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from penstock.core.job import Draft
from penstock.engines import reads
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Receipt
from servers.emptied import emptied
from servers.messages import Message

PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""


async def put_blocking(
    engine: PostgresEngine, drafts: Sequence[Draft], timeout: float | None = PATIENCE
) -> list[Receipt] | None:
    """Store jobs from a thread, as a blocking caller does."""
    assert engine.inlet is not None
    return await asyncio.to_thread(engine.inlet.put, drafts, timeout)


@asynccontextmanager
async def listener() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """An idle worker that waits for jobs, and hears."""
    url = emptied().url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute('LISTEN "penstock.wake"')
        await connection.execute("SELECT penstock.doze('me', 'work', 60)")
        yield connection


async def heard(connection: psycopg.AsyncConnection[Any], *payloads: str) -> None:
    """Return when all of these were notified."""
    told: set[str] = set()
    async with asyncio.timeout(PATIENCE):
        async for note in connection.notifies():
            told.add(note.payload)
            if told >= set(payloads):
                return


async def abandoned_backends_have_ended(engine: PostgresEngine, left: int = 1) -> None:
    """Return when the server has so many connections of Penstock left."""
    pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock'"
    async with (
        asyncio.timeout(PATIENCE),
        await psycopg.AsyncConnection.connect(emptied().url, autocommit=True) as watcher,
    ):
        while len(await (await watcher.execute(pids)).fetchall()) > left:
            await reads.now(engine)


def begins(message: Message) -> bool:
    """A connection does."""
    return not message.from_server and message.kind == ""
