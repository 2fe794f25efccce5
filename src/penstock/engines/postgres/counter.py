"""The counter of a PostgreSQL store: where a thread that may block hands a job in by itself.

A hand-over to the handle's loop and back costs as much as storing a job. So whoever finds the
counter free serves itself, on its own thread and a connection of the counter's own. Whoever does
not goes to the loop, where all who come meanwhile share a commit: single callers save the way, many
share commits.

| if                                      | then                                                  |
|-----------------------------------------|-------------------------------------------------------|
| a caller is interrupted, or its time is | the connection is closed, and abandoned: whoever uses |
| over                                    | the handle next sees to it that the server ended it   |
| the connection breaks                   | the caller goes to the loop and sends the same id     |
|                                         | again, which is looked for first                      |
| a signal handler, or a finaliser,       | it finds the counter taken, and goes to the loop      |
| enqueues in the middle of an enqueue    |                                                       |
| the process forks                       | the child has no connection, and opens one            |
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg import errors, generators, pq, waiting

from penstock.clock import SystemClock
from penstock.engines.postgres.link import ALIVE, FIRST_QUESTION, ISOLATION, Backend
from penstock.engines.postgres.rows import Row
from penstock.errors import EngineTimeout

CROWD: Final = 0.002
"""Seconds between two callers who are taken for many."""


class _Connection(psycopg.Connection[Any]):
    """A connection whose caller does not wait for ever."""

    limit: float | None = None
    backend: Backend

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return waiting.wait(gen, self.pgconn.socket, interval=interval, timeout=self.limit)


class Counter:
    """One handle's counter; any thread may come to it."""

    def __init__(
        self,
        dsn: str,
        given: Mapping[str, object],
        name: str,
        timeout: float,
        abandon: Callable[[Backend], object],
    ) -> None:
        """``abandon`` is told of what may still be served when its caller has left."""
        self._dsn = dsn
        self._abandon = abandon
        self._options: dict[str, Any] = {
            option: value for option, value in ALIVE.items() if option not in given
        }
        self._name = name
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._pid = os.getpid()
        self._instant: float | None = None
        self._owes = False
        self._is_open = True
        self._last = (0, 0.0)

    def close(self) -> None:
        """Let the connection go, or leave that to who uses it; whoever comes later goes to the
        loop. Waits for nobody.
        """
        self._is_open = False
        if self._pid == os.getpid():
            self._tidy()

    def call(
        self, sql: str, values: Row, wake: str, instant: float | None, timeout: float | None
    ) -> list[Row] | None:
        """Run one statement as a transaction of its own, and then ``wake``; None: somebody is in
        the way, so go to the loop.

        On failure: what the driver raises, ``EngineTimeout``; both may have happened all the same.
        """
        if self._pid != os.getpid():
            # What a fork copied is its parent's: a new lock, and nothing is closed.
            self._lock, self._connection, self._pid = threading.Lock(), None, os.getpid()
        if not self._is_open or self._is_crowded() or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._call(sql, values, wake, instant, timeout)
        finally:
            if self._connection is not None and not self._is_at_rest(self._connection):
                self._abandon(self._connection.backend)
                self._drop()
            self._lock.release()
            if not self._is_open:
                self._tidy()

    def _tidy(self) -> None:
        """Let the connection go, unless somebody is there: they look once more when they leave."""
        if self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()

    def _is_crowded(self) -> bool:
        """Another thread was here a moment ago, so that two will meet: sharing costs both less."""
        (before, at), me, now = self._last, threading.get_ident(), SystemClock.monotonic()
        self._last = me, now
        return before != me and now - at < CROWD

    def _call(
        self, sql: str, values: Row, wake: str, instant: float | None, timeout: float | None
    ) -> list[Row] | None:
        connection = self._connection or self._connect()
        if connection is None:
            return None
        connection.limit = timeout
        try:
            self._settle_debts(connection)
            if instant != self._instant:
                connection.execute(f"SET penstock_clock.now = '{instant!r}'".encode())
                self._instant = instant
            cursor = connection.cursor(binary=True)
            rows = cursor.execute(sql.encode(), values, prepare=True).fetchall()
        except errors._WaitTimeout as error:
            raise EngineTimeout(self._name, f"enqueue took longer than {timeout:g} s") from error
        connection.pgconn.send_query(wake.encode())
        connection.pgconn.flush()
        self._owes = True
        return rows

    def _connect(self) -> _Connection | None:
        connection = _Connection.connect(
            self._dsn,
            autocommit=True,
            application_name="penstock",
            connect_timeout=max(2, round(self._timeout)),
            client_encoding="utf8",
            **self._options,
        )
        try:
            ((pid, begun, isolation),) = connection.execute(FIRST_QUESTION).fetchall()
        except BaseException:
            connection.close()
            raise
        if pid != connection.info.backend_pid or isolation != ISOLATION:
            # A pooler is in between, or somebody has other plans: the loop knows what to do.
            self._is_open = False
            connection.close()
            return None
        connection.backend = Backend(pid, begun)
        self._connection, self._owes, self._instant = connection, False, None
        return connection

    def _settle_debts(self, connection: _Connection) -> None:
        """Read the reply to the wake-up before."""
        if self._owes:
            self._owes = False
            connection.wait(generators.send(connection.pgconn))
            connection.wait(generators.fetch_many(connection.pgconn))

    def _is_at_rest(self, connection: _Connection) -> bool:
        rest = pq.TransactionStatus.ACTIVE if self._owes else pq.TransactionStatus.IDLE
        return connection.pgconn.transaction_status == rest

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
