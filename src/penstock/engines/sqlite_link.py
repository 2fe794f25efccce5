"""A connection to an SQLite file that no fork can tear.

SQLite keeps its file locks per process, together with counters in the process's memory. A forked
child inherits the counters but not the locks: what it opens on the same file afterwards believes
that it has locks which it has not, and a parent that closes the file takes the child's commits with
it. So no connection is open at the moment of a fork: the parent closes each one between two uses,
and both sides open anew at their next use.

| if the process forks        | then                                                            |
|-----------------------------|-----------------------------------------------------------------|
| while a step is under way   | the fork waits until the step has ended                         |
| between two steps           | the connection is closed; the next step opens it again          |
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet


class SqliteLink:
    """One connection, opened when it is needed."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock: Any = threading.RLock()  # it can say whose it is
        self.connection: sqlite3.Connection | None = None
        self.times_opened = 0
        _links.add(self)

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Have the connection; the process does not fork meanwhile."""
        with self._lock:
            if self.connection is None:
                self.connection = self._connect()
                self.times_opened += 1
            yield self.connection

    @property
    def is_mine(self) -> bool:
        """The calling thread has the connection."""
        return bool(self._lock._is_owned())

    def grab(self) -> sqlite3.Connection | None:
        """Have the connection if nobody has it, until ``give_back``."""
        if not self._lock.acquire(blocking=False):
            return None
        if self.connection is None:
            self.connection = self._connect()
            self.times_opened += 1
        return self.connection

    def give_back(self) -> None:
        """After ``grab``, whatever became of it, where ``is_mine``."""
        self._lock.release()

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def pause(self) -> None:
        """Before a fork: nobody has the connection from here on."""
        self._lock.acquire()
        self._disconnect()

    def resume(self) -> None:
        """After a fork, on both sides."""
        self._lock.release()


# Fork hooks can never be taken back, so there is one set for all links.
_links: WeakSet[SqliteLink] = WeakSet()
_one_fork_at_a_time = threading.Lock()
_paused: list[SqliteLink] = []


def _before() -> None:
    _one_fork_at_a_time.acquire()
    for link in list(_links):
        link.pause()
        _paused.append(link)


def _after() -> None:
    for link in _paused:
        link.resume()
    _paused.clear()
    _one_fork_at_a_time.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
