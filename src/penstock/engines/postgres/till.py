"""The connection of the counter: prepared statements with texts for values, and nothing else.

The driver's cursors cost a caller more than the server needs to store a job. Here a statement is
sent as the library of PostgreSQL takes it, and its end is awaited so that a signal is heard and a
time limit is kept; or an event loop listens to it, and nobody waits. One thread at a time may use
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final

import psycopg
from psycopg import errors, generators, pq, waiting

from penstock.clock import SystemClock
from penstock.engines.postgres.connection import (
    ALIVE,
    FIRST_QUESTION,
    ISOLATION,
    Backend,
    Statement,
    Texts,
    hang_up,
)

_FINE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_HEARING: Final = 0.1
"""Seconds after which a signal is heard."""


class Till:
    """One connection in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[Any], backend: Backend) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prepared: set[bytes] = set()
        self._owes = False
        self._heard: list[pq.abc.PGresult] = []
        self.backend = backend
        self.instant: float | None = None
        """What the clock of this session was set to, where a test sets it."""

    @property
    def is_at_rest(self) -> bool:
        """It is open, and nobody waits for a statement."""
        rest = pq.TransactionStatus.ACTIVE if self._owes else pq.TransactionStatus.IDLE
        return self._pgconn.transaction_status == rest

    def run(self, statement: Statement, values: Texts, until: float) -> bytes | None:
        """Run a statement as a transaction of its own; return the first value that it returns.

        On failure: what the driver raises; ``errors._WaitTimeout`` at the instant ``until``.
        """
        self._prepare(statement, until)
        self._pgconn.send_query_prepared(statement.name, values)
        return self._end(until)

    def post(self, statement: Statement, values: Texts, until: float) -> None:
        """Send a statement and do not wait for it; whoever comes next reads the reply."""
        self._prepare(statement, until)
        self._pgconn.send_query_prepared(statement.name, values)
        self._pgconn.flush()
        self._owes = True

    def set_clock(self, instant: float | None, until: float) -> None:
        """Let the session think that it is this instant; None: the server's own clock says."""
        if instant != self.instant:
            self._settle_debts(until)
            self._pgconn.send_query(f"SET penstock_clock.now = '{instant!r}'".encode())
            self._end(until)
            self.instant = instant

    # --- for a loop that listens to it -----------------------------------------------------------

    def fileno(self) -> int:
        """What a loop listens to."""
        return self._pgconn.socket

    def prepare(self, statements: Iterable[Statement], until: float) -> None:
        """Prepare what will be sent."""
        for statement in statements:
            self._prepare(statement, until)

    def send(self, statement: Statement, values: Texts) -> bool:
        """Send a statement that is prepared, and do not wait; False: see ``flush``."""
        self._pgconn.send_query_prepared(statement.name, values)
        return self.flush()

    def flush(self) -> bool:
        """Send the rest of it; False: call again when more can be written, or something is read."""
        return not self._pgconn.flush()

    def hear(self) -> bool:
        """Take in what has come; True: nothing more will."""
        self._pgconn.consume_input()
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                return True
            self._heard.append(result)
        return False

    def reply(self) -> bytes | None:
        """What ``run`` returns, when all of it was heard."""
        results, self._heard = self._heard, []
        return _value(results)

    def say_last(self, words: Iterable[tuple[Statement, Texts]]) -> None:
        """Send statements that are prepared, with nobody to hear what becomes of them: they are on
        their way when this is closed now.
        """
        self._pgconn.enter_pipeline_mode()
        for statement, values in words:
            self._pgconn.send_query_prepared(statement.name, values)
        self._pgconn.pipeline_sync()
        self._pgconn.flush()

    # --- its end ---------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End the connection under whoever uses it: they get an error. Any thread may call."""
        hang_up(self._pgconn)

    def close(self) -> None:
        """Close it, at once."""
        self._connection.close()

    def _prepare(self, statement: Statement, until: float) -> None:
        self._settle_debts(until)
        if statement.name not in self._prepared:
            self._pgconn.send_prepare(statement.name, statement.sql.encode())
            self._end(until)
            self._prepared.add(statement.name)

    def _settle_debts(self, until: float) -> None:
        if self._owes:
            self._owes = False
            _results(self._pgconn, until)

    def _end(self, until: float) -> bytes | None:
        return _value(_results(self._pgconn, until))


def _value(results: list[pq.abc.PGresult]) -> bytes | None:
    (result,) = results
    if result.status not in _FINE:
        raise errors.error_from_result(result, encoding="utf-8")
    return result.get_value(0, 0) if result.ntuples else None


def _results(pgconn: pq.abc.PGconn, until: float) -> list[pq.abc.PGresult]:
    """What the server answers to what was sent."""
    left = max(0.0, until - SystemClock.monotonic())
    limit = None if left == inf else left
    return waiting.wait(generators.execute(pgconn), pgconn.socket, _HEARING, limit)


def open_till(dsn: str, given: Mapping[str, object], timeout: float, until: float) -> Till | None:
    """Connect; None: a pooler is in between, or transactions are not isolated as usual.

    On failure: what the driver raises; ``errors._WaitTimeout`` if the server lets us in and does
    not answer until then.
    """
    options: dict[str, Any] = {name: each for name, each in ALIVE.items() if name not in given}
    left = min(timeout, until - SystemClock.monotonic())
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        application_name="penstock",
        connect_timeout=max(2, round(left)),
        client_encoding="utf8",
        **options,
    )
    try:
        connection.pgconn.send_query(FIRST_QUESTION.encode())
        asked_at = SystemClock.monotonic()
        (result,) = _results(connection.pgconn, min(until, asked_at + timeout))
        if result.status not in _FINE:
            raise errors.error_from_result(result, encoding="utf-8")
        pid, begun, isolation = ((result.get_value(0, n) or b"").decode() for n in range(3))
    except BaseException:
        connection.close()
        raise
    if int(pid) != connection.info.backend_pid or isolation != ISOLATION:
        connection.close()
        return None
    return Till(connection, Backend(int(pid), begun))
