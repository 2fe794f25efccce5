"""When the leader of a PostgreSQL store clears dead rows away, rather than wait for the server.

Every job leaves two dead rows in ``live``, and autovacuum looks once a minute whether there are any
(``autovacuum_naptime``). At thirty thousand jobs per second the table has grown by a gigabyte until
then, which no cache holds any more, and to clear that away takes a core for seconds. Done as soon
as it is worth it, it takes a tenth of the time of one core at most, and the table stays small: a
fifth more jobs per second were measured, without dips.

| if                                      | then                                                  |
|-----------------------------------------|-------------------------------------------------------|
| the tables belong to another role, or   | it is left to autovacuum                              |
| a pooler is in between                  |                                                       |
| autovacuum or another leader is at it   | it is left to them                                    |
| an open transaction somewhere keeps the | it was in vain: the next time is later, each time     |
| rows, or it takes too long, or somebody | twice as much, and autovacuum has its turn            |
| ends it                                 |                                                       |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from psycopg import errors

from penstock.clock import SystemClock
from penstock.engines.postgres.rows import Row
from penstock.engines.queries import statements

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
