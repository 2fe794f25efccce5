"""One worker process of a supervisor: start it, hear it, tell it, kill it.

It is a fresh interpreter, never a fork: the supervisor has threads and a handle on the store. It
leads a session of its own, so that Ctrl-C reaches the supervisor alone and not what its handlers
have started. All it is told comes over a socket; when that closes, it knows that the supervisor
is dead.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.spawn import get_executable
from typing import Final, Protocol

import msgspec

from penstock.core.job import Outcome
from penstock.worker.status import Pulse
from penstock.worker.supervisor.replica_messages import (
    Done,
    Drain,
    Failed,
    Joined,
    Lives,
    Loaded,
    Orders,
    Replace,
    Said,
    Told,
    Will,
    packed,
    unpacked,
)

PROGRAM: Final = "penstock.worker_process"
PIECE: Final = 1 << 16
PIECES: Final = 64
"""What is heard of one process before others have their turn."""
_OWN: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""What a service manager says to the supervisor alone."""


class Process(Protocol):
    """What a member needs of ``subprocess.Popen``."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


class Member:
    """A worker process, and all it has said so far. Lives on the supervisor's loop."""

    def __init__(
        self, process: Process, talk: socket.socket, heard: Callable[[], None], now: float
    ) -> None:
        self.pid = process.pid
        self.code: int | None = None
        """What it ended with; None: it lives."""
        self.loaded: Loaded | None = None
        self.worker = ""
        """The name it has its lease under; empty before it has joined."""
        self.joined_at: float | None = None
        self.pulse = Pulse(worker="")
        self.has_news = False
        """It gave a sign of life that nobody has looked at yet."""
        self.silence = 0.0
        """Seconds that the supervisor saw no sign of life; see ``Supervisor``."""
        self.wants_out: str | None = None
        """Why it should be replaced."""
        self.is_wedged = False
        """It cannot end by itself what it has begun."""
        self.will: dict[tuple[str, str, int], Outcome] = {}
        """What to settle after its death, by worker, job and attempt."""
        self.failed: Failed | None = None
        self.is_done = False
        self.doom_at: float | None = None
        """When it is killed if it still lives; None: it may take its time."""
        self.is_told = False
        """It was told to stop."""
        self.is_killed = False
        """The supervisor has ended it, and has said why where that is worth a word."""
        self.started_at = now
        self.is_late = False
        """Somebody was told that it takes long to load."""
        self._process = process
        self._talk = talk
        self._heard = heard
        self._buffer = bytearray()
        self._decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
        talk.setblocking(False)

    def fileno(self) -> int:
        """The socket it speaks through; -1: it is closed."""
        return self._talk.fileno()

    @property
    def is_alive(self) -> bool:
        """Its death is not known."""
        return self.code is None

    def hear(self, now: float) -> bool:
        """Take in what it has said, some of it if it is much; False: it will say no more."""
        for _ in range(PIECES):
            try:
                piece = self._talk.recv(PIECE)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not piece:
                return False
            self._buffer += piece
            try:
                for said in unpacked(self._buffer, self._decoder):
                    self._note(said, now)
            except msgspec.DecodeError:
                self._babbles()
                return False
            finally:
                self._heard()
        return True

    def tell(self, *told: Told) -> None:
        """Say something to it; one that cannot hear any more is as good as dead."""
        try:
            self._talk.send(b"".join(packed(each) for each in told))
        except OSError:
            pass

    def drain(self, seconds: float | None, until: float | None) -> None:
        """Tell it to stop, and when it is killed if it does not."""
        self.is_told = True
        self.tell(Drain(seconds))
        if until is not None:
            self.doom_at = until if self.doom_at is None else min(until, self.doom_at)

    def kill(self) -> None:
        """End it, and what its handlers have started in its session."""
        if self.is_alive:
            self.is_killed = True
            self._kill_group()

    def look(self, now: float) -> bool:
        """Has it died? Then all it ever said is taken in, and this was the last look."""
        if not self.is_alive or (code := self._process.poll()) is None:
            return False
        self.hear(now)
        self.code = code
        if code != 0:
            self._kill_group()
        return True

    def close(self) -> None:
        """Let go of its socket. Whoever listens there must have stopped before."""
        self._talk.close()

    def _babbles(self) -> None:
        """A handler has written to its socket: nothing it says can be understood any more."""
        if self.joined_at is None:
            self.kill()
        self.wants_out, self.is_wedged = "what it says cannot be understood", True

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left; macOS says it so of a zombie

    def _note(self, said: Said, now: float) -> None:
        self.has_news = True
        match said:
            case Loaded():
                self.loaded = said
            case Joined(worker):
                self.worker = worker
                if self.joined_at is None:
                    self.joined_at = now
            case Lives(pulse):
                self.pulse = pulse
            case Replace(reason, is_wedged):
                self.wants_out = reason
                self.is_wedged = self.is_wedged or is_wedged
            case Will(worker, outcomes):
                self.will.update(((worker, each.job, each.attempt), each) for each in outcomes)
            case Failed():
                self.failed = said
            case Done():
                self.is_done = True


def spawn(
    orders: Orders, heard: Callable[[], None], now: float, output: int | None = None
) -> Member:
    """Start a worker process and give it its orders; what it prints goes to ``output``, a file by
    its number, else where the supervisor prints.

    On failure: ``OSError``: there is no room for another process.
    """
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name not in _OWN}
    try:
        with theirs:
            process = subprocess.Popen(
                _command(theirs.fileno(), orders.app),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    member = Member(process, ours, heard, now)
    member.tell(orders)
    return member


def _command(number: int, app: str | None) -> Sequence[str]:
    """The name of the application is for those who look at the list of processes.

    It looks for Penstock where the supervisor has found it: not first in the working directory,
    where a ``queue.py`` would take the place of the one that Python needs itself.
    """
    python = [os.fsdecode(get_executable() or sys.executable)]
    if sys.path[:1] not in ([""], [os.getcwd()]):
        python.append("-P")
    return [*python, "-m", PROGRAM, str(number), app or ""]


def is_supervised() -> bool:
    """This process was started by a supervisor, or was forked from one that was."""
    return PROGRAM in sys.orig_argv
