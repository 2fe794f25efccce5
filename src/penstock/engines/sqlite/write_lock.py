"""A fair write lock beside an SQLite file, held by the operating system.

SQLite's own busy handler lets the process win that asks first after a commit, so a busy one can
keep the others out for a long time. Two locks in a row mend that: a writer first takes the *gate*,
then the *main* lock, and opens the gate again. A process that has just written finds the gate
closed by the one that waits, and cannot overtake it.

The system gives a dead process's locks back, so a ``kill -9`` blocks no other. A forked child
shares its parent's open files and would keep such a lock alive: it closes its copies at once.

| if the holder dies             | then                                                       |
|--------------------------------|------------------------------------------------------------|
| while it waits at the gate     | the next one has the gate                                  |
| between gate and main          | both are free                                              |
| inside its transaction         | SQLite rolls it back when the next writer looks            |
| after a fork, in the parent    | the child has no copy of the lock, so it is free           |
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from penstock.clock import Clock
from penstock.errors import EngineBusy

_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.001  # a process that waits long must not ask less often than a new one


class WriteLock:
    """The two locks of one handle. Not for several threads at once."""

    def __init__(self, path: str, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        path = os.path.realpath(path)  # one lock for all names of a file
        self._gate = _lock_file(f"{path}-gate", path)
        try:
            self._main = _lock_file(f"{path}-main", path)
        except OSError:
            os.close(self._gate)
            raise
        self._is_open = True
        _open_locks.add(self)

    @contextmanager
    def writing(self, timeout: float) -> Iterator[None]:
        """Be the only writer; raises ``EngineBusy`` when that takes longer than ``timeout``."""
        deadline = self._clock.monotonic() + timeout
        try:
            try:
                self._take(self._gate, deadline)
                self._take(self._main, deadline)
            finally:
                self._free(self._gate)
            yield
        finally:
            self._free(self._main)

    def _take(self, lock: int, deadline: float) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise EngineBusy(self._name, "another process has been writing") from None
                threading.Event().wait(min(pause, left))
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                return

    def _free(self, lock: int) -> None:
        if self._is_open:
            fcntl.flock(lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close both files; a lock that is still held is free then. Idempotent."""
        if self._is_open:
            self._is_open = False
            _open_locks.discard(self)
            os.close(self._gate)
            os.close(self._main)


def try_lock(path: str) -> io.FileIO | None:
    """Be the only writer until the file that is returned is closed; None: another one is, or waits.

    For the thread that signals interrupt. A lock lasts as long as its file is open, and a file is
    closed in C, by its ``with`` or when its last reference goes: whatever signal handlers raise,
    and however often, it is not left behind.
    """
    path = os.path.realpath(path)
    with io.FileIO(f"{path}-gate", "r+") as gate:
        main = io.FileIO(f"{path}-main", "r+")
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(main, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            main.close()
            return None
        except BaseException:
            main.close()
            raise
        return main


def _lock_file(name: str, store: str) -> int:
    """Open a lock file, for all who may use the store, whatever the umask of its maker."""
    lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # it is another user's, who has seen to it
        model = os.stat(store)
        os.fchmod(lock, model.st_mode & 0o666)
        if os.geteuid() == 0:
            os.fchown(lock, model.st_uid, model.st_gid)
    return lock


# A fork hook can never be taken back, so there is one for all locks.
_open_locks: WeakSet[WriteLock] = WeakSet()


def _close_copies() -> None:
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_copies)
