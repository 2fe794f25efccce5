"""Dead rows of a PostgreSQL store, cleared away by the leader as soon as it is worth it.

Every job leaves two dead rows in ``live``, and autovacuum looks once a minute whether there are any
(``autovacuum_naptime``). At thirty thousand jobs per second the table has grown by a gigabyte until
then, which no cache holds any more, and to clear that away takes a core for seconds. Done as soon
as it is worth it, it takes a tenth of the time of one core at most, and the table stays small: a
fifth more jobs per second were measured, without dips.

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| the tables belong to another role, or  | it is left to autovacuum                                |
| a pooler is in between                 |                                                         |
| autovacuum or another leader is at it  | it is left to them                                      |
| an open transaction somewhere keeps    | it was in vain: the next time is later, each time twice |
| the rows, or it takes too long, or is  | as much, and autovacuum has its turn                    |
| ended by a person                      |                                                         |
"""

from __future__ import annotations

from math import inf
from typing import Final

from psycopg import errors

from penstock.clock import SystemClock
from penstock.engines.postgres.errors import named_errors
from penstock.engines.postgres.history import Connect, Run, runner
from penstock.engines.postgres.transaction import Transactions
from penstock.engines.sql_files import statements

EVERY: Final = 5.0
"""Seconds between two looks for dead rows."""
FEW: Final = 20_000
"""Dead rows that are not worth a vacuum, and a fifth as many as there are live ones: all of an
index has to be read."""
SHARE: Final = 10
"""How many times its own duration there is no second vacuum."""
IN_VAIN: Final = (60.0, 600.0)
"""Seconds until the next vacuum after one that was in vain, at first and at last."""

SQL: Final = statements("postgres/vacuum.sql")


class Vacuum:
    """Clears dead rows away, and knows how it went; one for each engine."""

    def __init__(self) -> None:
        self._in_vain = 0
        self._dead = 0
        """Dead rows at the last look: while they do not grow, nothing happens in the store."""
        self._began_at = -inf
        self._rests_until = -inf

    @property
    def rests_for(self) -> float:
        """Seconds for which nothing is to be cleared away, however much there is."""
        return max(0.0, self._rests_until - SystemClock.monotonic())

    async def clear_if_worth_it(self, transactions: Transactions, connect: Connect) -> float | None:
        """Clear dead rows away if there are many; return in how many seconds to look again, None if
        there is no hurry.
        """
        ((dead, live, is_ours),) = await transactions.call(SQL["dead"])
        before, self._dead = self._dead, dead
        if not is_ours:
            return None
        if rests := self.rests_for:
            return max(EVERY, rests)
        if not self.is_worth_it(dead, live):
            return EVERY if dead > before else None
        with named_errors():
            connection = await connect()
            try:
                if connection.is_pooled:
                    return None  # a pooler has no connection that is ours alone
                self._dead = 0
                await self.clear(runner(connection, transactions.schema), dead)
            finally:
                await connection.close()
        return self.rests_for

    def is_worth_it(self, dead: int, live: int) -> bool:
        """So many dead rows, beside so many live ones, should be cleared away."""
        return dead > FEW + live / 5

    async def clear(self, run: Run, before: int) -> None:
        """Clear so many dead rows away, on a connection that is closed afterwards."""
        await run(SQL["limits"])
        self._begin()
        try:
            await run(SQL["vacuum"])
            await run(SQL["counted"])
            ((after, _, _),) = await run(SQL["dead"])
        except errors.LockNotAvailable:
            # Autovacuum or another leader is at it.
            self._in_vain -= 1
            self._rests_until = SystemClock.monotonic() + EVERY
        except errors.QueryCanceled:
            pass
        else:
            self._end(before, after)

    def _begin(self) -> None:
        """It is in vain unless it is told otherwise, however it ends."""
        first, last = IN_VAIN
        self._began_at = SystemClock.monotonic()
        self._rests_until = self._began_at + min(last, first * 2.0**self._in_vain)
        self._in_vain = min(self._in_vain + 1, 10)

    def _end(self, before: int, after: int) -> None:
        if after < before:
            now = SystemClock.monotonic()
            self._in_vain = 0
            self._rests_until = now + max(EVERY, SHARE * (now - self._began_at))
