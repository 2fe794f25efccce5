"""One worker process of a supervisor: start it, read its messages, drain it, kill it.

It is a fresh interpreter, never a fork: the supervisor has threads and a handle on the store. It
leads a session of its own, so that Ctrl-C reaches the supervisor alone and not what its handlers
have started. All its instructions come over a socket; when that closes, the supervisor is dead.
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

from penstock.core.job import Outcome, OutcomeKind
from penstock.worker.status import Pulse
from penstock.worker.supervisor.replica_counts import ReplicaCounts, shared_file
from penstock.worker.supervisor.replica_messages import (
    Alive,
    CannotWork,
    Drain,
    Finished,
    FromReplica,
    Joined,
    Loaded,
    ReplaceMe,
    ReplicaSpec,
    SettleAfterDeath,
    ToReplica,
    packed,
    unpacked,
)

PROGRAM: Final = "penstock.worker_process"
READ_SIZE: Final = 1 << 16
MAX_READS: Final = 64
"""Reads from one process before the others have their turn."""
_NOT_INHERITED: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""Variables by which a service manager speaks to the supervisor alone."""


class PolledProcess(Protocol):
    """The part of ``subprocess.Popen`` that is used here."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


class ReplicaProcess:
    """A worker process and what its messages told so far. Belongs to the supervisor's loop."""

    def __init__(
        self,
        process: PolledProcess,
        connection: socket.socket,
        on_message: Callable[[], None],
        now: float,
        counts: ReplicaCounts | None = None,
    ) -> None:
        self.pid = process.pid
        self.code: int | None = None
        """Its exit code; None: it lives, as far as is known."""
        self.loaded: Loaded | None = None
        self.worker = ""
        """The name it has its lease under; empty before it has joined."""
        self.joined_at: float | None = None
        self.pulse = Pulse(worker="")
        self.has_news = False
        """A message came since the supervisor last cleared this."""
        self.silence = 0.0
        """Seconds without a message, as counted by the supervisor."""
        self.replace_reason: str | None = None
        """Why it asks to be replaced."""
        self.is_wedged = False
        """It has attempts that it cannot end."""
        self.left_outcomes: dict[tuple[str, str, int], Outcome] = {}
        """What to settle after its death, by worker, job and attempt."""
        self.error: CannotWork | None = None
        self.is_finished = False
        self.kill_at: float | None = None
        """When it is killed if it still lives; None: it may take its time."""
        self.is_stopping = False
        """It was told to drain."""
        self.is_killed = False
        """The supervisor killed it, and has logged why where that is worth a line."""
        self.started_at = now
        self.is_slow_logged = False
        """It was logged that the application takes long to load."""
        self._counts = counts
        self._process = process
        self._connection = connection
        self._on_message = on_message
        self._buffer = bytearray()
        self._decoder: msgspec.msgpack.Decoder[FromReplica] = msgspec.msgpack.Decoder(FromReplica)
        connection.setblocking(False)

    def fileno(self) -> int:
        """The supervisor's end of the socket; -1: it is closed."""
        return self._connection.fileno()

    @property
    def is_alive(self) -> bool:
        """Its death is not known."""
        return self.code is None

    def receive(self, now: float) -> bool:
        """Take in its messages, up to ``MAX_READS`` reads; False: there will be no more."""
        for _ in range(MAX_READS):
            try:
                data = self._connection.recv(READ_SIZE)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not data:
                return False
            self._buffer += data
            try:
                for message in unpacked(self._buffer, self._decoder):
                    self._note(message, now)
            except msgspec.DecodeError:
                self._give_up_reading()
                return False
            finally:
                self._on_message()
        return True

    def send(self, message: ToReplica) -> None:
        """Send a message; to a process that is dead it is lost."""
        try:
            self._connection.send(packed(message))
        except OSError:
            pass

    def drain(self, seconds: float | None, until: float | None) -> None:
        """Tell it to stop; it is killed if it still lives at ``until``."""
        self.is_stopping = True
        self.send(Drain(seconds))
        if until is not None:
            self.kill_at = until if self.kill_at is None else min(until, self.kill_at)

    def kill(self) -> None:
        """End it, and what its handlers have started in its session."""
        if self.is_alive:
            self.is_killed = True
            self._kill_group()

    def poll(self, now: float) -> bool:
        """Has it died? True once, after all its messages were taken in."""
        if not self.is_alive or (code := self._process.poll()) is None:
            return False
        self.receive(now)
        self.code = code
        if code != 0:
            self._kill_group()
        return True

    def close(self) -> None:
        """Close the socket. The loop must have stopped to read it before."""
        self._connection.close()

    def last_pulse(self) -> Pulse:
        """What a dead process has done in all, to the last exchange with the store, with what it
        has left to be settled.
        """
        pulse = msgspec.structs.replace(self.pulse, running=0, waiting=0, lag=0.0)
        if self._counts is None:
            return pulse
        succeeded, failed, retried = self._counts.read()
        self._counts.close()
        self._counts = None
        left = [outcome.kind for outcome in self.left_outcomes.values()]
        return msgspec.structs.replace(
            pulse,
            succeeded=succeeded,
            failed=failed + left.count(OutcomeKind.FAILED),
            retried=retried + left.count(OutcomeKind.RETRY),
        )

    def _give_up_reading(self) -> None:
        """A handler has written to the socket: no later message can be told from that."""
        if self.joined_at is None:
            self.kill()
        self.replace_reason, self.is_wedged = "what it says cannot be understood", True

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it is empty; macOS says PermissionError of a zombie

    def _note(self, message: FromReplica, now: float) -> None:
        self.has_news = True
        match message:
            case Loaded():
                self.loaded = message
            case Joined(worker):
                self.worker = worker
                if self.joined_at is None:
                    self.joined_at = now
            case Alive(pulse):
                self.pulse = pulse
            case ReplaceMe(reason, is_wedged):
                self.replace_reason = reason
                self.is_wedged = self.is_wedged or is_wedged
            case SettleAfterDeath(worker, outcomes):
                self.left_outcomes.update(
                    ((worker, each.job, each.claim), each) for each in outcomes
                )
            case CannotWork():
                self.error = message
            case Finished():
                self.is_finished = True


def spawn(
    spec: ReplicaSpec, on_message: Callable[[], None], now: float, output: int | None = None
) -> ReplicaProcess:
    """Start a worker process; what it prints goes to the file ``output``, else where the supervisor
    prints.

    On failure: ``OSError``: there is no room for another process.
    """
    counts = shared_file()
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    try:
        with theirs:
            process = subprocess.Popen(
                _command(theirs.fileno(), counts, spec.app),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(), counts),
                env=environment,
                start_new_session=True,
            )
        shared = ReplicaCounts(counts)
    except BaseException:
        ours.close()
        raise
    finally:
        os.close(counts)
    started = ReplicaProcess(process, ours, on_message, now, shared)
    started.send(spec)
    return started


def _command(number: int, counts: int, app: str | None) -> Sequence[str]:
    """The application's name is there to be seen in the list of processes.

    Penstock is imported from where the supervisor found it: not first from the working directory,
    where a ``queue.py`` would take the place of the one that Python needs itself.
    """
    python = [os.fsdecode(get_executable() or sys.executable)]
    if sys.path[:1] not in ([""], [os.getcwd()]):
        python.append("-P")
    return [*python, "-m", PROGRAM, str(number), str(counts), app or ""]


def is_supervised() -> bool:
    """This process was started by a supervisor, or was forked from one that was."""
    return PROGRAM in sys.orig_argv
