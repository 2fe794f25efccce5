"""Inside a child process: it runs attempts, one after the other, and ends with its worker.

Orders come by what was standard input, frames go out by what was standard output: handlers find
nothing to read on the first, and what they print goes to standard error.

The child ends with its parent, and takes with it what the handlers started:

| when its orders end    | then                                                               |
|------------------------|--------------------------------------------------------------------|
| while an attempt runs  | nothing is left that could settle the job: all is killed at once   |
| between two attempts   | it ends in peace, within ``FAREWELL``; what is left then is killed |

SIGTERM and SIGINT are for the worker, which decides; a signal that reaches all processes of a
service must not end an attempt that the worker wants to finish.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from io import TextIOWrapper
from queue import SimpleQueue
from typing import Any, Final, Literal

from penstock import logs
from penstock.clock import SystemClock
from penstock.core.hooks import Hooks
from penstock.core.job import Outcome
from penstock.core.spec import Spec
from penstock.worker.child.find_task import ChildTasks
from penstock.worker.child.messages import (
    TO_CHILD,
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
from penstock.worker.error_record import summary_of
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.middleware import lifespan
from penstock.worker.runner import Runner
from penstock.worker.runtime import loop_factory

REPORT_EVERY: Final = 0.5
"""Seconds between two looks for signs of life."""


class ChildService:
    """Runs what is asked on the main thread; one thread listens, one tells signs of life.

    Sync handlers run on the main thread, async ones on one event loop for the child's whole life.
    What an app's start-up hooks began on that loop goes on only while an async handler runs.

    ``end`` is called when the orders have ended, on the thread that listens; it is told whether an
    attempt runs.
    """

    def __init__(self, orders: int, frames: int, end: Callable[[bool], None]) -> None:
        self._orders = Reader[ToChild](orders, TO_CHILD)
        self._frames = frames
        self._end = end
        self._tasks = ChildTasks()
        self._clock = SystemClock()
        self._ahead = 0.0
        self._worker = ""
        self._runner = Runner(lambda: self._clock.now() + self._ahead, lambda: self._worker)
        self._loop = asyncio.Runner(loop_factory=loop_factory())
        self._lives = AsyncExitStack()
        self._alive: set[Hooks] = set()
        self._inbox: SimpleQueue[RunAttempt | None] = SimpleQueue()
        self._asked = self._answered = self._stopped = 0
        """The last request that came, that has ended, that was cancelled."""
        self._current: Attempt | None = None
        self._cancelled: Attempt | None = None
        self._lock = threading.Lock()
        """Guards what is said of the current attempt."""
        self._is_busy = threading.Event()

    def serve(self) -> None:
        """Run attempts until the orders end."""
        for life in (self._listen, self._show_life):
            threading.Thread(target=life, name="penstock-child", daemon=True).start()
        with logs.context(), self._loop:
            while (request := self._inbox.get()) is not None:
                self._attend(request)
            self._loop.run(self._lives.aclose())

    # --- on the main thread --------------------------------------------------------------------

    def _attend(self, request: RunAttempt) -> None:
        self._ahead, self._worker = request.ahead, request.worker
        try:
            spec = self._tasks.find(request.location, request.job.task)
            has_life = spec.hooks.stages or spec.hooks.effects is not None
            if has_life and spec.hooks not in self._alive:
                self._loop.run(self._start_up(spec.hooks))
        except BaseException as error:
            self._answered = request.number
            self._say(CannotRun(summary_of(error)))
        else:
            self._run(request, spec)

    async def _start_up(self, hooks: Hooks) -> None:
        await self._lives.enter_async_context(lifespan([hooks]))
        self._alive.add(hooks)

    def _run(self, request: RunAttempt, spec: Spec) -> None:
        attempt = Attempt(request.job, spec, 0, 0.0)
        with self._lock:
            self._current = attempt
            if self._stopped == request.number:
                attempt.end(Ending.CANCEL)
            self._say(AttemptBegan())
        outcome = self._perform(attempt)
        attempt.error = None
        with self._lock:
            self._current = None
            self._answered = request.number
            self._say(AttemptDone(outcome, attempt.context.take_report(is_last=True)))

    def _perform(self, attempt: Attempt) -> Outcome | None:
        if not attempt.spec.is_async:
            return self._runner.call(attempt)
        try:
            return self._loop.run(self._awaited(attempt))
        except BaseException as error:  # it has stopped the loop, or was cancelled as it returned
            return self._runner.broke(attempt, error)

    async def _awaited(self, attempt: Attempt) -> Outcome | None:
        attempt.task = asyncio.current_task()
        if attempt.ending is not None:
            self._cancel(attempt)
        return await self._runner.run(attempt)

    def _cancel(self, attempt: Attempt) -> None:
        """Cancel an async handler, once. Called on the loop."""
        if attempt.task is not None and attempt is not self._cancelled and not attempt.is_cleaning:
            self._cancelled = attempt
            attempt.task.cancel()

    def _say(self, frame: FromChild) -> None:
        write(self._frames, packed(frame))

    # --- on threads of their own ---------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while (order := self._orders.next()) is not None:
                match order:
                    case RunAttempt():
                        self._asked = order.number
                        self._inbox.put(order)
                        if not self._is_busy.is_set():
                            self._is_busy.set()
                    case CancelAttempt(number):
                        self._stop(number)
        except OSError:
            pass  # a handler has closed the pipe: as if the worker had
        self._inbox.put(None)
        self._end(self._asked != self._answered)

    def _stop(self, number: int) -> None:
        with self._lock:
            self._stopped = number
            attempt = self._current
            if attempt is None or number != self._asked:
                return
            attempt.end(Ending.CANCEL)
        if attempt.spec.is_async:
            self._loop.get_loop().call_soon_threadsafe(partial(self._cancel, attempt))

    def _show_life(self) -> None:
        """Tell what is new of the current attempt now and then; sleep while there is none."""
        pause = threading.Event()
        told: tuple[Attempt, float | None] | None = None
        while self._is_busy.wait():
            pause.wait(REPORT_EVERY)
            with self._lock:
                attempt = self._current
                if attempt is not None and attempt.context.alive_at is not None:
                    news = attempt, attempt.context.alive_at
                    if news != told:
                        told = news
                        self._say(SignOfLife(attempt.context.take_report()))
            if self._asked == self._answered:
                self._is_busy.clear()
                if self._asked != self._answered:
                    self._is_busy.set()


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
            after_in_child=lambda: _detach(orders, frames),
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
    _swap(signal.SIG_DFL, _ignore)


def _swap(handler: object, other: Any) -> None:
    for number in TO_END:
        if signal.getsignal(number) is handler:
            try:
                signal.signal(number, other)
            except ValueError:
                pass  # only the main thread may


def _detach(orders: int, frames: int) -> None:
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
