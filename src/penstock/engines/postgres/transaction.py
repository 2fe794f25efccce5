"""How a step of the PostgreSQL engine runs: in one transaction, repeated if it has to be.

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| the server ends in the middle of a     | it is rolled back, or it was committed: the caller gets |
| step                                   | ``EngineUnavailable`` and may ask                       |
| another step is in the way (deadlock,  | nothing was written; the step is repeated               |
| serialization, a lock)                 |                                                         |
| today has no partition of the history  | it is made, and the step is repeated                    |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import psycopg
from psycopg import errors

from penstock.engines.postgres import connection as connections
from penstock.engines.postgres.connection import Connection, Statement, Texts, Values
from penstock.engines.postgres.errors import REPEATED, missing_day, named_errors
from penstock.engines.postgres.pool import ConnectionPool
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.wakeup import Wakeups
from penstock.engines.sql_files import statements

TRIES: Final = 5
"""How often a step is tried that another one is in the way of."""
SQL: Final = {**statements("postgres/reads.sql"), **statements("postgres/steps.sql")}
"""What steps say, by its name."""

Rest = ParamSpec("Rest")
Result = TypeVar("Result")


class Snapshot(Protocol):
    """A snapshot of the store, for steps that read."""

    async def ask(self, name: str, values: Values = ()) -> list[Row]:
        """Run one statement of ``reads.sql`` or ``steps.sql``; return what it returns."""

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        """The same for a statement that was put together."""


class Transaction:
    """A transaction that has begun."""

    def __init__(self, connection: Connection, schema: str, now: float) -> None:
        self.now = now
        """The store's instant, the same for all of it."""
        self.schema = schema
        self._connection = connection

    async def ask(self, name: str, values: Values = ()) -> list[Row]:
        """Run one statement of ``reads.sql`` or ``steps.sql``; return what it returns."""
        return await self.rows(SQL[name], values)

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        """The same for a statement that was put together."""
        return await self._connection.rows(placed(sql, self.schema), values)

    async def change(self, name: str, values: Values = ()) -> int:
        """Run one statement; return how many rows it has changed."""
        return await self._connection.change(placed(SQL[name], self.schema), values)

    async def run(self, statement: Statement, values: Texts) -> list[Row]:
        """Run a prepared statement, which is for the store's schema already."""
        return await self._connection.run(statement, values)


class _SingleStatement:
    """A transaction of one statement: it needs one round trip, and has no instant before it."""

    def __init__(self, connection: Connection, schema: str, instant: float | None) -> None:
        self._connection = connection
        self._schema = schema
        self._instant = instant

    async def ask(self, name: str, values: Values = ()) -> list[Row]:
        return await self.rows(SQL[name], values)

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        run = partial(self._connection.rows, placed(sql, self._schema), values)
        return await self._connection.call(run, self._instant)


@asynccontextmanager
async def begin(
    connection: Connection, schema: str, how: str, instant: float | None
) -> AsyncIterator[Transaction]:
    """Begin a transaction (``begin_write``, ``begin_read`` or ``begin_seek``); commit it, or roll
    it back if its body fails. ``instant`` is what a test says the time is; None: the server says.
    """
    shift = "" if instant is None else f"; SET LOCAL penstock_clock.now = '{instant!r}'"
    opening = f"{connections.SQL[how]}{shift}; {placed(connections.SQL['now'], schema)}"
    try:
        ((now,),) = await connection.script(opening)
        yield Transaction(connection, schema, float(now))
        await connection.script("COMMIT")
    finally:
        await connection.roll_back()


class Transactions:
    """Runs statements and steps on the connections of a pool."""

    def __init__(
        self,
        pool: ConnectionPool,
        wakeups: Wakeups,
        schema: str,
        instant: Callable[[], float | None],
    ) -> None:
        """``instant`` is what a test says the time is."""
        self.pool = pool
        self.wakeups = wakeups
        self.schema = schema
        self.instant = instant

    async def call(self, sql: str, values: Values = (), *, wakes: str = "") -> list[Row]:
        """Run one statement as a transaction of its own, in one round trip."""

        async def attempt(connection: Connection) -> list[Row]:
            run = partial(connection.rows, placed(sql, self.schema), values)
            return await connection.call(run, self.instant())

        return await self._repeated(attempt, wakes)

    async def run(
        self, statement: Statement, values: Texts, wakes: str | Callable[[list[Row]], str]
    ) -> list[Row]:
        """Run a prepared statement as a transaction of its own, in one round trip."""

        async def attempt(connection: Connection) -> list[Row]:
            return await connection.call(partial(connection.run, statement, values), self.instant())

        return await self._repeated(attempt, wakes)

    async def write(
        self,
        wakes: str | Callable[[Result], str],
        step: Callable[Concatenate[Transaction, Rest], Awaitable[Result]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step as one write transaction, then wake sleepers of the kind that it ``wakes``,
        which its result may say.
        """

        async def attempt(connection: Connection) -> Result:
            async with self.begin(connection, "begin_write") as transaction:
                return await step(transaction, *args, **kwargs)

        return await self._repeated(attempt, wakes, (*REPEATED, errors.LockNotAvailable))

    async def read(
        self,
        step: Callable[Concatenate[Transaction, Rest], Awaitable[Result]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step that only reads, on one snapshot."""

        async def attempt(connection: Connection) -> Result:
            async with self.begin(connection, "begin_read") as transaction:
                return await step(transaction, *args, **kwargs)

        return await self._repeated(attempt)

    async def seek(
        self,
        step: Callable[Concatenate[Transaction, Rest], Awaitable[Result]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """The same for a few jobs, which are found by index."""

        async def attempt(connection: Connection) -> Result:
            async with self.begin(connection, "begin_seek") as transaction:
                return await step(transaction, *args, **kwargs)

        return await self._repeated(attempt)

    async def single(
        self,
        step: Callable[Concatenate[Snapshot, Rest], Awaitable[Result]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step that is one statement and only reads, in one round trip."""

        async def attempt(connection: Connection) -> Result:
            snapshot = _SingleStatement(connection, self.schema, self.instant())
            return await step(snapshot, *args, **kwargs)

        return await self._repeated(attempt)

    def begin(self, connection: Connection, how: str) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction on a connection; see ``begin``."""
        return begin(connection, self.schema, how, self.instant())

    async def _repeated(
        self,
        attempt: Callable[[Connection], Awaitable[Result]],
        wakes: str | Callable[[Result], str] = "",
        repeated: tuple[type[psycopg.Error], ...] = REPEATED,
    ) -> Result:
        """Try until nothing is in the way; all that is repeated was rolled back. Each job may miss
        a day of its own: to make one is no try in vain.
        """
        tries = 0
        made: set[float] = set()
        with named_errors():
            while True:
                tries += 1
                async with self.pool.use() as connection:
                    try:
                        result = await attempt(connection)
                    except repeated:
                        if tries >= TRIES:
                            raise
                        continue
                    except psycopg.Error as error:
                        missing = missing_day(error)
                        if missing is None or (tries >= TRIES and missing in made):
                            raise
                        made.add(missing)
                    else:
                        kind = wakes if isinstance(wakes, str) else wakes(result)
                        if kind:
                            self.wakeups.after_commit(connection, kind)
                        return result
                    async with self.begin(connection, "begin_write") as transaction:
                        await transaction.ask("make_day", (missing,))
