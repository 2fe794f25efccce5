"""A connection that an attempt has for itself, until it gives it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from penstock.engines.postgres.shelf import Shelf
from penstock.engines.postgres.wires import Wire


class Loan(ABC):
    """A connection, and what was wanted around it."""

    wire: Wire
    session: Any = None

    @abstractmethod
    async def flush(self) -> bool:
        """Send what a session has not sent yet; False: it is not in our transaction any more."""

    @abstractmethod
    async def finish(self, *, keeps: bool) -> None:
        """Give it back if it can be used again; else close it."""


class Plain(Loan):
    """Nothing but the connection."""

    def __init__(self, shelf: Shelf, wire: Wire) -> None:
        self.wire = wire
        self._shelf = shelf

    async def flush(self) -> bool:
        return True  # there is no session

    async def finish(self, *, keeps: bool) -> None:
        is_as_new = self.wire.renew()
        if not (keeps and is_as_new and self._shelf.keep(self.wire)):
            await self.wire.close()
