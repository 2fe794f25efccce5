"""Runs a server for a test process, and leaves nothing of it when that process is gone.

    warden.py PARENT [USER]

A process of its own, so that it can tidy up also after the tests were killed with -9. It makes a
folder, says where, then takes one order per line, as JSON: ``["start", PROGRAM, ARGUMENT...]``,
``["signal", NUMBER]`` or ``["kill"]``. It says ``started PID``, and ``ended CODE`` when the last
process of the program is gone. When its input ends, or its parent is no longer PARENT (a forked
child of the tests may keep the input open), it kills what runs and removes the folder.

A program and all processes that come from it have the writing end of a pipe: when that pipe ends,
every one of them is gone.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GLANCE = 0.5
"""Seconds between two looks at who the parent is."""


class Warden:
    """Holds one folder, and at most one running program."""

    def __init__(self, user: str | None) -> None:
        self.folder = tempfile.mkdtemp(prefix="penstock-server-")
        self._as: dict[str, Any] = {}
        if user is not None:
            entry = pwd.getpwnam(user)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self._as = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self._program: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def serve(self, parent: int) -> None:
        """Obey until the tests are gone."""
        orders = open(0, "rb", buffering=0)
        say("folder", self.folder)
        while os.getppid() == parent:
            watched = [orders.fileno(), *([self._lifeline] if self._program else [])]
            ready, _, _ = select.select(watched, [], [], GLANCE)
            if self._lifeline in ready:
                say("ended", self._bury())
            if orders.fileno() in ready:
                line = orders.readline()
                if not line:
                    return
                self._obey(*json.loads(line))

    def close(self) -> None:
        if self._program:
            self._kill(self._program)
            os.read(self._lifeline, 1)
            self._bury()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _obey(self, verb: str, *facts: Any) -> None:
        match verb, self._program:
            case "start", None:
                self._program = self._start(list(facts))
                say("started", self._program.pid)
            case "signal", subprocess.Popen() as program:
                program.send_signal(facts[0])
            case "kill", subprocess.Popen() as program:
                self._kill(program)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        self._lifeline, theirs = os.pipe()
        try:
            with open(f"{self.folder}/log", "ab") as log:
                return subprocess.Popen(
                    command,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs],
                    start_new_session=True,
                    **self._as,
                )
        finally:
            os.close(theirs)

    def _kill(self, program: subprocess.Popen[bytes]) -> None:
        """End all its processes at once, without a word to any."""
        # Stopped, it starts no more children and buries none: their numbers stay theirs.
        program.send_signal(signal.SIGSTOP)
        if program.returncode is None:
            os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            for child in children(program.pid):
                os.kill(child, signal.SIGKILL)
            program.kill()

    def _bury(self) -> int:
        """Return how the program ended."""
        assert self._program is not None
        code = self._program.wait()
        os.close(self._lifeline)
        self._program, self._lifeline = None, -1
        return code


def children(pid: int) -> list[int]:
    """The processes that a process has started and not buried."""
    known = Path(f"/proc/{pid}/task/{pid}/children")
    if known.exists():
        return [int(child) for child in known.read_text().split()]
    every = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True)
    pairs = [line.split() for line in every.stdout.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


def say(what: str, fact: object) -> None:
    print(what, fact, flush=True)


def main() -> None:
    parent, *user = sys.argv[1:]
    warden = Warden(user[0] if user else None)
    try:
        warden.serve(int(parent))
    except BrokenPipeError:
        pass  # the tests were killed while they were told something
    finally:
        warden.close()
        # What is still to be said has nobody to hear it.
        os._exit(0)


if __name__ == "__main__":
    main()
