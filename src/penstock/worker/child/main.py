"""Inside a child process: become one, and end as one.

Orders come by what was standard input, frames go out by what was standard output: handlers find
nothing to read on the first, and what they print goes to standard error.

The child ends with its parent, and takes with it what the handlers started:

| when its orders end    | then                                                               |
|------------------------|--------------------------------------------------------------------|
| while an attempt runs  | nobody is left who would settle the job: all is killed at once     |
| between two attempts   | it ends in peace, within ``FAREWELL``; what is left then is killed |

SIGTERM and SIGINT are for the worker, which decides; a signal that reaches all processes of a
service must not end an attempt that the worker wants to finish.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from io import TextIOWrapper
from typing import Any, Final, Literal

from penstock import logs
from penstock.worker.child.service import ChildService

TO_END: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that tell a process to end."""

FAREWELL: Final = 10.0
"""Seconds that a child may take to end when it is not needed any more."""


def main(log: tuple[Literal["text", "json"], int] | None) -> None:
    """Be a child, and log as the worker does."""
    orders, frames = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if log is not None:
        logs.configure(*log)
        logs.capture()
    for number in TO_END:
        # Not SIG_IGN: what a handler starts would inherit that.
        signal.signal(number, _ignore)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_heed_signals,
            after_in_parent=_ignore_signals,
            after_in_child=lambda: _be_a_stranger(orders, frames),
        )
    atexit.register(_end_all)
    ChildService(orders, frames, _end).serve()


def _ignore(*_: object) -> None:
    pass


def _heed_signals() -> None:
    """Before a fork: a signal that reaches the fork before its first step is forgotten there if
    Python handles it, so the fork must be born with the default.
    """
    _swap(_ignore, signal.SIG_DFL)


def _ignore_signals() -> None:
    """After a fork, in the one that forked."""
    _swap(signal.SIG_DFL, _ignore)


def _swap(handler: object, other: Any) -> None:
    for number in TO_END:
        if signal.getsignal(number) is handler:
            try:
                signal.signal(number, other)
            except ValueError:
                pass  # only the main thread may


def _be_a_stranger(orders: int, frames: int) -> None:
    """What a handler forks may outlive this process: the worker must hear of the child's end."""
    for pipe in (orders, frames):
        try:
            os.close(pipe)
        except OSError:
            pass  # a handler has closed it
    atexit.unregister(_end_all)
    _swap(_ignore, signal.SIG_DFL)


def _end(is_busy: bool) -> None:
    """The orders have ended: see to it that this process does."""
    if not is_busy:
        threading.Event().wait(FAREWELL)
    _kill_all()


def _end_all() -> None:
    """The interpreter exits: what the handlers started ends, too."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # a handler has closed it, or put something else in its place
    _kill_all()


def _kill_all() -> None:
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
