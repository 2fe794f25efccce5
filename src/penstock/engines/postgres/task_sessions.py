"""Sync sessions of SQLAlchemy around connections of ours.

A session joins a transaction that is not its own: its ``commit`` only flushes, for the end of the
transaction is the end of the job; its ``rollback`` is the handler's own end of it, and found out.
What it does afterwards is in a transaction of its own, which is never committed: there its
``commit`` would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import psycopg
from sqlalchemy import Connection, Engine, create_engine

from penstock.engines.postgres.task_connections import (
    KEPT,
    ConnectionCache,
    LentConnection,
    Sessions,
    SyncTaskConnection,
)

DIALECT: Final = "postgresql+psycopg://"
JOINED: Final = "rollback_only"


class _LentWithSession(LentConnection):
    def __init__(self, cache: ConnectionCache, connection: Connection, kind: type) -> None:
        self._cache = cache
        self._connection = connection
        self.connection = SyncTaskConnection(cast(Any, connection.connection.driver_connection))
        self._transaction = connection.begin()
        self.session = kind(bind=connection, join_transaction_mode=JOINED)

    async def flush(self) -> bool:
        if not self._transaction.is_active:
            return False
        self.session.commit()
        return True

    async def finish(self, *, keeps: bool) -> None:
        if not keeps or not self._cache.is_used:
            self._connection.invalidate()
        self.session.close()
        self._connection.close()


class SyncSessions(Sessions):
    """For sync handlers."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._engine: Engine = create_engine(
            DIALECT,
            creator=lambda: psycopg.connect(**given),
            pool_size=KEPT,
            max_overflow=-1,
            pool_pre_ping=True,
        )

    async def lend(self, cache: ConnectionCache, kind: type) -> LentConnection:
        return _LentWithSession(cache, self._engine.connect(), kind)

    async def close(self) -> None:
        self._engine.dispose()
