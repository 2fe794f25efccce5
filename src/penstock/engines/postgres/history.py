"""The history of a PostgreSQL store by the day, and how old days leave it.

Finished jobs lie in one table per day. A day with many of them is not deleted row by row, which
would cost as much as it did to write them: when all of it is old, its table is detached from the
history and dropped. No other transaction is locked out meanwhile, and a long reader is not waited
for: what cannot be locked in time is left to the next call.

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| we end before the day was detached     | nothing happened                                        |
| we end while it is detached            | it is 'leaving': its jobs are out of sight, and the     |
|                                        | next call finishes that                                 |
| we end before it was dropped           | it is 'out', and the next call drops it                 |
| two leaders do this at once            | one has the lock, the other leaves the days alone       |
| the role does not own the tables       | its jobs are deleted row by row                         |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from psycopg import errors

from penstock.engines.postgres.connection import Connection
from penstock.engines.postgres.errors import named_errors
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.transaction import Transactions
from penstock.engines.sql_files import statements

BIG: Final = 16 * 1024 * 1024
"""Bytes of a day that goes as a whole: about 50,000 jobs with small payloads."""

IN_THE_WAY: Final = (errors.LockNotAvailable, errors.QueryCanceled, errors.UndefinedTable)
"""A reader takes long, or another leader was here."""

SQL: Final = statements("postgres/history.sql")

Connect = Callable[[], Awaitable[Connection]]
Run = Callable[[str], Awaitable[list[Row]]]
"""Runs one statement, and returns what it gives."""


@dataclass(frozen=True, slots=True)
class Day:
    """One table of the history, as ``penstock.days`` lists it."""

    name: str
    """Quoted where it has to be."""
    begins_at: float
    ends_at: float
    bytes: int
    jobs: int | None
    """What the statistics guess."""
    place: str
    is_ours: bool
    """This role may drop it."""

    @property
    def is_big(self) -> bool:
        return self.bytes >= BIG


def to_days(rows: Iterable[Row]) -> list[Day]:
    """Read what ``penstock.days`` returns."""
    return [Day(*row) for row in rows]


def sort_out(days: Iterable[Day], before: float) -> tuple[list[Day], list[Day]]:
    """What is old: days to delete jobs from, and days to drop.

    A big day of which only a part is old waits until all of it is.
    """
    some, whole = [], []
    for day in days:
        is_all_old = day.ends_at <= before
        if day.place != "in":
            if day.is_ours:
                whole.append(day)
        elif is_all_old and day.is_big and day.is_ours:
            whole.append(day)
        elif is_all_old or (day.begins_at < before and not day.is_big):
            some.append(day)
    return some, whole


async def drop_days(transactions: Transactions, connect: Connect, days: Iterable[Day]) -> int:
    """Drop days of the history; return how many jobs went. A transaction in the way is waited for
    briefly: then the next call has to do it.
    """
    with named_errors():
        connection = await connect()
        try:
            if not connection.is_pooled:
                return await _drop_each(runner(connection, transactions.schema), days)
            # Behind a pooler no two statements share a connection but inside a transaction.
            async with transactions.begin(connection, "begin_write") as transaction:
                return await _drop_at_once(transaction.rows, days)
        except IN_THE_WAY:
            return 0
        finally:
            await connection.close()


async def _drop_each(run: Run, days: Iterable[Day]) -> int:
    """Drop days while others use the history. Every statement is a transaction of its own, all on a
    connection that is closed afterwards.
    """
    jobs = 0
    await run(SQL["patience"])
    if await run(SQL["alone"]) != [(True,)]:
        return 0
    for day in days:
        try:
            found = await _jobs(run, day)
            if day.place == "in":
                await _change(run, "mark", day)
                await _change(run, "detach", day)
            elif day.place == "leaving":
                await _change(run, "finish", day)
            await _change(run, "drop", day)
        except IN_THE_WAY:
            break
        jobs += found
    return jobs


async def _drop_at_once(run: Run, days: Iterable[Day]) -> int:
    """The same in one transaction: others wait for it, at most as long as it waits for them."""
    jobs = 0
    if await run(SQL["alone_here"]) == [(True,)]:
        for day in days:
            jobs += await _jobs(run, day)
            if day.place == "leaving":
                await _change(run, "finish", day)
            await _change(run, "drop", day)
    return jobs


async def _jobs(run: Run, day: Day) -> int:
    """How many there are; to count those of a big day would cost more than to drop them."""
    if day.is_big and day.jobs is not None:
        return day.jobs
    ((jobs,),) = await _change(run, "count", day)
    return int(jobs)


async def _change(run: Run, name: str, day: Day) -> list[Row]:
    return await run(SQL[name].format(day=day.name))


def runner(connection: Connection, schema: str) -> Run:
    """Runs statements on a connection, each as a transaction of its own."""
    return lambda sql: connection.script(placed(sql, schema))
