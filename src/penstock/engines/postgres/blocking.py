"""The blocking way into a PostgreSQL store: the calling thread stores its jobs by itself.

To hand jobs over to the engine's event loop and back costs about as much as storing one. So a
thread that may block uses one connection of its own process, under a lock that is tried and never
waited for: a caller that finds it taken goes to ``enqueue``, where the batcher shares commits. What
cannot be stored here at the first try goes there, too, and every error is named there.

Statements go to libpq directly: the driver's cursors cost a caller more than the server needs to
store a job. The wake-up after the commit is sent without waiting for its reply, which the next
``put`` reads.

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| the caller is interrupted, or its      | the connection is closed and its backend abandoned: the |
| timeout passes                         | next call on the engine ends it before it does anything |
| the connection breaks                  | ``put`` returns None; ``enqueue`` sends the same ids,   |
|                                        | and looks for them first                                |
| a signal handler or finaliser enqueues | the lock is taken, so that it goes to ``enqueue``       |
| in the middle of a ``put``             |                                                         |
| the process forks                      | the child forgets lock and connection, closes neither,  |
|                                        | and opens a connection of its own                       |
| no connection can be opened            | none is tried for ten times as long as that took        |
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

import psycopg
from psycopg import errors, generators, pq, waiting

from penstock.clock import SystemClock
from penstock.core.job import Draft, payloads_of
from penstock.engines.postgres.connection import (
    FINE,
    ISOLATION,
    SQL,
    Backend,
    Statement,
    Texts,
    options,
)
from penstock.engines.postgres.draft_columns import Columns, parts, to_columns
from penstock.engines.postgres.enqueue import Doubt, prepared
from penstock.engines.postgres.errors import NAME, named_errors
from penstock.engines.postgres.rows import Row
from penstock.engines.records import Receipt
from penstock.errors import EngineTimeout

MOST_BYTES: Final = 4 << 20
"""Payloads of several jobs that are stored by one statement; ``enqueue`` sends more in parts."""
RETRY_AFTER: Final = (10, 30.0)
"""After a connection could not be opened: how many times as long as that took none is tried, and
how many seconds at most. Where connections are swallowed, each caller would wait for one."""
LAST_REPLY: Final = 0.5
"""Seconds that the reply to the last wake-up may take when the connection is closed."""
_SIGNALS: Final = 0.1
"""Seconds after which a waiting thread handles signals."""


class PostgresInlet:
    """See ``Inlet``. One per engine; any thread may call."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        connect_timeout: float,
        *,
        doubt: Doubt,
        instant: Callable[[], float | None],
        abandon: Callable[[Backend], object],
    ) -> None:
        """``instant`` is what a test says the time is. ``abandon`` is told of a backend that may
        still do what its caller has given up.
        """
        self._dsn = dsn
        self._connect_timeout = connect_timeout
        self._doubt = doubt
        self._instant = instant
        self._abandon = abandon
        self._put = prepared("put", schema)
        self._wake = prepared("wake", schema)
        self._is_open = True
        self._forget()

    def _forget(self) -> None:
        """After a fork: what is known here is the parent's."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection: BlockingConnection | None = None
        self._retry_at = -inf

    def put(self, drafts: Sequence[Draft], timeout: float | None) -> list[Receipt] | None:
        """See ``Inlet``."""
        if self._pid != os.getpid():
            self._forget()
        if not self._is_open or (
            len(drafts) > 1 and sum(map(len, payloads_of(drafts))) > MOST_BYTES
        ):
            return None
        with named_errors():
            part, *others = parts(drafts)
            if others:
                return None
            columns = to_columns(part.drafts)
            held: list[bool] = []
            try:
                # Taken and noted in one call of C: after any other one a signal handler may raise.
                held.extend(map(self._lock.acquire, (False,)))
                if held == [False]:
                    return None
                refused = self._store(drafts, columns, timeout)
            finally:
                if held == [True]:
                    self._lock.release()
                    if not self._is_open:
                        self.close()
        return None if refused is None else part.receipts(refused)

    def close(self) -> None:
        """Close the connection; a caller that uses it now does so when it is done."""
        self._is_open = False
        if self._pid == os.getpid() and self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()

    # --- with the lock held --------------------------------------------------------------------

    def _store(
        self, drafts: Sequence[Draft], columns: Columns, timeout: float | None
    ) -> list[Row] | None:
        """Return those that were refused; None: they may be stored all the same."""
        now = SystemClock.monotonic()
        if now < self._retry_at:
            return None
        until = inf if timeout is None else now + timeout
        try:
            if self._connection is None:
                self._connection = self._opened(until)
            if self._connection is None:
                self._is_open = False  # behind a pooler: the engine's pool knows how
                return None
            try:
                return self._send(self._connection, columns, until)
            except BaseException:
                if not self._connection.is_at_rest:
                    self._abandon(self._connection.backend)
                self._drop()
                raise
        except BaseException as error:
            self._doubt.add(drafts)
            if isinstance(error, errors._WaitTimeout) and SystemClock.monotonic() >= until:
                what = "enqueue" if len(drafts) == 1 else f"{len(drafts)} jobs"
                why = f"{what} took longer than {timeout:g} s"
                raise EngineTimeout(NAME, why) from error
            if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.DataError):
                return None  # ``enqueue`` says what is wrong, or that they are stored
            raise

    def _opened(self, until: float) -> BlockingConnection | None:
        began_at = SystemClock.monotonic()
        try:
            return connect(self._dsn, self._connect_timeout, until)
        except psycopg.Error:
            now, (times, most) = SystemClock.monotonic(), RETRY_AFTER
            self._retry_at = now + min(most, times * (now - began_at))
            raise

    def _send(self, connection: BlockingConnection, columns: Columns, until: float) -> list[Row]:
        connection.set_clock(self._instant(), until)
        values = columns.texts(self._doubt.since, is_careful=False)
        refused = connection.run(self._put, values, until)
        connection.post(self._wake, [], until)
        return refused

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class BlockingConnection:
    """A connection in autocommit mode: prepared statements with texts for values, nothing else."""

    def __init__(self, connection: psycopg.Connection[Any], backend: Backend) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prepared: set[bytes] = set()
        self._owes_reply = False
        self._clock: float | None = None
        self.backend = backend

    @property
    def is_at_rest(self) -> bool:
        """It is open, and no caller's statement is under way."""
        rest = pq.TransactionStatus.ACTIVE if self._owes_reply else pq.TransactionStatus.IDLE
        return self._pgconn.transaction_status == rest

    def run(self, statement: Statement, values: Texts, until: float) -> list[Row]:
        """Run a statement as a transaction of its own; return what it returns, as texts.

        On failure: what the driver raises; ``errors._WaitTimeout`` at the instant ``until``.
        """
        self._prepare(statement, until)
        self._pgconn.send_query_prepared(statement.name, values)
        return _rows(self._pgconn, until)

    def post(self, statement: Statement, values: Texts, until: float) -> None:
        """Send a statement without waiting for its reply."""
        self._prepare(statement, until)
        self._pgconn.send_query_prepared(statement.name, values)
        self._pgconn.flush()
        self._owes_reply = True

    def set_clock(self, instant: float | None, until: float) -> None:
        """Let the session believe that it is this instant; None: the server's clock counts."""
        if instant != self._clock:
            self._read_reply(until)
            self._pgconn.send_query(f"SET penstock_clock.now = '{instant!r}'".encode())
            _rows(self._pgconn, until)
            self._clock = instant

    def close(self) -> None:
        """Close it; a wake-up that was sent before has been heard, or took too long."""
        if self.is_at_rest:
            with suppress(psycopg.Error):
                self._read_reply(SystemClock.monotonic() + LAST_REPLY)
        self._connection.close()

    def _prepare(self, statement: Statement, until: float) -> None:
        self._read_reply(until)
        if statement.name not in self._prepared:
            self._pgconn.send_prepare(statement.name, statement.sql.encode())
            _rows(self._pgconn, until)
            self._prepared.add(statement.name)

    def _read_reply(self, until: float) -> None:
        if self._owes_reply:
            self._owes_reply = False
            _results(self._pgconn, until)


def connect(dsn: str, timeout: float, until: float) -> BlockingConnection | None:
    """Connect; None: a pooler is in between, or transactions are not isolated as usual.

    On failure: what the driver raises; ``errors._WaitTimeout`` if the server accepts the connection
    and does not answer.
    """
    left = min(timeout, until - SystemClock.monotonic())
    connection = psycopg.connect(dsn, **options(dsn, "penstock", left))
    try:
        connection.pgconn.send_query(SQL["identify"].encode())
        (result,) = _results(connection.pgconn, min(until, SystemClock.monotonic() + timeout))
        if result.status not in FINE:
            raise errors.error_from_result(result, encoding="utf-8")
        pid, begun, isolation = ((result.get_value(0, n) or b"").decode() for n in range(3))
    except BaseException:
        connection.close()
        raise
    if int(pid) != connection.info.backend_pid or isolation != ISOLATION:
        connection.close()
        return None
    return BlockingConnection(connection, Backend(int(pid), begun))


def _rows(pgconn: pq.abc.PGconn, until: float) -> list[Row]:
    (result,) = _results(pgconn, until)
    if result.status not in FINE:
        raise errors.error_from_result(result, encoding="utf-8")
    return [
        tuple((result.get_value(row, column) or b"").decode() for column in range(result.nfields))
        for row in range(result.ntuples)
    ]


def _results(pgconn: pq.abc.PGconn, until: float) -> list[pq.abc.PGresult]:
    left = max(0.0, until - SystemClock.monotonic())
    limit = None if left == inf else left
    return waiting.wait(generators.execute(pgconn), pgconn.socket, _SIGNALS, limit)
