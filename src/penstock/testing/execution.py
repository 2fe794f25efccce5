"""Where a sandbox runs handlers: on the calling thread, or on the calling loop.

``OnThread`` never waits for anything but the handler itself, so a thread can take a whole drain in
one step: it calls sync handlers itself and runs async ones on a loop of the sandbox. ``OnLoop``
runs async handlers on the loop of the test and sync ones on a thread beside it.

A task's ``timeout`` counts real seconds here: a handler that hangs ends as it would in a worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from contextvars import Context as Variables
from typing import Any, Protocol, TypeVar

from penstock.core.job import Outcome
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.runner import Runner

T = TypeVar("T")


class Execution(Protocol):
    """Where attempts run."""

    async def run(self, runner: Runner, attempt: Attempt) -> Outcome | None:
        """Run one attempt to its end."""

    async def enter(self, span: WorkerSpan) -> None:
        """Begin what surrounds the attempts."""

    async def leave(self, span: WorkerSpan) -> None:
        """End it."""


class WorkerSpan:
    """What surrounds the attempts: begun and ended by one task, as hooks with a task group or a
    time limit need it. What it sets in ``variables`` async handlers see, as in a worker.
    """

    def __init__(self, life: AbstractAsyncContextManager[None]) -> None:
        self.variables = Variables()
        self._life = life
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin, on this loop. On failure: what the beginning raises; there is no end to it."""
        loop = asyncio.get_running_loop()
        begun = loop.create_future()
        self._task = task = loop.create_task(self._live(begun), context=self.variables)
        try:
            await asyncio.wait([begun, task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if task.done():
            await task

    async def end(self) -> None:
        """End, on the same loop."""
        assert self._task is not None
        self._over.set()
        await self._task

    async def _live(self, begun: asyncio.Future[None]) -> None:
        async with self._life:
            begun.set_result(None)
            await self._over.wait()


def run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Take a coroutine that never waits to its end, in this thread."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("something waited in a sandbox that runs in one thread")


class OnThread:
    """The thread that drains, with a loop of the sandbox for what is async."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._variables = Variables()

    def close(self) -> None:
        """Let the loop go, and cancel what handlers have left on it."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the sandbox's loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        task = self._loop.create_task(work, context=self._variables.copy())
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # Ctrl-C, while it waited
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task]))
            raise

    async def run(self, runner: Runner, attempt: Attempt) -> Outcome | None:
        if attempt.spec.is_async:
            return self.wait(run_async(runner, attempt))
        return run_sync(runner, attempt)

    async def enter(self, span: WorkerSpan) -> None:
        self.wait(span.begin())
        self._variables = span.variables

    async def leave(self, span: WorkerSpan) -> None:
        self._variables = Variables()
        self.wait(span.end())


class OnLoop:
    """The loop that drains, with a thread for what is sync.

    ``outside`` is called before it waits for something that is not on the loop.
    """

    def __init__(self, threads: Executor, outside: Callable[[], None]) -> None:
        self._threads = threads
        self._outside = outside
        self._variables = Variables()

    async def run(self, runner: Runner, attempt: Attempt) -> Outcome | None:
        loop = asyncio.get_running_loop()
        work: asyncio.Future[Outcome | None]
        if attempt.spec.is_async:
            work = loop.create_task(run_async(runner, attempt), context=self._variables.copy())
        else:
            work = loop.run_in_executor(self._threads, run_sync, runner, attempt)
            self._outside()
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                stop(attempt, Ending.LOST)
                await asyncio.wait([work])
            raise

    async def enter(self, span: WorkerSpan) -> None:
        await span.begin()
        self._variables = span.variables

    async def leave(self, span: WorkerSpan) -> None:
        await span.end()


class Interleaved(OnLoop):
    """As ``OnLoop``, but async handlers run inside the very coroutine that awaits them: they take
    turns with the others as that one does.
    """

    async def run(self, runner: Runner, attempt: Attempt) -> Outcome | None:
        if attempt.spec.is_async:
            return await run_async(runner, attempt)
        return await super().run(runner, attempt)


async def run_async(runner: Runner, attempt: Attempt) -> Outcome | None:
    """Run an async attempt in this task, for as long as it may."""
    loop, limit = asyncio.get_running_loop(), attempt.spec.timeout
    attempt.task = asyncio.current_task()
    alarm = None
    if limit is not None:
        alarm = loop.call_later(limit, stop, attempt, Ending.TIMEOUT)
    try:
        return await runner.run(attempt)
    finally:
        task, attempt.task = attempt.task, None
        if alarm is not None:
            alarm.cancel()
        if attempt.ending is Ending.TIMEOUT or attempt.ending is Ending.CANCEL:
            while task is not None and task.cancelling():
                task.uncancel()


def run_sync(runner: Runner, attempt: Attempt) -> Outcome | None:
    """Run a sync attempt in this thread, for as long as it may."""
    limit = attempt.spec.timeout
    if limit is None:
        return runner.call(attempt)
    alarm = threading.Timer(limit, stop, (attempt, Ending.TIMEOUT))
    alarm.daemon = True
    alarm.start()
    try:
        return runner.call(attempt)
    finally:
        alarm.cancel()


def stop(attempt: Attempt, ending: Ending, *, hits: bool = True) -> None:
    """Ask an attempt to end, as its worker would; a thread that is only asked may go on."""
    attempt.end(ending)
    if hits:
        attempt.guard.interrupt()
    task = attempt.task
    if task is not None and not attempt.is_cleaning:
        task.get_loop().call_soon_threadsafe(task.cancel)
