"""One connection to PostgreSQL, and how a call on it ends.

A caller that is cancelled leaves with a statement under way. Most end in a moment, so the end is
awaited first; then the server is asked to stop it. A connection whose statement does not end is
closed. So a connection that is given to the next caller is always at rest.

Some statements need no answer (a wake-up after a commit): they are *posted*, and the next caller
reads the reply first. That costs no round trip.

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
from penstock.engines.sql_files import statements

PARTING: Final = (0.1, 0.5, 0.4)
"""Seconds that a statement has to end when its caller has left; to ask the server to stop it; and
that it has to end then."""

KEEPALIVE: Final[Mapping[str, Any]] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""How the system notices that the server is gone without a word, in about 20 s; what the URL says
counts first."""

ISOLATION: Final = "read committed"
SQL: Final = statements("postgres/connection.sql")

Values = Mapping[str, object] | Sequence[object]
Texts = Sequence[bytes | None]
"""Values as texts that PostgreSQL reads, whatever their types are."""

ROWS: Final = pq.ExecStatus.TUPLES_OK
FINE: Final = (ROWS, pq.ExecStatus.COMMAND_OK)


class Statement(NamedTuple):
    """A statement by its name; its values are texts, given as ``$1``, ``$2``."""

    name: bytes
    sql: str


class Backend(NamedTuple):
    """The process of the server that serves one connection, so that it is not taken for another."""

    pid: int
    begun: str


class _DriverConnection(psycopg.AsyncConnection[Any]):
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
            pass  # cancelled twice: it is closed, as one that does not end
        self.pgconn.finish()

    async def _ends(self, gen: Any, timeout: float) -> bool:
        if self._is_active():
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(timeout):
                    await waiting.wait_async(gen, self.pgconn.socket, 3600.0)
        return not self._is_active()

    def _is_active(self) -> bool:
        return self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE


class Connection:
    """A connection in autocommit mode. Used by one caller at a time."""

    def __init__(
        self,
        driver: psycopg.AsyncConnection[Row],
        backend: Backend,
        *,
        is_pooled: bool,
        isolation: str,
    ) -> None:
        self._driver = driver
        self.backend = backend
        self.is_pooled = is_pooled
        """Nothing may be kept on it from one transaction to the next."""
        self._isolation = isolation
        self._owes_reply = False
        self._prepared: dict[bytes, bytes] = {}
        self._names = 0
        self.used_at = 0.0
        self._clock: float | None = None

    @property
    def is_usable(self) -> bool:
        """It is open, and outside any transaction."""
        status = self._driver.pgconn.transaction_status
        rest = pq.TransactionStatus.ACTIVE if self._owes_reply else pq.TransactionStatus.IDLE
        return status == rest

    def is_alive(self) -> bool:
        """It is usable, and the server has not ended it meanwhile. Asks only the system."""
        pgconn = self._driver.pgconn
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
        has_rows = cursor.pgresult is not None and cursor.pgresult.status == ROWS
        return await cursor.fetchall() if has_rows else []

    async def run(self, statement: Statement, values: Texts) -> list[Row]:
        """The same for a statement that is run all the time: the driver's cursors would take 15.8
        instead of 7.4 µs per job of an exchange.
        """
        await self._read_reply()
        pgconn = self._driver.pgconn
        if self.is_pooled:
            pgconn.send_query_params(statement.sql.encode(), values, result_format=pq.Format.BINARY)
        else:
            name = self._prepared.get(statement.name) or await self._prepare(statement)
            pgconn.send_query_prepared(name, values, result_format=pq.Format.BINARY)
        result = await self._result()
        loaders = Transformer(self._driver)
        loaders.set_pgresult(result)
        return loaders.load_rows(0, result.ntuples, tuple)

    async def change(self, sql: str, values: Values = ()) -> int:
        """Run one statement; return how many rows it has changed."""
        return (await self._execute(sql, values)).rowcount

    async def script(self, sql: str) -> list[Row]:
        """Run several statements that take no values; return what the last one returns."""
        await self._read_reply()
        cursor = self._driver.cursor()
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
            if instant != self._clock:
                await self.script(f"SET {shift}" if shift else "RESET penstock_clock.now")
                self._clock = instant
            return await run()
        begin = f"BEGIN ISOLATION LEVEL {ISOLATION}"
        await self.script(f"{begin}; SET LOCAL {shift}" if shift else begin)
        try:
            found = await run()
            await self.script("COMMIT")
        finally:
            await self.roll_back()
        return found

    async def roll_back(self) -> None:
        """End a transaction that is still open; on a lost connection there is none."""
        if not self.is_usable:
            with contextlib.suppress(psycopg.Error):
                await self.script("ROLLBACK")

    @property
    def owes_reply(self) -> bool:
        """The reply to what was posted has not come yet."""
        pgconn = self._driver.pgconn
        if self._owes_reply:
            try:
                pgconn.consume_input()
                while not pgconn.is_busy():
                    if pgconn.get_result() is None:
                        self._owes_reply = False
                        break
            except psycopg.Error:
                return True  # the next caller is told what is wrong with it
        return self._owes_reply

    def post(self, sql: str) -> None:
        """Send one statement that takes no values, and do not wait for it."""
        pgconn = self._driver.pgconn
        if self._owes_reply or not self.is_usable:
            return
        try:
            pgconn.send_query(sql.encode())
            pgconn.flush()
        except psycopg.Error:
            return  # the next caller is told what is wrong with it
        self._owes_reply = True

    async def end_backends(self, backends: Sequence[Backend]) -> bool:
        """End other connections; False: one of them goes on."""
        pids, begun = zip(*backends, strict=True)
        try:
            ((ended,),) = await self.rows(SQL["end_backends"], (list(pids), list(begun)))
        except psycopg.errors.InsufficientPrivilege:
            return True  # this role may not: then it is hoped for
        return bool(ended)

    # --- notifications -------------------------------------------------------------------------

    async def listen(self, channel: str) -> AsyncIterator[str]:
        """What is notified on a channel, as it comes; an empty text first, when it can be heard."""
        await self.script(f'LISTEN "{channel}"')
        yield ""
        async for notify in self._driver.notifies():
            yield notify.payload

    # --- life ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close it, at once. No caller may be using it."""
        await self._driver.close()

    def abort(self) -> None:
        """End the connection under its caller, who gets an error and closes it."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._driver.pgconn.socket)) as shared,
        ):
            shared.shutdown(socket.SHUT_RDWR)

    async def _prepare(self, statement: Statement) -> bytes:
        """Under a name of its own each time: a caller that was cancelled does not know whether it
        was prepared.
        """
        self._names += 1
        name = b"%s_%d" % (statement.name, self._names)
        self._driver.pgconn.send_prepare(name, statement.sql.encode())
        await self._result()
        self._prepared[statement.name] = name
        return name

    async def _result(self) -> pq.abc.PGresult:
        result: pq.abc.PGresult
        (result,) = await self._driver.wait(generators.execute(self._driver.pgconn))
        if result.status not in FINE:
            raise errors.error_from_result(result, encoding="utf-8")
        return result

    async def _execute(self, sql: str, values: Values) -> psycopg.AsyncCursor[Row]:
        await self._read_reply()
        cursor = self._driver.cursor(binary=True)
        await cursor.execute(sql.encode(), values or None, prepare=not self.is_pooled)
        return cursor

    async def _read_reply(self) -> None:
        if self._owes_reply:
            self._owes_reply = False
            pgconn = self._driver.pgconn
            await self._driver.wait(generators.send(pgconn))
            await self._driver.wait(generators.fetch_many(pgconn))


def options(dsn: str, name: str, timeout: float) -> dict[str, Any]:
    """How every connection of ours is opened; ``name`` is what the server shows of it."""
    given = conninfo_to_dict(dsn)
    return {
        **{option: value for option, value in KEEPALIVE.items() if option not in given},
        "autocommit": True,
        "application_name": name,
        "connect_timeout": max(2, round(timeout)),
        "client_encoding": "utf8",
    }


async def connect(dsn: str, name: str, *, timeout: float, keeps: bool | None = None) -> Connection:
    """Open a connection; ``name`` is what the server shows of it.

    ``keeps`` says whether it keeps what is set on it; None: that is found out.
    """
    driver = await _DriverConnection.connect(
        dsn, prepare_threshold=None, **options(dsn, name, timeout)
    )
    try:
        async with asyncio.timeout(timeout):
            answer = await (await driver.execute(SQL["identify"].encode())).fetchall()
            ((pid, begun, isolation),) = answer
            is_pooled = not keeps if keeps is not None else pid != driver.info.backend_pid
            if not is_pooled and isolation != ISOLATION:
                # The steps rely on it, whatever was decided for the whole database.
                await driver.execute(f"SET default_transaction_isolation = '{ISOLATION}'")
                isolation = ISOLATION
    except TimeoutError as error:
        await driver.close()
        why = f"the server let us in and did not answer for {timeout:g} s"
        raise psycopg.OperationalError(why) from error
    except BaseException:
        await driver.close()
        raise
    return Connection(driver, Backend(pid, begun), is_pooled=is_pooled, isolation=isolation)
