"""Linux tells when a file is written: inotify, so that sleepers cost nothing and wake at once.

Where there is no inotify, or no watch to be had, ``watching`` is false and somebody has to look.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final

_MODIFY: Final = 0x2
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_IGNORED: Final = 0x8000
_HEADER: Final = 16
"""Bytes of an event without its name: watch, mask, cookie, length of the name."""


class FileEvents:
    """Calls ``changed`` on the running loop after each write to a file, between ``watch`` and
    ``rest``.
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
        a busy writer does not wake a loop where nobody listens.
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
                # The file is another one now, or will be when somebody makes it.
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
