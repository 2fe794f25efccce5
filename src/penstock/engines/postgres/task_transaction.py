"""Effects on PostgreSQL: handlers write in the transaction that moves their job to the history.

A connection is made ready in two steps: what the user before has left in its session is removed,
then the transaction begins, with limits of its own and a mark. The mark is gone when the handler
ends the transaction, whatever it begins afterwards: so ``penstock.succeed`` finds that out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from penstock.core.job import Job
from penstock.core.transactions import Effect, Effects, Need, Supply
from penstock.engines.postgres import schema as schemas
from penstock.engines.postgres.errors import named_errors
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.task_connections import Awaited, Blocking, Wire, pause
from penstock.errors import CommitLost, TransactionAborted, TransactionEnded

if TYPE_CHECKING:
    pass


# --- shelf --------------------------------------------------------------------------------------
#
# Connections that attempts have written on, kept for the next ones.
#
# There is one shelf for the threads of a process and one for each loop. Something is kept there
# only
# while a worker lives that could use it. A forked child begins with empty shelves: what is on those
# of its parent is its parent's.


KEPT: Final = 10
"""Connections that one shelf keeps at most."""


class Sessions(ABC):
    """An engine of SQLAlchemy, whose pool keeps the connections that are for sessions."""

    @abstractmethod
    async def lend(self, shelf: Shelf, kind: type) -> Loan:
        """A connection with a session of this class."""

    @abstractmethod
    async def close(self) -> None:
        """Close what is kept."""


class Shelf:
    """What is kept in one place. ``room`` bounds how many attempts of a loop have one at once; the
    threads are as many as they are.
    """

    def __init__(self, room: asyncio.Semaphore | None) -> None:
        self.room = room
        self.sessions: Sessions | None = None
        self.lock = threading.Lock()
        self._workers = 0
        self._kept: list[Wire] = []

    @property
    def is_used(self) -> bool:
        """A worker lives that could use what is kept."""
        return self._workers > 0

    def join(self) -> None:
        """A worker begins."""
        with self.lock:
            self._workers += 1

    def take(self) -> Wire | None:
        """The connection that was used last; None: there is none."""
        with self.lock:
            return self._kept.pop() if self._kept else None

    def keep(self, wire: Wire) -> bool:
        """Keep one for the next; False: nobody wants it."""
        with self.lock:
            if not self.is_used or len(self._kept) >= KEPT:
                return False
            self._kept.append(wire)
            return True

    async def leave(self) -> None:
        """A worker has ended; after the last one nothing is kept."""
        with self.lock:
            self._workers -= 1
            if self.is_used:
                return
            kept, self._kept = self._kept, []
            sessions, self.sessions = self.sessions, None
        for wire in kept:
            await wire.close()
        if sessions is not None:
            await sessions.close()


class Shelves:
    """All shelves of one app."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_place: dict[tuple[int, int], Shelf] = {}

    def mine(self, *, is_async: bool) -> Shelf:
        """The one for this loop, or for the threads of this process."""
        place = os.getpid(), id(asyncio.get_running_loop()) if is_async else 0
        found = self._by_place.get(place)
        if found is None:
            room = asyncio.Semaphore(self._most) if is_async else None
            found = self._by_place.setdefault(place, Shelf(room))
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


# --- loans --------------------------------------------------------------------------------------
#
# A connection that an attempt has for itself, until it gives it back.


class Loan(ABC):
    """A connection, and what was wanted around it."""

    wire: Wire
    session: Any = None

    @abstractmethod
    async def flush(self) -> bool:
        """Send what a session has not sent yet; False: it is not in our transaction any more."""

    @abstractmethod
    async def finish(self, *, keeps: bool) -> None:
        """Give it back if it can be used again; else close it."""


class Plain(Loan):
    """Nothing but the connection."""

    def __init__(self, shelf: Shelf, wire: Wire) -> None:
        self.wire = wire
        self._shelf = shelf

    async def flush(self) -> bool:
        return True  # there is no session

    async def finish(self, *, keeps: bool) -> None:
        is_as_new = self.wire.renew()
        if not (keeps and is_as_new and self._shelf.keep(self.wire)):
            await self.wire.close()


# --- effects ------------------------------------------------------------------------------------


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
                from penstock.engines.postgres import task_sessions

                kind = (
                    task_sessions.AwaitedSessions
                    if need.is_async
                    else task_sessions.BlockingSessions
                )
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
