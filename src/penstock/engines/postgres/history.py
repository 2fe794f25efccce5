"""The days of a PostgreSQL store's history: which of them go as a whole, and how.

Finished jobs lie in one table per day. A day with many of them is not deleted row by row, which
would cost as much as it did to write them: when all of it is old, its table is taken out of the
history and dropped. Nobody is locked out meanwhile, and nobody who reads for long keeps us: what
cannot be locked in time is left to the next call.

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
from math import inf
from typing import Final

from psycopg import errors

from penstock.clock import SystemClock
from penstock.engines.postgres.rows import Row
from penstock.engines.sql_files import statements

BIG: Final = 16 * 1024 * 1024
"""Bytes of a day that goes as a whole: about 50,000 jobs with small payloads."""

IN_THE_WAY: Final = (errors.LockNotAvailable, errors.QueryCanceled, errors.UndefinedTable)
"""Somebody reads for long, or another leader was here."""


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


class Partitions:
    """Takes days out of the history and drops them."""

    def __init__(self, run: Callable[[str], Awaitable[list[Row]]]) -> None:
        """``run`` runs one statement, and returns what it gives."""
        self._run = run
        self._sql = statements("postgres/partitions.sql")

    async def drop(self, days: Iterable[Day]) -> int:
        """Drop days while others use the history; return how many jobs went.

        Every statement has to be a transaction of its own, all on a connection that is closed
        afterwards.
        """
        jobs = 0
        await self._run(self._sql["patience"])
        if await self._run(self._sql["alone"]) != [(True,)]:
            return 0
        for day in days:
            try:
                jobs += await self._drop(day)
            except IN_THE_WAY:
                break
        return jobs

    async def _drop(self, day: Day) -> int:
        jobs = await self._jobs(day)
        if day.place == "in":
            await self._change("mark", day)
            await self._change("detach", day)
        elif day.place == "leaving":
            await self._change("finish", day)
        await self._change("drop", day)
        return jobs

    async def drop_at_once(self, days: Iterable[Day]) -> int:
        """The same in one transaction: others wait for us, at most as long as we for them."""
        jobs = 0
        if await self._run(self._sql["alone_here"]) == [(True,)]:
            for day in days:
                jobs += await self._jobs(day)
                if day.place == "leaving":
                    await self._change("finish", day)
                await self._change("drop", day)
        return jobs

    async def _jobs(self, day: Day) -> int:
        """How many there are; to count those of a big day would cost more than to drop them."""
        if day.is_big and day.jobs is not None:
            return day.jobs
        ((jobs,),) = await self._change("count", day)
        return int(jobs)

    async def _change(self, name: str, day: Day) -> list[Row]:
        return await self._run(self._sql[name].format(day=day.name))


# --- tidying ------------------------------------------------------------------------------------
#
# When the leader of a PostgreSQL store clears dead rows away, rather than wait for the server.
#
# Every job leaves two dead rows in ``live``, and autovacuum looks once a minute whether there are a
# (``autovacuum_naptime``). At thirty thousand jobs per second the table has grown by a gigabyte unt
# then, which no cache holds any more, and to clear that away takes a core for seconds. Done as soon
# as it is worth it, it takes a tenth of the time of one core at most, and the table stays small: a
# fifth more jobs per second were measured, without dips.
#
# | if                                      | then
# |-----------------------------------------|-------------------------------------------------------
# | the tables belong to another role, or   | it is left to autovacuum
# | a pooler is in between                  |
# | autovacuum or another leader is at it   | it is left to them
# | an open transaction somewhere keeps the | it was in vain: the next time is later, each time
# | rows, or it takes too long, or somebody | twice as much, and autovacuum has its turn
# | ends it                                 |


EVERY: Final = 5.0
"""Seconds between two looks."""
FEW: Final = 20_000
"""Dead rows that are not worth it, and a fifth as many as there are live ones: all of an index has
to be read.
"""
SHARE: Final = 10
"""How many times its own duration there is no second one."""
IN_VAIN: Final = (60.0, 600.0)
"""Seconds until the next one after one that was in vain, at first and at last."""


SQL: Final = statements("postgres/tidying.sql")


class Tidying:
    """Clears away, and knows how it went; one for each handle."""

    def __init__(self) -> None:
        self._in_vain = 0
        self._began_at = -inf
        self._rests_until = -inf

    @property
    def rests_for(self) -> float:
        """Seconds for which nothing is to be cleared away, however much there is."""
        return max(0.0, self._rests_until - SystemClock.monotonic())

    def is_worth_it(self, dead: int, live: int) -> bool:
        """So many dead rows, beside so many live ones, should be cleared away."""
        return dead > FEW + live / 5

    async def clear(self, run: Callable[[str], Awaitable[list[Row]]], before: int) -> None:
        """Clear so many dead rows away. ``run`` runs one statement, on a connection that is closed
        afterwards, and returns what it gives.
        """
        await run(SQL["limits"])
        self._begin()
        try:
            await run(SQL["vacuum"])
            await run(SQL["counted"])
            ((after, _, _),) = await run(SQL["dead"])
        except errors.LockNotAvailable:
            self._leave()
        except errors.QueryCanceled:
            pass
        else:
            self._end(before, after)

    def _begin(self) -> None:
        """It begins; that is in vain unless it is told otherwise, whoever ends it and how."""
        first, last = IN_VAIN
        self._began_at = SystemClock.monotonic()
        self._rests_until = self._began_at + min(last, first * 2.0**self._in_vain)
        self._in_vain = min(self._in_vain + 1, 10)

    def _leave(self) -> None:
        """Somebody else is at it."""
        self._in_vain -= 1
        self._rests_until = SystemClock.monotonic() + EVERY

    def _end(self, before: int, after: int) -> None:
        """There were so many dead rows, and so many are left."""
        if after < before:
            now = SystemClock.monotonic()
            self._in_vain = 0
            self._rests_until = now + max(EVERY, SHARE * (now - self._began_at))
