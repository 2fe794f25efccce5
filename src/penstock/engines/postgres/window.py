"""What is said at the counter of a PostgreSQL store, on whatever connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.core.job import Draft
from penstock.engines.postgres.bell import Bell
from penstock.engines.postgres.connection import Statement, Texts
from penstock.engines.postgres.enqueue import Plain
from penstock.engines.postgres.schema import placed
from penstock.engines.sql_files import statements

MOST: Final = 1000
"""Jobs that are stored in one commit at most."""
BYTES: Final = 4 << 20
"""Payloads that fill a commit: whoever comes then goes into the next one."""
LONGEST: Final = 10.0
"""Seconds that one commit may take."""
_WORDS: Final = {True: b"t", False: b"f", None: None}


class Window:
    """What the counter has to know of its store."""

    def __init__(
        self,
        name: str,
        schema: str,
        doubted_at: Callable[[], float],
        doubt: Callable[[Sequence[Draft]], None],
        instant: Callable[[], float | None],
    ) -> None:
        """``doubted_at`` and ``doubt`` are of the handle: since when nothing that it sent is in
        doubt, and that something is now. ``instant`` is what a test says the time is.
        """
        self.name = name
        self.doubted_at = doubted_at
        self.doubt = doubt
        self.instant = instant
        self._put = _statement("put", schema)
        self._put_one = _statement("put_one", schema)
        self.wake = _statement("wake", schema)
        self.tell_news = _statement("tell_news", schema)

    @property
    def statements(self) -> tuple[Statement, ...]:
        """All that is said at the counter."""
        return self._put, self._put_one, self.wake, self.tell_news

    def order(self, plain: Plain, bell: Bell) -> Order:
        """How to store jobs, and to look meanwhile whether somebody sleeps."""
        row = plain.row(self.doubted_at())
        values = [None if each is None else str(each).encode() for each in row]
        asks = bell.asks()
        if row[-1] is not None or plain.has_many:
            return Order(self._put, values, plain.queue, has_looked=True)
        values[-1] = _WORDS[asks]
        return Order(self._put_one, values, plain.queue, has_looked=asks is not None)


class Order(NamedTuple):
    """What is said to store jobs."""

    statement: Statement
    values: Texts
    queue: str
    has_looked: bool
    """The reply says whether somebody sleeps."""


def _statement(name: str, schema: str) -> Statement:
    return Statement(name.encode(), placed(statements("postgres/counter.sql")[name], schema))
