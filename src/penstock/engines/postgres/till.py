"""The connection of the counter: prepared statements with texts for values, and nothing else.

The driver's cursors cost a caller more than the server needs to store a job. Here a statement is
sent as the library of PostgreSQL takes it, and its end is awaited so that a signal is heard and a
time limit is kept. One thread at a time may use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import errors, generators, pq, waiting

from penstock.engines.postgres.link import ALIVE, FIRST_QUESTION, ISOLATION, Backend

_FINE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_HEARING: Final = 0.1
"""Seconds after which a signal is heard."""


class Statement(NamedTuple):
    """A statement by its name; its values are texts, given as ``$1``, ``$2``."""

    name: bytes
    sql: str


class Till:
    """One connection in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[Any], backend: Backend) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prepared: set[bytes] = set()
        self._owes = False
        self.backend = backend
        self.instant: float | None = None
        """What the clock of this session was set to, where a test sets it."""

    @property
    def is_at_rest(self) -> bool:
        """It is open, and nobody waits for a statement."""
        rest = pq.TransactionStatus.ACTIVE if self._owes else pq.TransactionStatus.IDLE
        return self._pgconn.transaction_status == rest

    def run(
        self, statement: Statement, values: Sequence[bytes | None], limit: float | None
    ) -> None:
        """Run a statement as a transaction of its own, and do not read what it returns.

        On failure: what the driver raises; ``errors._WaitTimeout`` after ``limit`` seconds.
        """
        self._prepare(statement, limit)
        self._pgconn.send_query_prepared(statement.name, values)
        self._end(limit)

    def post(
        self, statement: Statement, values: Sequence[bytes | None], limit: float | None
    ) -> None:
        """Send a statement and do not wait for it; whoever comes next reads the reply."""
        self._prepare(statement, limit)
        self._pgconn.send_query_prepared(statement.name, values)
        self._pgconn.flush()
        self._owes = True

    def set_clock(self, instant: float | None, limit: float | None) -> None:
        """Let the session think that it is this instant; None: the server's own clock says."""
        if instant != self.instant:
            self._settle_debts(limit)
            self._pgconn.send_query(f"SET penstock_clock.now = '{instant!r}'".encode())
            self._end(limit)
            self.instant = instant

    def close(self) -> None:
        """Close it, at once."""
        self._connection.close()

    def _prepare(self, statement: Statement, limit: float | None) -> None:
        self._settle_debts(limit)
        if statement.name not in self._prepared:
            self._pgconn.send_prepare(statement.name, statement.sql.encode())
            self._end(limit)
            self._prepared.add(statement.name)

    def _settle_debts(self, limit: float | None) -> None:
        if self._owes:
            self._owes = False
            self._results(limit)

    def _end(self, limit: float | None) -> None:
        for result in self._results(limit):
            if result.status not in _FINE:
                raise errors.error_from_result(result, encoding="utf-8")

    def _results(self, limit: float | None) -> list[pq.abc.PGresult]:
        return waiting.wait(generators.execute(self._pgconn), self._pgconn.socket, _HEARING, limit)


def open_till(dsn: str, given: Mapping[str, object], timeout: float) -> Till | None:
    """Connect; None: a pooler is in between, or transactions are not isolated as usual."""
    options: dict[str, Any] = {name: each for name, each in ALIVE.items() if name not in given}
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        application_name="penstock",
        connect_timeout=max(2, round(timeout)),
        client_encoding="utf8",
        **options,
    )
    try:
        ((pid, begun, isolation),) = connection.execute(FIRST_QUESTION).fetchall()
    except BaseException:
        connection.close()
        raise
    if pid != connection.info.backend_pid or isolation != ISOLATION:
        connection.close()
        return None
    return Till(connection, Backend(pid, begun))
