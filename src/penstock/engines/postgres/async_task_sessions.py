"""Async sessions of SQLAlchemy around connections of ours, by the rules of ``task_sessions``.

They are a module of their own because ``sqlalchemy.ext.asyncio`` needs greenlet, which SQLAlchemy
does not install by itself: sync sessions must work without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncTransaction, create_async_engine

from penstock.engines.postgres.task_connections import (
    KEPT,
    AsyncTaskConnection,
    ConnectionCache,
    LentConnection,
    Sessions,
    TaskConnection,
)
from penstock.engines.postgres.task_sessions import DIALECT, JOINED


class _LentWithAsyncSession(LentConnection):
    def __init__(
        self,
        cache: ConnectionCache,
        transaction: AsyncTransaction,
        connection: TaskConnection,
        kind: type,
    ) -> None:
        self._cache = cache
        self._transaction = transaction
        self._connection = transaction.connection
        self.connection = connection
        self.session = kind(bind=transaction.connection, join_transaction_mode=JOINED)

    async def flush(self) -> bool:
        if not self._transaction.is_active:
            return False
        await self.session.commit()
        return True

    async def finish(self, *, keeps: bool) -> None:
        if not keeps or not self._cache.is_used:
            await self._connection.invalidate()
        await self.session.close()
        await self._connection.close()


class AsyncSessions(Sessions):
    """For async handlers, on one loop."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        async def connect() -> psycopg.AsyncConnection[Any]:
            return await psycopg.AsyncConnection.connect(**given)

        self._engine: AsyncEngine = create_async_engine(
            DIALECT,
            async_creator=connect,
            pool_size=KEPT,
            max_overflow=-1,
            pool_pre_ping=True,
        )

    async def lend(self, cache: ConnectionCache, kind: type) -> LentConnection:
        connection = await self._engine.connect()
        try:
            raw = await connection.get_raw_connection()
            lent = AsyncTaskConnection(cast(Any, raw.driver_connection))
            transaction = await connection.begin()
        except BaseException:
            await connection.invalidate()
            await connection.close()
            raise
        return _LentWithAsyncSession(cache, transaction, lent, kind)

    async def close(self) -> None:
        await self._engine.dispose()
