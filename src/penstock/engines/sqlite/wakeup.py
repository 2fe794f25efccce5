"""How a waiting process learns of commits: a look at ``data_version`` after each write to the log.

SQLite has no way to tell another process of a commit, but it keeps a number that a connection sees
change after any commit by another one. Reading it takes microseconds. When to read it is told by
the system: a commit is written to the log first and becomes visible a moment later, so after the
last write we look again and again, at growing intervals, until it must be visible. Where the system
does not tell (it has no inotify, or no watch to give), we look every few milliseconds. Nothing
looks while no call listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sqlite3
import sys
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.engines.sqlite.connection import ForkSafeConnection
from penstock.errors import EngineClosed

INTERVAL: Final = 0.004
"""Seconds between two looks where the system does not tell of writes."""

LOOKS: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
"""Seconds between the looks after a write. A commit that takes longer is seen by the backstop."""

AFTER: Final = (0.004, 0.064)
"""Seconds between the looks after a commit was seen: another one may have been written with it.
Every look wakes a process that has nothing else to do.
"""

BACKSTOP: Final = 0.5

_MODIFY: Final = 0x2
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_IGNORED: Final = 0x8000
_HEADER: Final = 16
"""Bytes of an event without its name: watch, mask, cookie, length of the name."""


class FileEvents:
    """Calls ``changed`` on the running loop after each write to a file, between ``watch`` and
    ``rest``; by inotify, so that waiting costs nothing. Not ``watching``: the caller has to look.
    """

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        self._path = os.fsencode(path)
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._inotify = -1
        self._is_reading = False
        self.watching = False
        if self._libc is not None:
            self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._notice()

    def watch(self) -> None:
        """Begin to tell of writes, also of those since ``rest``, if the file is there."""
        self._notice()
        if self._inotify >= 0 and not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._inotify, self._read)

    def rest(self) -> None:
        """Tell of nothing until ``watch``. The system keeps one event for all writes until then:
        a busy writer does not wake a loop where no call listens.
        """
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._inotify)

    def _notice(self) -> None:
        if self._inotify >= 0 and not self.watching and self._libc is not None:
            mask = _MODIFY | _DELETE_SELF | _MOVE_SELF
            self.watching = self._libc.inotify_add_watch(self._inotify, self._path, mask) >= 0

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            events = os.read(self._inotify, 4096)
            if _tells_of_the_end(events):
                # The file is another one now, or will be when it is made.
                self.watching = False
                self._notice()
            self._changed()

    def close(self) -> None:
        """Stop watching."""
        self.rest()
        if self._inotify >= 0:
            os.close(self._inotify)
            self._inotify = -1
            self.watching = False


def _tells_of_the_end(events: bytes) -> bool:
    """One of these events says that the watched file is gone."""
    offset = 0
    while offset + _HEADER <= len(events):
        mask = int.from_bytes(events[offset + 4 : offset + 8], sys.byteorder)
        if mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED):
            return True
        offset += _HEADER + int.from_bytes(events[offset + 12 : offset + 16], sys.byteorder)
    return False


class CommitWatch:
    """Sees commits to the store, for one handle. Belongs to the handle's loop."""

    def __init__(self, connection: ForkSafeConnection, log: str, name: str, clock: Clock) -> None:
        self._name = name
        self._connection = connection
        self._clock = clock
        self._seen = (0, 0)
        self._seen = self._read()
        self._version = 1
        self._listeners: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._written = asyncio.Event()
        self._events = FileEvents(log, self._written.set)

    def version(self) -> int:
        """Return a number that changes after any commit."""
        self._look()
        return self._version

    async def listen(self, seen: int, timeout: float) -> int:
        """Sleep until the version is no longer ``seen``, at most ``timeout`` seconds."""
        if self.version() != seen:
            return self._version
        event = asyncio.Event()
        self._listeners.add(event)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch())
        try:
            await self._clock.wait(event, timeout)
        finally:
            self._listeners.discard(event)
        if self._is_closed:
            raise EngineClosed(self._name)
        return self._version

    async def _watch(self) -> None:
        """Look whenever there may be something to see, while any call listens."""
        pauses = iter(LOOKS)
        try:
            while self._listeners:
                self._events.watch()
                pause = next(pauses, BACKSTOP) if self._events.watching else INTERVAL
                if await _set_within(self._written, pause):
                    self._written.clear()
                    pauses = iter(LOOKS)
                if self._look():
                    pauses = iter(AFTER)
        finally:
            self._events.rest()

    def _look(self) -> bool:
        """Look whether there was a commit; True: there was."""
        number = self._read()
        if number == self._seen:
            return False
        self._seen = number
        self._version += 1
        for event in self._listeners:
            event.set()
        return True

    def _read(self) -> tuple[int, int]:
        """The number as this connection sees it; another connection counts from another start."""
        try:
            with self._connection.use() as raw:
                (number,) = raw.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            # Busy or broken: the next step will say which. Until then nothing is known to be new.
            return self._seen
        return self._connection.times_opened, int(number)

    async def close(self) -> None:
        """Stop looking, end the calls that still listen, and close the connection."""
        self._is_closed = True
        for event in self._listeners:
            event.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._events.close()
        self._connection.close()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event in real time: what writes is real, whatever the clock of a test says."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
