"""A connection of psycopg with one face, whether it blocks or is awaited.

What a handler gets is a connection of its own kind. What surrounds the handler is written once, as
coroutines: on a ``Blocking`` one they never wait, so that a thread can take them in one step.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from penstock.engines.postgres.rows import Row


class Wire(ABC):
    """One connection, outside autocommit mode."""

    connection: Any
    cursors: type
    server_cursors: type

    @property
    def status(self) -> TransactionStatus:
        """How its transaction is; UNKNOWN: it is closed or broken."""
        return TransactionStatus(self.connection.pgconn.transaction_status)

    @abstractmethod
    async def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run statements; return what the last one returns."""

    @abstractmethod
    async def commit(self) -> None:
        """End the transaction."""

    @abstractmethod
    async def rollback(self) -> None:
        """Undo it."""

    @abstractmethod
    async def commit_each(self, does: bool) -> None:
        """Whether each statement commits by itself, from now on."""

    @abstractmethod
    async def close(self) -> None:
        """Close it, at once."""

    def renew(self) -> bool:
        """Let the next user find it as the first one did; False: that cannot be done."""
        self.connection.row_factory = tuple_row
        self.connection.cursor_factory = self.cursors
        self.connection.server_cursor_factory = self.server_cursors
        # The driver remembers what it has prepared, and nobody can tell it to forget.
        return self.connection.prepare_threshold is None


class Blocking(Wire):
    """One for sync handlers."""

    cursors = psycopg.Cursor
    server_cursors = psycopg.ServerCursor

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    @classmethod
    async def open(cls, given: Mapping[str, Any]) -> Blocking:
        """Connect."""
        return cls(psycopg.connect(**given))

    async def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        # Values go into the text: so several statements are one round trip.
        cursor = psycopg.ClientCursor(self.connection, row_factory=tuple_row)
        cursor.execute(sql.encode(), values or None)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description is not None else []

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def commit_each(self, does: bool) -> None:
        self.connection.autocommit = does

    async def close(self) -> None:
        self.connection.close()


class Awaited(Wire):
    """One for async handlers. Belongs to a loop."""

    cursors = psycopg.AsyncCursor
    server_cursors = psycopg.AsyncServerCursor

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    @classmethod
    async def open(cls, given: Mapping[str, Any]) -> Awaited:
        """Connect."""
        return cls(await psycopg.AsyncConnection.connect(**given))

    async def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        cursor = psycopg.AsyncClientCursor(self.connection, row_factory=tuple_row)
        await cursor.execute(sql.encode(), values or None)
        while cursor.nextset():
            pass
        return await cursor.fetchall() if cursor.description is not None else []

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def commit_each(self, does: bool) -> None:
        await self.connection.set_autocommit(does)

    async def close(self) -> None:
        await self.connection.close()


async def pause(seconds: float, *, is_async: bool) -> None:
    """Let some time pass, on this loop or in this thread."""
    if is_async:
        await asyncio.sleep(seconds)
    else:
        threading.Event().wait(seconds)
