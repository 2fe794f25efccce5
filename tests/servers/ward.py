"""One server program in the care of a warden: started, signalled and killed as a test says."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from servers import warden
from servers.programs import stand_in

PATIENCE = 60.0
"""Real seconds after which something counts as never coming; nothing waits for it to pass."""


class ServerTrouble(Exception):
    """A server did not do what it was told; its log says why."""

    def __init__(self, what: str, log: str) -> None:
        super().__init__(what, log)
        self.what = what
        self.log = log

    def __str__(self) -> str:
        return f"{self.what}; the end of its log:\n{self.log[-2000:]}"


class Ward:
    """A folder and the program that runs in it, both gone at the latest with this process."""

    def __init__(self) -> None:
        user = stand_in()
        self._owner = os.getpid()
        self._warden = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                warden.__file__,
                str(self._owner),
                *([user] if user else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C is for the tests; the warden sees that they are gone.
            start_new_session=True,
        )
        self._user = user
        self.folder = Path(self._hears("folder"))
        self.pid: int | None = None
        """Of the program while it runs; it may have ended unheard."""

    def start(self, *command: str) -> None:
        """Run a program in the folder. Of those that ran before nothing is left."""
        assert self.pid is None, "it runs already"
        self._order("start", *command)
        self.pid = int(self._hears("started"))

    def send(self, number: signal.Signals) -> None:
        """Send the program a signal, unless it has ended."""
        self._order("signal", number)

    def kill(self) -> None:
        """End the program and all its processes with SIGKILL; return when they are gone."""
        if self.pid is not None:
            self._order("kill")
            self.ended()

    def ended(self) -> int:
        """Wait until the last process of the program is gone; return its exit code."""
        code = int(self._hears("ended"))
        self.pid = None
        return code

    def has_ended(self) -> bool:
        """Say whether all its processes are gone, at once."""
        return self.pid is None or self._has_news(0)

    def run(self, *command: str) -> None:
        """Run a program to its end, which must be a good one."""
        self.start(*command)
        if code := self.ended():
            raise ServerTrouble(f"{command[0]} ended with {code}", self.log())

    def write(self, name: str, text: str) -> Path:
        """Make a file in the folder that the program may read."""
        path = self.folder / name
        path.write_text(text)
        if self._user is not None:
            os.chmod(path, 0o644)
        return path

    def log(self) -> str:
        """What the program has said so far."""
        try:
            return (self.folder / "log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Kill what runs, and remove the folder. A forked child has nothing to close."""
        if self._owner != os.getpid() or self._warden.poll() is not None:
            return
        assert self._warden.stdin
        assert self._warden.stdout
        self._warden.stdin.close()
        self._warden.wait(PATIENCE)
        self._warden.stdout.close()

    def _order(self, *words: object) -> None:
        assert self._warden.stdin
        self._warden.stdin.write(json.dumps(words).encode() + b"\n")

    def _hears(self, expected: str) -> str:
        assert self._warden.stdout
        if not self._has_news(PATIENCE):
            raise ServerTrouble(f"it was never {expected}", self.log())
        word, _, fact = self._warden.stdout.readline().decode().strip().partition(" ")
        if word != expected:
            raise ServerTrouble(f"it {word} {fact} before it was {expected}", self.log())
        return fact

    def _has_news(self, timeout: float) -> bool:
        assert self._warden.stdout
        return bool(select.select([self._warden.stdout], [], [], timeout)[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on.

    Below those that the system gives to clients: nobody gets it while its server is away.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
