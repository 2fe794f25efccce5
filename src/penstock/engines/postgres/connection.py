"""One connection to PostgreSQL, and how a call on it ends.

A caller that is cancelled leaves with a statement under way. Most end in a moment, so its end is
awaited first; then the server is asked to stop it. A connection whose end does not come is closed.
So what is handed to the next caller is always at rest.

Some statements need no answer (a wake-up after a commit): they are posted, and whoever uses the
connection next reads the reply first. That costs no round trip.

Behind a pooler that lends its connections for one transaction each, nothing may be kept on one: no
prepared statements, no settings, no LISTEN. A pooler is known by this: the server's process is not
the one that was announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import errors, generators, pq, waiting
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict

from penstock.engines.postgres.rows import Row

PARTING: Final = (0.1, 0.5, 0.4)
"""Seconds that a statement has to end when its caller has left; to ask the server to stop it; and
that it has to end then."""

ALIVE: Final[Mapping[str, Any]] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""How the system notices that the other side is gone without a word, in about 20 s; what the URL
says counts first."""

ISOLATION: Final = "read committed"

FIRST_QUESTION: Final = (
    "SELECT pid, extract(epoch FROM backend_start)::text,"
    " current_setting('default_transaction_isolation')"
    " FROM pg_stat_get_activity(pg_backend_pid())"
)
END: Final = (
    "SELECT coalesce(bool_and(pg_terminate_backend(pid, 2000)), true) FROM pg_stat_activity"
    " WHERE (pid, extract(epoch FROM backend_start)::text)"
    " IN (SELECT * FROM unnest(%s::integer[], %s::text[]))"
)

Values = Mapping[str, object] | Sequence[object]
Texts = Sequence[bytes | None]
"""Values as texts that PostgreSQL reads, whatever their types are."""

_ROWS: Final = pq.ExecStatus.TUPLES_OK
_FINE: Final = (_ROWS, pq.ExecStatus.COMMAND_OK)


class Statement(NamedTuple):
    """A statement by its name; its values are texts, given as ``$1``, ``$2``."""

    name: bytes
    sql: str


class _Connection(psycopg.AsyncConnection[Any]):
    """A connection that parts from a statement in bounded time."""

    async def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        try:
            # The driver looks for Ctrl-C in between, which asyncio does by itself.
            return await waiting.wait_async(gen, self.pgconn.socket, 3600.0, timeout)
        except asyncio.CancelledError:
            await self._part(gen)
            raise

    async def _part(self, gen: Any) -> None:
        for_itself, to_ask, when_asked = PARTING
        try:
            if await self._ends(gen, for_itself):
                return
            with contextlib.suppress(psycopg.Error, OSError):
                await self.cancel_safe(timeout=to_ask)
            if await self._ends(gen, when_asked):
                return
        except asyncio.CancelledError:
            pass  # somebody is in a hurry: it is closed, as one that does not end
        self.pgconn.finish()

    async def _ends(self, gen: Any, timeout: float) -> bool:
        if self._is_at_work():
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(timeout):
                    await waiting.wait_async(gen, self.pgconn.socket, 3600.0)
        return not self._is_at_work()

    def _is_at_work(self) -> bool:
        return self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE


class Backend(NamedTuple):
    """The process of the server that serves one connection, so that it is not taken for another."""

    pid: int
    begun: str


class Link:
    """A connection in autocommit mode. Used by one caller at a time."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Row],
        backend: Backend,
        *,
        is_pooled: bool,
        isolation: str,
    ) -> None:
        self._connection = connection
        self.backend = backend
        self.is_pooled = is_pooled
        """Nothing may be kept on it from one transaction to the next."""
        self._isolation = isolation
        self._owed = False
        self._prepared: dict[bytes, bytes] = {}
        self._names = 0
        self.used_at = 0.0
        self.instant: float | None = None
        """What the clock of this session was set to, where a test sets it."""

    @property
    def is_usable(self) -> bool:
        """It is open, and outside any transaction."""
        status = self._connection.pgconn.transaction_status
        at_rest = pq.TransactionStatus.ACTIVE if self._owed else pq.TransactionStatus.IDLE
        return status == at_rest

    def is_alive(self) -> bool:
        """It is usable, and the other side has not ended it meanwhile. Asks only the system."""
        pgconn = self._connection.pgconn
        try:
            # What the server said before it hung up, then that it did.
            pgconn.consume_input()
            pgconn.consume_input()
        except psycopg.Error:
            return False
        return self.is_usable

    # --- statements ----------------------------------------------------------------------------

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one statement; return what it returns."""
        cursor = await self._execute(sql, values)
        # To ask for a description would make one.
        has_rows = cursor.pgresult is not None and cursor.pgresult.status == _ROWS
        return await cursor.fetchall() if has_rows else []

    async def run(self, statement: Statement, values: Texts) -> list[Row]:
        """The same for a statement that is run all the time: the driver's cursors would cost more
        than what they are for.
        """
        await self._settle_debts()
        pgconn = self._connection.pgconn
        if self.is_pooled:
            pgconn.send_query_params(statement.sql.encode(), values, result_format=pq.Format.BINARY)
        else:
            name = self._prepared.get(statement.name) or await self._prepare(statement)
            pgconn.send_query_prepared(name, values, result_format=pq.Format.BINARY)
        result = await self._result()
        loaders = Transformer(self._connection)
        loaders.set_pgresult(result)
        return loaders.load_rows(0, result.ntuples, tuple)

    async def _prepare(self, statement: Statement) -> bytes:
        """Under a name of its own each time: whoever was cancelled does not know whether it was
        prepared.
        """
        self._names += 1
        name = b"%s_%d" % (statement.name, self._names)
        self._connection.pgconn.send_prepare(name, statement.sql.encode())
        await self._result()
        self._prepared[statement.name] = name
        return name

    async def _result(self) -> pq.abc.PGresult:
        result: pq.abc.PGresult
        (result,) = await self._connection.wait(generators.execute(self._connection.pgconn))
        if result.status not in _FINE:
            raise errors.error_from_result(result, encoding="utf-8")
        return result

    async def change(self, sql: str, values: Values = ()) -> int:
        """Run one statement; return how many rows it has changed."""
        return (await self._execute(sql, values)).rowcount

    async def script(self, sql: str) -> list[Row]:
        """Run several statements that take no values; return what the last one returns."""
        await self._settle_debts()
        cursor = self._connection.cursor()
        await cursor.execute(sql.encode())
        while cursor.nextset():
            pass
        return await cursor.fetchall() if cursor.description is not None else []

    async def call(
        self, run: Callable[[], Awaitable[list[Row]]], instant: float | None = None
    ) -> list[Row]:
        """Run one statement as a transaction of its own, at READ COMMITTED; return its rows.

        In one round trip, unless something would have to be kept on the connection for that.
        ``instant`` is what a test says the time is.
        """
        shift = "" if instant is None else f"penstock_clock.now = '{instant!r}'"
        if self._isolation == ISOLATION and (not shift or not self.is_pooled):
            if instant != self.instant:
                await self.script(f"SET {shift}" if shift else "RESET penstock_clock.now")
                self.instant = instant
            return await run()
        begin = f"BEGIN ISOLATION LEVEL {ISOLATION}"
        await self.script(f"{begin}; SET LOCAL {shift}" if shift else begin)
        try:
            found = await run()
            await self.script("COMMIT")
        finally:
            if not self.is_usable:
                with contextlib.suppress(psycopg.Error):
                    await self.script("ROLLBACK")
        return found

    @property
    def owes(self) -> bool:
        """The reply to what was posted has not come yet."""
        pgconn = self._connection.pgconn
        if self._owed:
            try:
                pgconn.consume_input()
                while not pgconn.is_busy():
                    if pgconn.get_result() is None:
                        self._owed = False
                        break
            except psycopg.Error:
                return True  # whoever uses it next will learn what is wrong with it
        return self._owed

    def post(self, sql: str) -> None:
        """Send one statement that takes no values, and do not wait for it."""
        pgconn = self._connection.pgconn
        if self._owed or not self.is_usable:
            return
        try:
            pgconn.send_query(sql.encode())
            pgconn.flush()
        except psycopg.Error:
            return  # whoever uses it next will learn what is wrong with it
        self._owed = True

    async def end(self, backends: Sequence[Backend]) -> bool:
        """End other connections; False: one of them goes on."""
        pids, begun = zip(*backends, strict=True)
        try:
            ((ended,),) = await self.rows(END, (list(pids), list(begun)))
        except psycopg.errors.InsufficientPrivilege:
            return True  # somebody has decided that we may not: then it is hoped for
        return bool(ended)

    # --- notifications -------------------------------------------------------------------------

    async def listen(self, channel: str) -> AsyncIterator[str]:
        """What is notified on a channel, as it comes; an empty text first, when it can be heard."""
        await self.script(f'LISTEN "{channel}"')
        yield ""
        async for notify in self._connection.notifies():
            yield notify.payload

    # --- life ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close it, at once. Nobody may be using it."""
        await self._connection.close()

    def hang_up(self) -> None:
        """End the connection under whoever uses it: they get an error, and close it."""
        hang_up(self._connection.pgconn)

    async def _execute(self, sql: str, values: Values) -> psycopg.AsyncCursor[Row]:
        await self._settle_debts()
        cursor = self._connection.cursor(binary=True)
        # Text of our own files, written by nobody else.
        await cursor.execute(sql.encode(), values or None, prepare=not self.is_pooled)
        return cursor

    async def _settle_debts(self) -> None:
        """Read the reply to what was posted."""
        if self._owed:
            self._owed = False
            pgconn = self._connection.pgconn
            await self._connection.wait(generators.send(pgconn))
            await self._connection.wait(generators.fetch_many(pgconn))


def hang_up(pgconn: pq.abc.PGconn) -> None:
    """End a connection under whoever uses it, from whatever thread."""
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(pgconn.socket)) as wire,
    ):
        wire.shutdown(socket.SHUT_RDWR)


async def connect(dsn: str, name: str, *, timeout: float, keeps: bool | None = None) -> Link:
    """Open a connection; ``name`` is what the server shows of it.

    ``keeps`` says whether it keeps what is set on it; None: that is found out.
    """
    given = conninfo_to_dict(dsn)
    connection = await _Connection.connect(
        dsn,
        autocommit=True,
        prepare_threshold=None,
        application_name=name,
        connect_timeout=max(2, round(timeout)),
        client_encoding="utf8",
        **{option: value for option, value in ALIVE.items() if option not in given},
    )
    try:
        async with asyncio.timeout(timeout):
            ((pid, begun, isolation),) = await (await connection.execute(FIRST_QUESTION)).fetchall()
            is_pooled = not keeps if keeps is not None else pid != connection.info.backend_pid
            if not is_pooled and isolation != ISOLATION:
                # The steps rely on it, whatever somebody decided for the whole database.
                await connection.execute(f"SET default_transaction_isolation = '{ISOLATION}'")
                isolation = ISOLATION
    except TimeoutError as error:
        await connection.close()
        why = f"the server let us in and did not answer for {timeout:g} s"
        raise psycopg.OperationalError(why) from error
    except BaseException:
        await connection.close()
        raise
    return Link(connection, Backend(pid, begun), is_pooled=is_pooled, isolation=isolation)
