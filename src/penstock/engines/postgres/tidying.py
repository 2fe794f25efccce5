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
| rows, or it takes too long              | twice as much                                         |
"""

from __future__ import annotations

from typing import Final

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


class Tidying:
    """What one handle knows of how it went."""

    def __init__(self) -> None:
        self._in_vain = 0

    def is_worth_it(self, dead: int, live: int) -> bool:
        """So many dead rows, beside so many live ones, should be cleared away."""
        return dead > FEW + live / 5

    def done(self, before: int, after: int, took: float) -> float:
        """It took so long, and so many dead rows are left; return when to look again."""
        if after >= before:
            first, last = IN_VAIN
            pause = min(last, first * 2.0**self._in_vain)
            self._in_vain = min(self._in_vain + 1, 10)
            return pause
        self._in_vain = 0
        return max(EVERY, SHARE * took)
