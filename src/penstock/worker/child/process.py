"""The worker's side of a child process: start it, write to it, listen to it, kill it.

The child is a plain ``python -c``, not a ``multiprocessing`` one: that would run the user's main
script once more, with whatever it does when it is run. It leads a process group: what the handler
starts in it is killed with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.spawn import get_executable
from typing import Final, assert_never
from weakref import WeakSet

import msgspec

from penstock import logs
from penstock.core.job import ErrorRecord, Outcome, OutcomeKind
from penstock.core.units import text
from penstock.engines.records import Report
from penstock.worker.child.find_task import PROGRAM
from penstock.worker.child.messages import (
    FROM_CHILD,
    AttemptBegan,
    AttemptDone,
    CancelAttempt,
    CannotRun,
    FromChild,
    Reader,
    RunAttempt,
    SignOfLife,
    ToChild,
    packed,
    write,
)
from penstock.worker.inflight import Attempt
from penstock.worker.runtime import resident

LINGER: Final = 2.0
"""Seconds that a child may take to exit after its last word."""


class ChildProcess:
    """One child. One thread talks to it; any thread may stop or kill it, and does not wait.

    Making one starts it. On failure: OSError, if there is no memory for a process, no file
    descriptor, or no interpreter any more.
    """

    def __init__(self) -> None:
        inherited = json.dumps([[str(place) for place in sys.path], logs.configured()])
        self._process = subprocess.Popen(
            [get_executable() or sys.executable, "-c", PROGRAM, inherited],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.is_killed = False
        self.requests = 0
        """How many attempts it was asked to run."""
        self._orders = self._process.stdin.fileno()
        if hasattr(os, "set_blocking") and os.name == "posix":
            os.set_blocking(self._orders, False)  # a loop may write here, and must not wait
        self._reader = Reader[FromChild](self._process.stdout.fileno(), FROM_CHILD)
        self._writing = threading.Lock()
        self._is_closed = False
        self._unsaid: CancelAttempt | None = None
        self._killing = threading.Lock()
        self._is_over = False
        _children.add(self)

    # --- in its own thread ---------------------------------------------------------------------

    def send(self, order: ToChild) -> None:
        """Write an order; if the child is gone, listening will tell."""
        with self._writing, suppress(OSError):
            write(self._orders, packed(order))
        self._say_unsaid()

    def receive(self, timeout: float | None = None) -> FromChild | None:
        """What it says next; None: it has ended.

        On failure: TimeoutError; ``msgspec.DecodeError`` if a handler has written there.
        """
        return self._reader.next(timeout)

    def reap(self) -> int:
        """It has ended, or fallen silent: see that it is gone; return the code it died with."""
        with self._killing:
            self._is_over = True  # from here on its number may belong to another process
        try:
            code = self._process.wait(LINGER)
        except subprocess.TimeoutExpired:
            _kill_group(self._process)
            code = self._process.wait()
        _kill_group(self._process)  # what it started may live on without it
        self._close()
        return code

    def retire(self) -> None:
        """Let it end in peace, and see that it does."""
        self._close_orders()
        self.reap()

    # --- from any thread -----------------------------------------------------------------------

    def stop(self, number: int) -> None:
        """Let the handler of a request know that it is cancelled."""
        self._unsaid = CancelAttempt(number)
        self._say_unsaid()

    def _say_unsaid(self) -> None:
        # The holder of the lock looks here after letting it go: nothing is left unsaid.
        while self._unsaid is not None and self._writing.acquire(blocking=False):
            try:
                unsaid, self._unsaid = self._unsaid, None
                if unsaid is not None and not self._is_closed:
                    os.write(self._orders, packed(unsaid))
            except OSError:
                pass  # it is gone, or does not listen: then only killing helps
            finally:
                self._writing.release()

    def kill(self) -> None:
        """End it, whatever it does."""
        with self._killing:
            self.is_killed = True
            if not self._is_over:
                _kill_group(self._process)

    # --- its pipes -----------------------------------------------------------------------------

    def _close_orders(self) -> None:
        assert self._process.stdin is not None
        with self._writing:
            self._is_closed = True
            self._process.stdin.close()

    def _close(self) -> None:
        assert self._process.stdout is not None
        self._close_orders()
        self._process.stdout.close()

    def forget_copies(self) -> None:
        """Close what a fork has copied: the child must hear of its worker's end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


# A fork copies the pipes of every child; only this list can close the copies.
_children: Final[WeakSet[ChildProcess]] = WeakSet()


def _forget_copies() -> None:
    for child in list(_children):
        child.forget_copies()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_copies)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a child with all that it started, also if it is dead itself."""
    if not hasattr(os, "killpg"):  # Windows
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # the group is gone; macOS says it so of a zombie


def died(code: int) -> str:
    """How a process came to its end, in words."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


START_UP: Final = 60.0
"""Seconds that a child may take to reach the task."""

LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the memory of a child."""


@dataclass(frozen=True, slots=True)
class ChildDied:
    """The child did not live to the end of the attempt."""

    how: str
    has_begun: bool
    used: int | None = None
    """The bytes of memory for which it was killed, if it was."""


def converse(
    child: ChildProcess, request: RunAttempt, attempt: Attempt, began: Callable[[], object]
) -> CannotRun | AttemptDone | ChildDied:
    """Let a child run an attempt; return its last message, or how it died. Blocks until then.

    The worker writes a ``RunAttempt``; the child answers ``AttemptBegan``, any number of
    ``SignOfLife``, and ``AttemptDone``; or ``CannotRun``. ``began`` is called when the handler
    is. If the child dies, it is reaped, and

    | here                       | then                                                            |
    |----------------------------|-----------------------------------------------------------------|
    | before it reads a request  | the attempt has not started: it may run in another child        |
    | before ``AttemptBegan``    | the same                                                        |
    | after ``AttemptBegan``     | the attempt is ``crashed``, with the way its process died; or   |
    |                            | what the worker wanted when it killed it                        |
    | after ``AttemptDone``      | the outcome stands, even if the worker was about to kill it     |
    """
    child.send(request)
    limit = attempt.spec.max_memory
    patience: float | None = START_UP
    has_begun, used, how = False, None, ""
    while True:
        try:
            frame = child.receive(patience)
        except TimeoutError:
            if not has_begun:
                how = f"did not reach the task in {text(START_UP)}"
            elif (found := resident(child.pid)) is None or limit is None or found <= limit:
                continue
            else:
                used = found
            child.kill()
            patience = None
            continue
        except msgspec.DecodeError as error:
            how = f"was killed: it wrote what cannot be read ({error})"
            child.kill()
            frame = None
        match frame:
            case AttemptBegan():
                has_begun = True
                patience = None if limit is None else LOOK_EVERY
                began()
            case SignOfLife(report):
                relay(attempt, report)
            case AttemptDone():
                if frame.report is not None:
                    relay(attempt, frame.report)
                return frame
            case CannotRun():
                return frame
            case None:
                code = child.reap()
                return ChildDied(how or died(code), has_begun, used)
            case _:
                assert_never(frame)


def relay(attempt: Attempt, report: Report | None) -> None:
    """Let the worker's own context say what the child's has said."""
    if report is None:
        attempt.context.alive()
    else:
        attempt.context.relay(report)


def crashed(attempt: Attempt, how: str, at: float, worker: str) -> Outcome:
    """The outcome of an attempt whose process died."""
    job, message = attempt.job, f"its process {how}"
    error = ErrorRecord(attempt=job.attempt, at=at, kind="crash", message=message, worker=worker)
    return Outcome(
        job=job.id, claim=job.claim, kind=OutcomeKind.CRASHED, reason=message, error=error
    )
