"""A daemon thread with an event loop, and the client on it: where the façade's work is done.

| if                                     | then                                                   |
|----------------------------------------|--------------------------------------------------------|
| a caller is interrupted or cancelled   | its work is cancelled here; an enqueue may have        |
|                                        | happened                                               |
| ``stop`` meets calls that still wait   | enqueues are sent, the others get ``EngineClosed``     |
| the interpreter exits                  | the handle is closed, or left after ``EXIT_PATIENCE``; |
|                                        | only daemon threads still wait, and get no answer      |
| the process forks                      | the child has no such thread and must not touch this   |
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Final, Generic, TypeVar, cast

from penstock.client import Client
from penstock.engines.engine import Engine
from penstock.errors import EngineClosed

CLOSE_PATIENCE: Final = 10.0
EXIT_PATIENCE: Final = 2.0

R = TypeVar("R")

Work = Callable[[Client], Coroutine[Any, Any, R]]
"""What to do on the loop, with the client that lives there."""


class LoopThread:
    """A loop in a thread; it lives from its making until ``stop``."""

    client: Client
    is_exiting = False
    """The interpreter exits: no caller is answered any more."""
    tasks: asyncio.TaskGroup | None = None
    """Owns all that runs on the loop; None once it is too late to begin anything."""

    def __init__(self, connect: Callable[[], Engine], wait: float = 0.0) -> None:
        self.gone: Future[None] = Future()
        self._pid = os.getpid()
        self._connect = connect
        self._wait = wait
        self._stopping = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._closing = threading.RLock()  # a signal handler may come while its thread holds it
        self._is_closed = False
        # What is called from outside comes after this task's first step, so it finds the client.
        # The context is empty lest that of the first caller live as long as the process.
        self._living = self._loop.create_task(self._live(), context=Context())
        self.thread = threading.Thread(target=self._run, name="penstock", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # the interpreter exits, or has too many threads
            self._living.cancel()
            self._loop.run_until_complete(asyncio.wait((self._living,)))
            self._loop.close()
            raise

    @property
    def engine(self) -> Engine | None:
        """The handle on the store, once it is open; any thread may ask."""
        return self.client.opened if self.tasks is not None else None

    def is_here(self) -> bool:
        """The caller is on the loop's own thread."""
        return threading.get_ident() == self.thread.ident

    def call_soon(self, call: Callable[[], object]) -> None:
        """Have ``call`` made on the loop, in no caller's context; RuntimeError: it is closed."""
        with self._closing:
            if self._is_closed:
                raise RuntimeError("the loop is closed")
            self._loop.call_soon_threadsafe(call, context=Context())

    def stop(self) -> None:
        """Begin to end, from any thread; ``gone`` says when it has."""
        if self._pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.call_soon(self._stopping.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._living)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            with self._closing:
                self._is_closed = True
            # What was called until now is still made: a caller waits for it.
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()
            if self.gone.set_running_or_notify_cancel():  # else its waiter was cancelled
                self.gone.set_result(None)

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self.client = Client(self._connect, self._wait)
            self.tasks = tasks
            await self._stopping.wait()
            self.tasks = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_PATIENCE / 2):
                    await self.client.close()
            for task in asyncio.all_tasks() - {self._living}:
                task.cancel()


class Submission(Generic[R]):
    """Work that a caller elsewhere handed to a loop thread.

    ``answered`` is called on that loop when the work is done, however it ended.
    """

    __slots__ = ("_answered", "_error", "_result", "_running", "_thread", "_work", "is_done")

    def __init__(self, thread: LoopThread, work: Work[R], answered: Callable[[], object]) -> None:
        self._thread = thread
        self._work = work
        self._answered = answered
        self._running: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._result: R | None = None
        self.is_done = False

    def submit(self) -> None:
        """Hand the work over, from any thread."""
        try:
            self._thread.call_soon(self._start)
        except RuntimeError:  # the loop is closed
            self._fail(EngineClosed("the store"))

    def value(self) -> R:
        """What the work returned, or the error that it raised."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return cast(R, self._result)
        finally:
            del error  # its traceback holds this frame

    def abandon(self) -> None:
        """The caller does not wait any more: cancel what is not done."""
        if not self.is_done:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._thread.call_soon(self._cancel)

    # --- on the loop ---------------------------------------------------------------------------

    def _start(self) -> None:
        tasks = self._thread.tasks
        if tasks is None:
            self._fail(EngineClosed("the store"))
        else:
            self._running = tasks.create_task(self._run())
            self._running.add_done_callback(self._ended)

    async def _run(self) -> None:
        """Do the work; never raises, for that would end the work of all callers."""
        try:
            client = self._thread.client
            await client.open()
            self._result = await self._work(client)
        except asyncio.CancelledError:
            self._error = EngineClosed("the store")
        except BaseException as error:
            self._error = error
        self._done()

    def _ended(self, _: asyncio.Task[None]) -> None:
        if not self.is_done:  # it was cancelled before its first step
            self._fail(EngineClosed("the store"))

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._done()

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _done(self) -> None:
        self._running = None
        self.is_done = True
        if not self._thread.is_exiting:
            self._answered()
