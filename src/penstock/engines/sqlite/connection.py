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

import asyncio
import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from queue import SimpleQueue
from typing import Any, Final, TypeVar
from weakref import WeakSet

from penstock.errors import (
    EngineBusy,
    EngineClosed,
    EngineCorrupt,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineUnavailable,
    ItemRefused,
    PenstockError,
)


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


# --- sqlite thread ------------------------------------------------------------------------------
#
# The thread that owns a handle's SQLite connection, and the names of what can go wrong there.
#
# SQLite blocks, so it has a thread of its own; steps are handed over and come back as futures. A
# caller that is cancelled does not stop a step that has begun: it is a lost reply, like any other.
# A
# step that has not begun is left out: it would only keep those who still wait.


Result = TypeVar("Result")
Reply = tuple["asyncio.Future[Any]", asyncio.AbstractEventLoop]
"""Where the result of a call goes."""

_BY_CODE: Final[dict[int, type[EngineError]]] = {
    sqlite3.SQLITE_BUSY: EngineBusy,
    sqlite3.SQLITE_LOCKED: EngineBusy,
    sqlite3.SQLITE_READONLY: EngineReadOnly,
    sqlite3.SQLITE_PERM: EngineReadOnly,
    sqlite3.SQLITE_FULL: EngineFull,
    sqlite3.SQLITE_CORRUPT: EngineCorrupt,
    sqlite3.SQLITE_NOTADB: EngineCorrupt,
    sqlite3.SQLITE_TOOBIG: ItemRefused,
    sqlite3.SQLITE_MISMATCH: ItemRefused,
    sqlite3.SQLITE_CONSTRAINT: ItemRefused,
}


class SqliteThread:
    """Runs one step at a time, in the order they come."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[[], Any], Reply | None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"penstock-{name}", daemon=True)
        self._is_closed = False
        self._thread.start()

    async def run(self, call: Callable[[], Result]) -> Result:
        """Run ``call`` on the thread; its error is the caller's."""
        if not self.is_alive:
            raise EngineClosed(self._name)
        return await self._hand_over(call)

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call``, which never raises, on the thread. Any thread may ask, and does not wait.

        On failure: ``EngineClosed``; without it, too, the thread may end before it comes to this.
        """
        if not self.is_alive:
            raise EngineClosed(self._name)
        self._calls.put((call, None))

    async def close(self, last: Callable[[], None]) -> None:
        """Finish what was handed over, then ``last``; then end the thread, also if cancelled."""
        if self.is_alive:
            self._is_closed = True
            ended = self._hand_over(last)
            self._calls.put(None)
            await asyncio.shield(ended)
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Calls are taken. In a forked child they are not: a fork copies no threads."""
        return not self._is_closed and self._thread.is_alive()

    def _hand_over(self, call: Callable[[], Result]) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._calls.put((call, (future, loop)))
        return future

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, reply = item
            result, error = None, None
            try:
                if reply is None or not reply[0].cancelled():
                    result = call()
            except BaseException as caught:
                error = caught
            if reply is not None:
                future, loop = reply
                with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                    loop.call_soon_threadsafe(_answer, future, result, error)
                del future, loop
            del item, call, reply, result, error


def _answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


@contextmanager
def named_errors(name: str, path: str) -> Iterator[None]:
    """Turn what SQLite and the file system raise into the errors of the contract."""
    try:
        yield
    except PenstockError:
        raise
    except (UnicodeEncodeError, OverflowError, sqlite3.DataError, sqlite3.InterfaceError) as error:
        raise ItemRefused(name, str(error)) from error
    except sqlite3.Error as error:
        raise _named(error, name, path) from error
    except OSError as error:
        if error.errno is None:
            raise  # a TimeoutError out of a signal handler: the system would have said a number
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise EngineReadOnly(name, str(error)) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EngineFull(name, str(error)) from error
        raise EngineUnavailable(name, str(error)) from error


def _named(error: sqlite3.Error, name: str, path: str) -> EngineError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = str(error)
    if code == sqlite3.SQLITE_CANTOPEN:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            return EngineUnavailable(name, f"there is no directory {folder!r}: make it first")
        if not os.access(folder, os.W_OK):
            return EngineReadOnly(name, f"directory {folder!r} cannot be written")
    kind: Any = _BY_CODE.get(code, EngineUnavailable)
    named: EngineError = kind(name, text)
    return named
