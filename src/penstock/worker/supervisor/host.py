"""What a supervisor needs of its machine: systemd, changes of files, orphaned processes."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Container, Mapping
from importlib.util import find_spec

from penstock.errors import BadOption


class Systemd:
    """Tells the service manager how it goes (``sd_notify``); without ``NOTIFY_SOCKET``, nothing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # An abstract socket is written with "@" for its leading NUL.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address and hasattr(socket, "AF_UNIX"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self.watchdog_every = _half_of_watchdog(environ) if self._socket else None
        """Seconds between two signs of life, half of its limit; None: it wants none."""

    def tell(self, **facts: object) -> None:
        """Send facts such as ``READY=1``, without waiting; they may be lost."""
        if self._socket is None:
            return
        lines = "\n".join(f"{name}={value}" for name, value in facts.items())
        try:
            self._socket.sendto(lines.encode(), self._address)
        except OSError:
            pass  # the manager is restarting, or has too much to read

    def close(self) -> None:
        """Send no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _half_of_watchdog(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # it is another process's
    try:
        every = int(environ.get("WATCHDOG_USEC", "0")) / 2_000_000
    except ValueError:
        return None
    return every if every > 0 else None


def check_watchable() -> None:
    """Refuse ``--reload`` where the package that watches files is missing."""
    if find_spec("watchfiles") is None:
        why = "watching files needs a package that is not installed: pip install 'penstock[reload]'"
        raise BadOption("reload", True, why)


async def changes(directory: str) -> AsyncIterator[list[str]]:
    """The Python files below a directory that were changed, each time some were."""
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # the supervisor logs it, once
    async for changed in awatch(directory, watch_filter=PythonFilter()):
        yield sorted(path.removeprefix(directory).lstrip(os.sep) for _, path in changed)


def reap_orphans(own: Container[int]) -> None:
    """Reap dead children except ``own`` ones, whose exit codes are still needed.

    Process 1 of a container becomes the parent of every process whose own parent has died, such as
    those that a handler has started; if it never reaps them, the process table fills up.
    """
    if not hasattr(os, "waitid"):
        return
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is None or dead.si_pid in own:
                return  # the others have their turn when it is gone
            os.waitid(os.P_PID, dead.si_pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return


def has_terminal() -> bool:
    """This process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
