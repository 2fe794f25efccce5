"""Connections that attempts have written on, kept for the next ones.

There is one shelf for the threads of a process and one for each loop. Something is kept there only
while a worker lives that could use it. A forked child begins with empty shelves: what is on those
of its parent is its parent's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from penstock.engines.postgres.wires import Wire

if TYPE_CHECKING:
    from penstock.engines.postgres.loans import Loan

KEPT: Final = 10
"""Connections that one shelf keeps at most."""


class Sessions(ABC):
    """An engine of SQLAlchemy, whose pool keeps the connections that are for sessions."""

    @abstractmethod
    async def lend(self, shelf: Shelf, kind: type) -> Loan:
        """A connection with a session of this class."""

    @abstractmethod
    async def close(self) -> None:
        """Close what is kept."""


class Shelf:
    """What is kept in one place. ``room`` bounds how many attempts of a loop have one at once; the
    threads are as many as they are.
    """

    def __init__(self, room: asyncio.Semaphore | None) -> None:
        self.room = room
        self.sessions: Sessions | None = None
        self.lock = threading.Lock()
        self._workers = 0
        self._kept: list[Wire] = []

    @property
    def is_used(self) -> bool:
        """A worker lives that could use what is kept."""
        return self._workers > 0

    def join(self) -> None:
        """A worker begins."""
        with self.lock:
            self._workers += 1

    def take(self) -> Wire | None:
        """The connection that was used last; None: there is none."""
        with self.lock:
            return self._kept.pop() if self._kept else None

    def keep(self, wire: Wire) -> bool:
        """Keep one for the next; False: nobody wants it."""
        with self.lock:
            if not self.is_used or len(self._kept) >= KEPT:
                return False
            self._kept.append(wire)
            return True

    async def leave(self) -> None:
        """A worker has ended; after the last one nothing is kept."""
        with self.lock:
            self._workers -= 1
            if self.is_used:
                return
            kept, self._kept = self._kept, []
            sessions, self.sessions = self.sessions, None
        for wire in kept:
            await wire.close()
        if sessions is not None:
            await sessions.close()


class Shelves:
    """All shelves of one app."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_place: dict[tuple[int, int], Shelf] = {}

    def mine(self, *, is_async: bool) -> Shelf:
        """The one for this loop, or for the threads of this process."""
        place = os.getpid(), id(asyncio.get_running_loop()) if is_async else 0
        found = self._by_place.get(place)
        if found is None:
            room = asyncio.Semaphore(self._most) if is_async else None
            found = self._by_place.setdefault(place, Shelf(room))
        return found

    def join(self) -> None:
        """A worker begins on this loop."""
        for is_async in (False, True):
            self.mine(is_async=is_async).join()

    async def leave(self) -> None:
        """It has ended."""
        for is_async in (False, True):
            await self.mine(is_async=is_async).leave()
        if not self.mine(is_async=True).is_used:
            # The next loop may have the same place in memory.
            del self._by_place[os.getpid(), id(asyncio.get_running_loop())]
