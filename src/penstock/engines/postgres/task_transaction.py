"""Transactional tasks on PostgreSQL: handlers write in the transaction that settles their job.

A connection is made ready in two steps: what the user before has left in its session is removed,
then the transaction begins, with limits of its own and a mark. The mark is gone when the handler
ends the transaction, whatever it begins afterwards: so ``penstock.succeed`` finds that out.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from penstock.core.job import Draft, Job
from penstock.core.transactions import Effect, Effects, Need, Supply
from penstock.engines.postgres import schema as schemas
from penstock.engines.postgres.draft_columns import parts, to_columns
from penstock.engines.postgres.errors import named_errors
from penstock.engines.postgres.rows import free_text
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.task_connections import (
    AsyncTaskConnection,
    ConnectionCache,
    ConnectionCaches,
    LentAlone,
    LentConnection,
    Sessions,
    SyncTaskConnection,
    TaskConnection,
    pause,
)
from penstock.engines.sql_files import statements
from penstock.errors import CommitLost, TransactionAborted, TransactionEnded

GRACE: Final = 5.0
"""Seconds beyond its timeout that a silent transaction stays open on the server."""
PATIENCE: Final = 600.0
"""Seconds to look for a server that did not answer a COMMIT."""
ENDED: Final = "PS004"
"""``succeed`` found itself in another transaction."""

SQL: Final = statements("postgres/task_transaction.sql")
FOLLOW: Final = statements("postgres/enqueue.sql")["put_for_caller"].replace(":drafts", "%s")

_KEEPALIVE: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""How a server is noticed that is gone without a word, unless the URL says otherwise."""

_SESSIONS: Final = (
    ("sqlalchemy.orm", "Session", False),
    ("sqlalchemy.ext.asyncio", "AsyncSession", True),
)


class PostgresEffects(Effects):
    """Transactions of one app's attempts, in the database of its jobs."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = schemas.DEFAULT,
        transactions: int = 10,
        connect_timeout: float = 5.0,
        is_direct: bool = True,
    ) -> None:
        """``transactions`` is how many async attempts of a process have a connection at once; more
        wait for one. Unless the way is direct, a pooler sees to what is left in a session.
        """
        self._schema = schemas.check_name(schema)
        self._is_direct = is_direct
        self._caches = ConnectionCaches(transactions)
        self._given: dict[str, Any] = {
            **_KEEPALIVE,
            **conninfo_to_dict(dsn),
            "application_name": "penstock transaction",
            "connect_timeout": max(2, round(connect_timeout)),
            "client_encoding": "utf8",
            # What a pooler gives to others must not be referred to by name.
            "prepare_threshold": None,
        }

    def supply(self, kind: type) -> Supply | None:
        if kind in (psycopg.Connection, psycopg.AsyncConnection):
            return Supply(kind is psycopg.AsyncConnection)
        for module, name, is_async in _SESSIONS:
            # Who has such a parameter has imported it.
            session = getattr(sys.modules.get(module), name, None)
            if session is not None and issubclass(kind, session):
                return Supply(is_async, kind)
        return None

    def join(self) -> None:
        self._caches.join()

    async def leave(self) -> None:
        await self._caches.leave()

    async def begin(self, job: Job, need: Need) -> PostgresEffect:
        cache = self._caches.mine(is_async=need.is_async)
        if cache.room is not None:
            await cache.room.acquire()
        try:
            mark = os.urandom(8).hex()
            with named_errors():
                return PostgresEffect(self, job, mark, cache, await self._begun(cache, need, mark))
        except BaseException:
            if cache.room is not None:
                cache.room.release()
            raise

    async def _begun(self, cache: ConnectionCache, need: Need, mark: str) -> LentConnection:
        while True:
            kept = cache.take() if need.session is None else None
            lent = LentAlone(cache, kept) if kept is not None else await self._lend(cache, need)
            try:
                await self._make_ready(lent.connection, need.timeout, mark)
                return lent
            except BaseException as error:
                await lent.finish(keeps=False)
                if kept is None or not isinstance(error, psycopg.OperationalError):
                    raise
                # It broke while it was idle: the next one may be sound, and a new one is.

    async def _lend(self, cache: ConnectionCache, need: Need) -> LentConnection:
        if need.session is None:
            return LentAlone(cache, await self.connect(is_async=need.is_async))
        with cache.lock:
            if cache.sessions is None:
                cache.sessions = self._sessions(is_async=need.is_async)
            lender = cache.sessions
        return await lender.lend(cache, need.session)

    def _sessions(self, *, is_async: bool) -> Sessions:
        # SQLAlchemy's async module needs greenlet; an app with sync sessions may not have it.
        if is_async:
            from penstock.engines.postgres.async_task_sessions import AsyncSessions

            return AsyncSessions(self._given)
        from penstock.engines.postgres.task_sessions import SyncSessions

        return SyncSessions(self._given)

    async def _make_ready(self, connection: TaskConnection, timeout: float, mark: str) -> None:
        reset = f"{SQL['reset']}; " if self._is_direct else ""
        await connection.commit_each(True)
        ((statement, idle),) = await connection.rows(reset + SQL["limits"])
        await connection.commit_each(False)
        begin = SQL["begin"].format(
            statement=_least(statement, timeout), idle=_least(idle, timeout + GRACE), mark=mark
        )
        await connection.rows(begin)

    async def connect(self, *, is_async: bool) -> TaskConnection:
        """A new connection."""
        return await (AsyncTaskConnection if is_async else SyncTaskConnection).open(self._given)

    def placed(self, sql: str) -> str:
        """A statement for the schema that holds the store."""
        return placed(sql, self._schema)


def _least(decided: int, timeout: float) -> int:
    """Milliseconds; 0 means that nothing less was decided."""
    ours = max(1, round(1000 * timeout))
    return min(decided, ours) if decided else ours


class PostgresEffect(Effect):
    """The transaction of one attempt."""

    def __init__(
        self,
        effects: PostgresEffects,
        job: Job,
        mark: str,
        cache: ConnectionCache,
        lent: LentConnection,
    ) -> None:
        self._effects = effects
        self._job = job
        self._fence = (job.id, job.claim, job.worker)
        self._mark = mark
        self._cache = cache
        self._lent = lent
        self._is_async = isinstance(lent.connection, AsyncTaskConnection)

    @property
    def connection(self) -> Any:
        return self._lent.connection.driver

    @property
    def session(self) -> Any:
        return self._lent.session

    async def settle(
        self,
        result: bytes,
        *,
        progress: float | None = None,
        note: str | None = None,
        then: Sequence[Draft] = (),
    ) -> bool:
        try:
            self._check()
            if not await self._lent.flush():
                raise TransactionEnded(self._job.task)
            if not await self._succeed(result, progress, note):
                await self._lent.connection.rollback()
                return False
            if then:
                await self._follow(then)
            try:
                await self._lent.connection.commit()
                return True
            except psycopg.Error as error:
                if not self.connection.closed:
                    raise  # the server has refused it
                return await self._look(error)
        finally:
            await self._finish()

    async def undo(self, *, at_once: bool = False) -> None:
        with contextlib.suppress(psycopg.Error):
            if not at_once:
                await self._lent.connection.rollback()
        await self._finish()

    def _check(self) -> None:
        """Refuse to settle in a transaction that is over, or that could not commit."""
        if self.connection.broken:
            raise psycopg.OperationalError("the connection was lost")
        match self._lent.connection.status:
            case TransactionStatus.IDLE | TransactionStatus.UNKNOWN:
                raise TransactionEnded(self._job.task)
            case TransactionStatus.INERROR:
                raise TransactionAborted(self._job.task)

    async def _succeed(self, result: bytes, progress: float | None, note: str | None) -> bool:
        values = (*self._fence, result, self._mark, progress, free_text(note))
        try:
            ((is_settled,),) = await self._lent.connection.rows(
                self._effects.placed(SQL["succeed"]), values
            )
        except psycopg.Error as error:
            if error.sqlstate == ENDED:
                raise TransactionEnded(self._job.task) from None
            raise
        return bool(is_settled)

    async def _follow(self, drafts: Sequence[Draft]) -> None:
        put = self._effects.placed(FOLLOW)
        for part in parts(drafts):
            await self._lent.connection.rows(put, (to_columns(part.drafts).json(),))

    async def _look(self, error: psycopg.Error) -> bool:
        """What became of a COMMIT whose answer was lost, however long the server is away."""
        delay, waited = 0.05, 0.0
        while True:
            try:
                answer = await self._ask()
                break
            except (psycopg.Error, OSError):
                if waited > PATIENCE:
                    raise CommitLost(self._job.task, is_known=False) from error
            await pause(delay, is_async=self._is_async)
            waited, delay = waited + delay, min(2 * delay, 2.0)
        if answer is False:
            raise CommitLost(self._job.task, is_known=True) from error
        return bool(answer)

    async def _ask(self) -> bool | None:
        connection = await self._effects.connect(
            is_async=isinstance(self._lent.connection, AsyncTaskConnection)
        )
        try:
            await connection.commit_each(True)
            ((answer,),) = await connection.rows(
                self._effects.placed(SQL["has_succeeded"]), self._fence
            )
        finally:
            await connection.close()
        found: bool | None = answer
        return found

    async def _finish(self) -> None:
        try:
            keeps = self._lent.connection.status == TransactionStatus.IDLE
            await self._lent.finish(keeps=keeps)
        finally:
            if self._cache.room is not None:
                self._cache.room.release()
