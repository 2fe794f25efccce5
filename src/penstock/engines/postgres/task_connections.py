"""The connections that transactional tasks write on: one face for both kinds, kept for reuse.

A handler gets a connection of its own kind, blocking or awaited. What surrounds the handler is
written once, as coroutines: on a ``SyncTaskConnection`` they never wait, so that a thread can take
them in one step.

Connections are kept for the next attempts, for the threads of a process in one place and for each
loop in another, and only while a worker lives that could use them. A forked child begins with none:
those of its parent are its parent's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from penstock.engines.postgres.rows import Row

KEPT: Final = 10
"""Connections that are kept in one place at most."""


class TaskConnection(ABC):
    """One connection, outside autocommit mode."""

    driver: Any
    cursors: type
    server_cursors: type

    @property
    def status(self) -> TransactionStatus:
        """How its transaction is; UNKNOWN: it is closed or broken."""
        return TransactionStatus(self.driver.pgconn.transaction_status)

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
        self.driver.row_factory = tuple_row
        self.driver.cursor_factory = self.cursors
        self.driver.server_cursor_factory = self.server_cursors
        # The driver remembers what it has prepared, and cannot be told to forget.
        return self.driver.prepare_threshold is None


class SyncTaskConnection(TaskConnection):
    """One for sync handlers."""

    cursors = psycopg.Cursor
    server_cursors = psycopg.ServerCursor

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.driver = connection

    @classmethod
    async def open(cls, given: Mapping[str, Any]) -> SyncTaskConnection:
        """Connect."""
        return cls(psycopg.connect(**given))

    async def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        # Values go into the text: so several statements are one round trip.
        cursor = psycopg.ClientCursor(self.driver, row_factory=tuple_row)
        cursor.execute(sql.encode(), values or None)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description is not None else []

    async def commit(self) -> None:
        self.driver.commit()

    async def rollback(self) -> None:
        self.driver.rollback()

    async def commit_each(self, does: bool) -> None:
        self.driver.autocommit = does

    async def close(self) -> None:
        self.driver.close()


class AsyncTaskConnection(TaskConnection):
    """One for async handlers. Belongs to a loop."""

    cursors = psycopg.AsyncCursor
    server_cursors = psycopg.AsyncServerCursor

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.driver = connection

    @classmethod
    async def open(cls, given: Mapping[str, Any]) -> AsyncTaskConnection:
        """Connect."""
        return cls(await psycopg.AsyncConnection.connect(**given))

    async def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        cursor = psycopg.AsyncClientCursor(self.driver, row_factory=tuple_row)
        await cursor.execute(sql.encode(), values or None)
        while cursor.nextset():
            pass
        return await cursor.fetchall() if cursor.description is not None else []

    async def commit(self) -> None:
        await self.driver.commit()

    async def rollback(self) -> None:
        await self.driver.rollback()

    async def commit_each(self, does: bool) -> None:
        await self.driver.set_autocommit(does)

    async def close(self) -> None:
        await self.driver.close()


class Sessions(ABC):
    """An engine of SQLAlchemy, whose pool keeps the connections that are for sessions."""

    @abstractmethod
    async def lend(self, cache: ConnectionCache, kind: type) -> LentConnection:
        """A connection with a session of this class."""

    @abstractmethod
    async def close(self) -> None:
        """Close what is kept."""


class ConnectionCache:
    """What is kept in one place. ``room`` bounds how many attempts of a loop have one at once; the
    threads are as many as they are.
    """

    def __init__(self, room: asyncio.Semaphore | None) -> None:
        self.room = room
        self.sessions: Sessions | None = None
        self.lock = threading.Lock()
        self._workers = 0
        self._kept: list[TaskConnection] = []

    @property
    def is_used(self) -> bool:
        """A worker lives that could use what is kept."""
        return self._workers > 0

    def join(self) -> None:
        """A worker begins."""
        with self.lock:
            self._workers += 1

    def take(self) -> TaskConnection | None:
        """The connection that was used last; None: there is none."""
        with self.lock:
            return self._kept.pop() if self._kept else None

    def keep(self, connection: TaskConnection) -> bool:
        """Keep one for the next attempt; False: it is not wanted."""
        with self.lock:
            if not self.is_used or len(self._kept) >= KEPT:
                return False
            self._kept.append(connection)
            return True

    async def leave(self) -> None:
        """A worker has ended; after the last one nothing is kept."""
        with self.lock:
            self._workers -= 1
            if self.is_used:
                return
            kept, self._kept = self._kept, []
            sessions, self.sessions = self.sessions, None
        for connection in kept:
            await connection.close()
        if sessions is not None:
            await sessions.close()


class ConnectionCaches:
    """The kept connections of one app, by process and loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_place: dict[tuple[int, int], ConnectionCache] = {}

    def mine(self, *, is_async: bool) -> ConnectionCache:
        """The one for this loop, or for the threads of this process."""
        place = os.getpid(), id(asyncio.get_running_loop()) if is_async else 0
        found = self._by_place.get(place)
        if found is None:
            room = asyncio.Semaphore(self._most) if is_async else None
            found = self._by_place.setdefault(place, ConnectionCache(room))
        return found

    def join(self) -> None:
        """A worker begins on this loop."""
        for is_async in (False, True):
            self.mine(is_async=is_async).join()

    async def leave(self) -> None:
        """It has ended."""
        for is_async in (False, True):
            await self.mine(is_async=is_async).leave()
        if not self.mine(is_async=True).is_used:
            # The next loop may have the same place in memory.
            del self._by_place[os.getpid(), id(asyncio.get_running_loop())]


class LentConnection(ABC):
    """A connection that one attempt has until it gives it back, perhaps with a session."""

    connection: TaskConnection
    session: Any = None

    @abstractmethod
    async def flush(self) -> bool:
        """Send what a session has not sent yet; False: it is not in our transaction any more."""

    @abstractmethod
    async def finish(self, *, keeps: bool) -> None:
        """Give it back if it can be used again; else close it."""


class LentAlone(LentConnection):
    """One without a session."""

    def __init__(self, cache: ConnectionCache, connection: TaskConnection) -> None:
        self.connection = connection
        self._cache = cache

    async def flush(self) -> bool:
        return True  # there is no session

    async def finish(self, *, keeps: bool) -> None:
        is_as_new = self.connection.renew()
        if not (keeps and is_as_new and self._cache.keep(self.connection)):
            await self.connection.close()


async def pause(seconds: float, *, is_async: bool) -> None:
    """Let some time pass, on this loop or in this thread."""
    if is_async:
        await asyncio.sleep(seconds)
    else:
        threading.Event().wait(seconds)
