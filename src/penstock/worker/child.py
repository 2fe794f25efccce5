"""Inside the child process of a suspect: import the task, run the attempt, tell the outcome.

One ``Request`` comes by standard input, frames go out by standard output; what the handler prints
goes to standard error. The child ends with its parent, and takes with it what the handler started:
when its standard input is closed, nobody is left who would settle the job.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import threading
from types import ModuleType
from typing import Any, BinaryIO, Final

from penstock.clock import SystemClock
from penstock.core.spec import Spec
from penstock.worker.attempt import Attempt
from penstock.worker.child_frames import Began, Ended, Frame, Request, Said, Unfit, read, write
from penstock.worker.runner import Runner

REPORT_EVERY: Final = 0.5
"""Seconds between two looks for progress."""


def main() -> None:
    """Be the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which decides
    frames = os.dup(1)
    os.dup2(2, 1)
    if hasattr(os, "register_at_fork"):
        # What the handler forks may outlive this process: the worker must hear of its end.
        os.register_at_fork(after_in_child=lambda: os.close(frames))
    speaker = _Speaker(os.fdopen(frames, "wb"))
    requests = sys.stdin.buffer
    request: Request | None = read(requests, Request)
    if request is None:
        return
    threading.Thread(target=_end_with_parent, args=(requests.fileno(),), daemon=True).start()
    try:
        module = importlib.import_module(request.module)
        spec = find_spec(module, request.qualname, request.job.task)
    except BaseException as error:
        speaker.say(Unfit(f"{type(error).__name__}: {error}"))
    else:
        _run(request, spec, speaker)


def find_spec(module: ModuleType, qualname: str, task: str) -> Spec:
    """The task as this process knows it: by its function's name, or among the module's tasks."""
    named: Any = module
    for name in qualname.split("."):
        named = getattr(named, name, None)
    for candidate in (named, *vars(module).values()):
        spec = getattr(candidate, "spec", None)
        if isinstance(spec, Spec) and spec.name == task:
            return spec
    raise LookupError(f"{module.__name__} has no task {task!r}")


def _run(request: Request, spec: Spec, speaker: _Speaker) -> None:
    clock = SystemClock()
    runner = Runner(lambda: clock.now() + request.ahead, lambda: request.worker)
    attempt = Attempt(request.job, spec, 0, 0.0)
    threading.Thread(target=_relay, args=(attempt, speaker), daemon=True).start()
    speaker.say(Began())
    if spec.is_async:
        asyncio.run(_say_outcome(runner, attempt, speaker))
    else:
        speaker.say(Ended(runner.call(attempt)))


async def _say_outcome(runner: Runner, attempt: Attempt, speaker: _Speaker) -> None:
    """Said while the loop still lives: it may never close if the handler left a thread behind."""
    speaker.say(Ended(await runner.run(attempt)))


class _Speaker:
    """Writes frames, one at a time, from any thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def say(self, frame: Frame) -> None:
        with self._lock:
            write(self._stream, frame)


def _relay(attempt: Attempt, speaker: _Speaker) -> None:
    pause = threading.Event()
    while not pause.wait(REPORT_EVERY):
        if (report := attempt.context.take_report()) is not None:
            speaker.say(Said(report))


def _end_with_parent(requests: int) -> None:
    # Read below Python's buffers: their lock must be free when the interpreter ends.
    while os.read(requests, 1024):
        pass
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
