"""A fair write lock beside an SQLite file, held by the operating system.

SQLite's own busy handler lets whoever asks first after a commit win, so a busy process can keep the
others out for a long time. Two locks in a row mend that: a writer first takes the *gate*, then the
*main* lock, and opens the gate again. Whoever has just written finds the gate closed by the one
that waits, and cannot overtake it.

The system gives a dead process's locks back, so a ``kill -9`` blocks nobody. A forked child shares
its parent's open files and would keep such a lock alive: it closes its copies at once.

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
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakSet

from penstock.clock import Clock
from penstock.engines.undo import Undo
from penstock.errors import EngineBusy

_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.001  # whoever waits long must not ask less often than whoever comes new


class FileGate:
    """The two locks of one handle. Not for several threads at once."""

    def __init__(self, path: str, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        path = os.path.realpath(path)  # one gate for all names of a file
        self._gate = _lock_file(f"{path}-gate", path)
        try:
            self._main = _lock_file(f"{path}-main", path)
        except OSError:
            os.close(self._gate)
            raise
        self._opening = Undo(partial(fcntl.flock, self._gate, fcntl.LOCK_UN))
        self.freeing = Undo(partial(fcntl.flock, self._main, fcntl.LOCK_UN))
        """Ends what ``grab`` began; to be entered before, and left whatever became of it."""
        self.is_open = True
        _open_gates.add(self)

    @contextmanager
    def writing(self, timeout: float) -> Iterator[None]:
        """Be the only writer; raises ``EngineBusy`` when that takes longer than ``timeout``."""
        deadline = self._clock.monotonic() + timeout
        with self.freeing:
            with self._opening:
                self._take(self._gate, deadline)
                self._take(self._main, deadline)
            yield

    def grab(self) -> bool:
        """Be the only writer until the end of ``freeing``, if nobody is and nobody waits to be."""
        with self._opening:
            try:
                fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(self._main, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

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

    def close(self) -> None:
        """Close both files; a lock that is still held is free then. Idempotent."""
        if self.is_open:
            self.is_open = False
            self._opening.forget()
            self.freeing.forget()
            _open_gates.discard(self)
            os.close(self._gate)
            os.close(self._main)


def _lock_file(name: str, store: str) -> int:
    """Open a lock file, for all who may use the store, whatever the umask of who came first."""
    lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # it is another user's, who has seen to it
        model = os.stat(store)
        os.fchmod(lock, model.st_mode & 0o666)
        if os.geteuid() == 0:
            os.fchown(lock, model.st_uid, model.st_gid)
    return lock


# A fork hook can never be taken back, so there is one for all gates.
_open_gates: WeakSet[FileGate] = WeakSet()


def _close_copies() -> None:
    for gate in list(_open_gates):
        gate.close()


os.register_at_fork(after_in_child=_close_copies)
