"""One transaction on one connection: what the steps of the PostgreSQL engine run in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import psycopg

from penstock.engines.postgres.connection import Link, Values
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.schema import placed

_BY_INDEX: Final = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
"""Whatever the statistics say; what has no index is dear then, and not worth being compiled."""

WRITE: Final = (
    f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '100ms'; {_BY_INDEX}"
)
"""Nobody waits long for a row that somebody else has: it is skipped, or the whole is repeated."""
READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
SEEK: Final = f"{READ}; {_BY_INDEX}"
"""For a few jobs among many; to count all of them, a plan may read a whole table."""


class Turn:
    """A transaction that has begun."""

    def __init__(self, link: Link, schema: str, now: float) -> None:
        self.now = now
        """The store's instant, the same for all of it."""
        self._link = link
        self._schema = schema

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        """Run one statement; return what it returns."""
        return await self._link.rows(placed(sql, self._schema), values)

    async def change(self, sql: str, values: Values = ()) -> int:
        """Run one statement; return how many rows it has changed."""
        return await self._link.change(placed(sql, self._schema), values)


class Alone:
    """One statement that is a transaction by itself."""

    def __init__(self, link: Link, schema: str, instant: float | None) -> None:
        self._link = link
        self._schema = schema
        self._instant = instant

    @property
    def now(self) -> float:
        """Who asks one question does not ask for the time as well."""
        raise AttributeError("a statement by itself has no instant before it")

    async def rows(self, sql: str, values: Values = ()) -> list[Row]:
        """Run it; return what it returns."""
        run = partial(self._link.rows, placed(sql, self._schema), values)
        return await self._link.call(run, self._instant)


@asynccontextmanager
async def turn(link: Link, schema: str, begin: str, instant: float | None) -> AsyncIterator[Turn]:
    """Begin a transaction; commit it, or roll it back if its body fails.

    ``instant`` is what a test says the time is; None: the server says it.
    """
    shift = "" if instant is None else f"; SET LOCAL penstock_clock.now = '{instant!r}'"
    try:
        ((now,),) = await link.script(f"{begin}{shift}; SELECT {schema}.now()")
        yield Turn(link, schema, float(now))
        await link.script("COMMIT")
    finally:
        if not link.is_usable:
            # After a lost connection there is nothing to roll back, and nobody to tell.
            with contextlib.suppress(psycopg.Error):
                await link.script("ROLLBACK")
