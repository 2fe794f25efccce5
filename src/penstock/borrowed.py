"""Enqueue on a connection of the caller's, as a part of the caller's own transaction.

In a test's sandbox the jobs go where all others go, at once: what the test has put before the store
is in no database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.core.job import Draft
from penstock.engines.records import Receipt
from penstock.source import Source


class Borrowed(Protocol):
    """A connection that belongs to the caller, as a way into the store in its database."""

    def put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store jobs in the caller's transaction; a receipt for each, in order."""

    async def aput(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """The same, awaited."""


Borrow = Callable[[object], Borrowed | None]
"""What makes a way in of the caller's connection; None: there is none, and jobs go the usual way.

On failure: ``WrongConnection``."""


def borrowed(
    source: Source, borrow: Callable[[object], Borrowed], connection: object
) -> Borrowed | None:
    """The caller's connection as a way into the app's own store."""
    return borrow(connection) if source.is_own else None
