"""One connection to PostgreSQL, and how a call on it ends.

A caller that is cancelled leaves with a statement under way. The server is asked to stop it, and
its end is awaited for a moment; a connection whose end is not known is closed. So what is handed to
the next caller is always at rest.

Some statements need no answer (a wake-up after a commit): they are posted, and whoever uses the
connection next reads the reply first. That costs no round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import generators, pq

from penstock.engines.postgres.rows import Row

PARTING: Final = 2.0
"""Seconds that the server has to say that a statement was stopped."""

Values = Mapping[str, object] | Sequence[object]


class Link:
    """A connection in autocommit mode. Used by one caller at a time."""

    def __init__(self, connection: psycopg.AsyncConnection[Row], *, prepares: bool) -> None:
        self._connection = connection
        self._prepares = prepares
        self._owed = 0
        self.instant: float | None = None
        """What the clock of this session was set to, where a test sets it."""

    @property
    def is_usable(self) -> bool:
        """It is open, and outside any transaction."""
        return self._connection.pgconn.transaction_status == pq.TransactionStatus.IDLE

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one statement; return what it returns."""
        cursor = await self._execute(sql, values)
        return await cursor.fetchall() if cursor.description is not None else []

    async def change(self, sql: str, values: Values = ()) -> int:
        """Run one statement; return how many rows it has changed."""
        return (await self._execute(sql, values)).rowcount

    async def script(self, sql: str) -> list[Row]:
        """Run several statements that take no values; return what the last one returns."""
        await self._settle_debts()
        cursor = self._connection.cursor()
        try:
            await cursor.execute(sql.encode())
        except asyncio.CancelledError:
            await self._part()
            raise
        while cursor.nextset():
            pass
        return await cursor.fetchall() if cursor.description is not None else []

    def post(self, sql: str) -> None:
        """Send one statement that takes no values, and do not wait for it."""
        pgconn = self._connection.pgconn
        if self._owed or not self.is_usable:
            return
        try:
            pgconn.send_query(sql.encode())
            pgconn.flush()
        except psycopg.Error:
            return  # whoever uses it next will learn what is wrong with it
        self._owed += 1

    async def notifications(self) -> AsyncIterator[str]:
        """What is notified on the channels this connection listens to, as it comes."""
        async for notify in self._connection.notifies():
            yield notify.payload

    async def close(self) -> None:
        """Close it, at once."""
        await self._connection.close()

    async def _execute(self, sql: str, values: Values) -> psycopg.AsyncCursor[Row]:
        await self._settle_debts()
        cursor = self._connection.cursor(binary=True)
        try:
            # Text of our own files, written by nobody else.
            await cursor.execute(sql.encode(), values or None, prepare=self._prepares)
        except asyncio.CancelledError:
            await self._part()
            raise
        return cursor

    async def _settle_debts(self) -> None:
        """Read the reply to what was posted."""
        if self._owed:
            self._owed = 0
            try:
                await self._connection.wait(generators.fetch_many(self._connection.pgconn))
            except asyncio.CancelledError:
                await self._part()
                raise

    async def _part(self) -> None:
        """Leave nothing under way: the driver has asked the server to stop the statement."""
        if not self.is_usable:
            await self._connection.close()


async def connect(dsn: str, name: str, *, timeout: float, prepares: bool) -> Link:
    """Open a connection; ``name`` is what the server shows of it."""
    connection: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
        dsn,
        autocommit=True,
        prepare_threshold=5 if prepares else None,
        application_name=name,
        connect_timeout=max(2, round(timeout)),
        client_encoding="utf8",
    )
    return Link(connection, prepares=prepares)
