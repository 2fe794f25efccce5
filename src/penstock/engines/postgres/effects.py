"""Effects on PostgreSQL: handlers write in the transaction that moves their job to the history.

A connection is made ready in two steps: what the user before has left in its session is removed,
then the transaction begins, with limits of its own and a mark. The mark is gone when the handler
ends the transaction, whatever it begins afterwards: so ``penstock.succeed`` finds that out.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from penstock.core.effects import Effect, Effects, Need, Supply
from penstock.core.job import Job
from penstock.engines.postgres import schema as schemas
from penstock.engines.postgres.loans import Loan, Plain
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.shelf import Shelf, Shelves
from penstock.engines.postgres.troubles import named_errors
from penstock.engines.postgres.wires import Awaited, Blocking, Wire, pause
from penstock.errors import CommitLost, TransactionAborted, TransactionEnded

NAME: Final = "postgresql"
GRACE: Final = 5.0
"""Seconds beyond its timeout that a silent transaction stays open on the server."""
PATIENCE: Final = 600.0
"""Seconds to look for a server that did not answer a COMMIT."""
ENDED: Final = "PS004"
"""``succeed`` found itself in another transaction."""

RESET: Final = (
    "RESET SESSION AUTHORIZATION; RESET ALL; UNLISTEN *; CLOSE ALL; DEALLOCATE ALL;"
    " DISCARD SEQUENCES; DISCARD TEMP; SELECT pg_catalog.pg_advisory_unlock_all(); "
)
LIMITS: Final = (
    "SELECT (1000 * extract(epoch FROM current_setting('statement_timeout')::interval))::bigint,"
    " (1000 * extract(epoch FROM"
    " current_setting('idle_in_transaction_session_timeout')::interval))::bigint"
)
BEGIN: Final = (
    "SET LOCAL statement_timeout = {statement}; "
    "SET LOCAL idle_in_transaction_session_timeout = {idle}; "
    "SET LOCAL penstock_effect.mark = '{mark}'"
)
# The handler may have become somebody who must not settle anything.
SUCCEED: Final = "RESET ROLE; SELECT penstock.succeed(%s, %s, %s, %s, %s)"
HAS_SUCCEEDED: Final = "SELECT penstock.has_succeeded(%s, %s, %s)"

_WATCHED: Final = {
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
        self._shelves = Shelves(transactions)
        self._given: dict[str, Any] = {
            **_WATCHED,
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
        self._shelves.join()

    async def leave(self) -> None:
        await self._shelves.leave()

    async def begin(self, job: Job, need: Need) -> PostgresEffect:
        shelf = self._shelves.mine(is_async=need.is_async)
        if shelf.room is not None:
            await shelf.room.acquire()
        try:
            mark = os.urandom(8).hex()
            with named_errors(NAME):
                return PostgresEffect(self, job, mark, shelf, await self._begun(shelf, need, mark))
        except BaseException:
            if shelf.room is not None:
                shelf.room.release()
            raise

    async def _begun(self, shelf: Shelf, need: Need, mark: str) -> Loan:
        """A connection whose transaction has begun."""
        while True:
            kept = shelf.take() if need.session is None else None
            loan = Plain(shelf, kept) if kept is not None else await self._lend(shelf, need)
            try:
                await self._make_ready(loan.wire, need.timeout, mark)
                return loan
            except BaseException as error:
                await loan.finish(keeps=False)
                if kept is None or not isinstance(error, psycopg.OperationalError):
                    raise
                # It broke while nobody used it: the next one may be sound, and a new one is.

    async def _lend(self, shelf: Shelf, need: Need) -> Loan:
        if need.session is None:
            return Plain(shelf, await self.connect(is_async=need.is_async))
        with shelf.lock:
            if shelf.sessions is None:
                from penstock.engines.postgres import sessions

                kind = sessions.AwaitedSessions if need.is_async else sessions.BlockingSessions
                shelf.sessions = kind(self._given)
            lender = shelf.sessions
        return await lender.lend(shelf, need.session)

    async def _make_ready(self, wire: Wire, timeout: float, mark: str) -> None:
        await wire.commit_each(True)
        ((statement, idle),) = await wire.rows((RESET if self._is_direct else "") + LIMITS)
        await wire.commit_each(False)
        begin = BEGIN.format(
            statement=_least(statement, timeout), idle=_least(idle, timeout + GRACE), mark=mark
        )
        await wire.rows(begin)

    async def connect(self, *, is_async: bool) -> Wire:
        """A new connection."""
        return await (Awaited if is_async else Blocking).open(self._given)

    def placed(self, sql: str) -> str:
        """A statement for the schema that holds the store."""
        return placed(sql, self._schema)


def _least(decided: int, timeout: float) -> int:
    """Milliseconds; 0 means that nobody has decided for less."""
    ours = max(1, round(1000 * timeout))
    return min(decided, ours) if decided else ours


class PostgresEffect(Effect):
    """The transaction of one attempt."""

    def __init__(
        self, effects: PostgresEffects, job: Job, mark: str, shelf: Shelf, loan: Loan
    ) -> None:
        self._effects = effects
        self._job = job
        self._fence = (job.id, job.attempt, job.worker)
        self._mark = mark
        self._shelf = shelf
        self._loan = loan

    @property
    def connection(self) -> Any:
        return self._loan.wire.connection

    @property
    def session(self) -> Any:
        return self._loan.session

    async def settle(self, result: bytes) -> bool:
        try:
            self._check()
            if not await self._loan.flush():
                raise TransactionEnded(self._job.task)
            if not await self._succeed(result):
                await self._loan.wire.rollback()
                return False
            try:
                await self._loan.wire.commit()
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
                await self._loan.wire.rollback()
        await self._finish()

    def _check(self) -> None:
        """Refuse to settle in a transaction that is over, or that could not commit."""
        if self.connection.broken:
            raise psycopg.OperationalError("the connection was lost")
        match self._loan.wire.status:
            case TransactionStatus.IDLE | TransactionStatus.UNKNOWN:
                raise TransactionEnded(self._job.task)
            case TransactionStatus.INERROR:
                raise TransactionAborted(self._job.task)

    async def _succeed(self, result: bytes) -> bool:
        values = (*self._fence, result, self._mark)
        try:
            ((is_settled,),) = await self._loan.wire.rows(self._effects.placed(SUCCEED), values)
        except psycopg.Error as error:
            if error.sqlstate == ENDED:
                raise TransactionEnded(self._job.task) from None
            raise
        return bool(is_settled)

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
            await pause(delay, is_async=isinstance(self._loan.wire, Awaited))
            waited, delay = waited + delay, min(2 * delay, 2.0)
        if answer is False:
            raise CommitLost(self._job.task, is_known=True) from error
        return bool(answer)

    async def _ask(self) -> bool | None:
        wire = await self._effects.connect(is_async=isinstance(self._loan.wire, Awaited))
        try:
            await wire.commit_each(True)
            ((answer,),) = await wire.rows(self._effects.placed(HAS_SUCCEEDED), self._fence)
        finally:
            await wire.close()
        found: bool | None = answer
        return found

    async def _finish(self) -> None:
        try:
            keeps = self._loan.wire.status == TransactionStatus.IDLE
            await self._loan.finish(keeps=keeps)
        finally:
            if self._shelf.room is not None:
                self._shelf.room.release()
