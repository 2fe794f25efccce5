"""Tell systemd how the supervisor is doing: ``sd_notify``, a datagram of a few lines.

Without ``NOTIFY_SOCKET`` in the environment, nothing is said.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Container, Mapping
from importlib.util import find_spec

from penstock.errors import BadOption


class Systemd:
    """The way to the service manager that has started this process, if one has."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # An abstract socket is written with "@" for its leading NUL.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address and hasattr(socket, "AF_UNIX"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self.watchdog_every = self._half_of(environ) if self._socket else None
        """Seconds between two signs of life, half of what it waits for; None: it wants none."""

    def tell(self, **facts: object) -> None:
        """Send facts such as ``READY=1``. Nobody waits for it, and nobody must hear it."""
        if self._socket is None:
            return
        lines = "\n".join(f"{name}={value}" for name, value in facts.items())
        try:
            self._socket.sendto(lines.encode(), self._address)
        except OSError:
            pass  # the manager is restarting, or has too much to read

    def close(self) -> None:
        """Say no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _half_of(environ: Mapping[str, str]) -> float | None:
        if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return None  # it is another process's
        try:
            every = int(environ.get("WATCHDOG_USEC", "0")) / 2_000_000
        except ValueError:
            return None
        return every if every > 0 else None


# --- reload -------------------------------------------------------------------------------------
#
# Notice that somebody has changed the code below a directory.


def check_watchable() -> None:
    """Refuse ``--reload`` where nothing can watch files."""
    if find_spec("watchfiles") is None:
        why = "watching files needs a package that is not installed: pip install 'penstock[reload]'"
        raise BadOption("reload", True, why)


async def changes(directory: str) -> AsyncIterator[list[str]]:
    """The Python files that were changed, each time some were."""
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # what it sees is said once, by us
    async for changed in awatch(directory, watch_filter=PythonFilter()):
        yield sorted(path.removeprefix(directory).lstrip(os.sep) for _, path in changed)


# --- adopted ------------------------------------------------------------------------------------
#
# The dead processes that are nobody's: who is process 1 of a container inherits them.
#
# What a handler has started, and what has outlived its worker process, becomes a child of process 1
# when its parent dies. If that is the supervisor, it has to take note of their deaths, or the list
# of
# processes fills up with them.


def reap_adopted(own: Container[int]) -> None:
    """Let dead children go, except ``own`` ones: somebody still needs their exit codes."""
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
