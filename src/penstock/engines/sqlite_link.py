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
from operator import methodcaller
from typing import Any
from weakref import WeakSet


class SqliteLink:
    """One connection, opened when it is needed."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self.lock: Any = threading.RLock()  # it can say whose it is
        """Whoever has it has the connection; the process does not fork meanwhile."""
        self.connection: sqlite3.Connection | None = None
        self.times_opened = 0
        with _fork:
            _links.add(self)

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Have the lock and the connection."""
        with self.lock:
            yield self.open()

    def open(self) -> sqlite3.Connection:
        """The connection, for whoever has the lock."""
        if self.connection is None:
            self.connection = self._connect()
            self.times_opened += 1
        return self.connection

    @property
    def is_mine(self) -> bool:
        """The calling thread has the lock."""
        return bool(self.lock._is_owned())

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self.lock:
            connection, self.connection = self.connection, None
            if connection is not None:
                connection.close()


# Fork hooks can never be taken back, so there is one set for all links.
_links: WeakSet[SqliteLink] = WeakSet()
_fork: Any = threading.RLock()  # one at a time, and nobody makes a link meanwhile
_locks: list[Any] = []
_taken: list[bool] = []
_given: list[None] = []
_take = methodcaller("acquire")
_give = methodcaller("release")


def _before() -> None:
    """Have all locks and close all connections; the process forks whatever is raised here."""
    try:
        _pause()
    except BaseException:  # out of a signal handler
        _pause()
        raise


def _after() -> None:
    """Give back what was taken, on both sides."""
    try:
        _resume()
    finally:
        _resume()


# Locks are taken and counted in one call of C, where no signal handler can come in between. So both
# of these go on where they were interrupted.


def _pause() -> None:
    if not _fork._is_owned():
        _fork.acquire()
    if not _locks:
        _locks[:] = [link.lock for link in _links]
    _taken.extend(map(_take, _locks[len(_taken) :]))
    for link in list(_links):
        link.close()


def _resume() -> None:
    if _fork._is_owned():
        _given.extend(map(_give, _locks[len(_given) : len(_taken)]))
        _locks.clear()
        _taken.clear()
        _given.clear()
        _fork.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
