"""The façade: the ways of one app into its store, for any thread and any loop of any process.

There are three, and the Batcher of a client is the only group commit:

- A **blocking caller** stores jobs on its own thread, over the one blocking connection of the
  process (the engine's ``inlet``). If that is in use, or the engine has none, the call goes to
  the façade's loop, which runs in a thread of its own (see ``loop_thread``).
- A **coroutine inside** ``async with app:`` uses the client of its own loop. Any other coroutine
  hands its call to the façade's loop and awaits it, so ``asyncio.run`` may be called again and
  again, and single enqueues of many loops share commits.
- ``using(connection=...)`` writes in the **caller's own transaction**.

All of it is of one process. A forked child has no such thread: it forgets thread, clients and every
lock that may have been held at that moment, and opens its own at first use. It closes nothing that
it inherited, for the parent still uses the other ends, and keeps it all so that nothing is
finalised either.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from penstock.client import Client
from penstock.clock import SystemClock
from penstock.core.job import Draft
from penstock.engines.observed import ours
from penstock.engines.records import Receipt
from penstock.errors import (
    EngineClosed,
    EngineReentered,
    EngineTimeout,
    EngineUnavailable,
    WrongThread,
)
from penstock.loop_thread import CLOSE_PATIENCE, EXIT_PATIENCE, LoopThread, Submission, Work
from penstock.stores import CallerConnection, StoreSource

P = ParamSpec("P")
R = TypeVar("R")


class Facade:
    """The ways of one app into its store."""

    _thread: LoopThread | None = None
    _is_exiting = False
    _lock: threading.RLock  # a signal handler may come while its own thread holds it
    _clients: dict[asyncio.AbstractEventLoop, tuple[Client, int]]
    """Of loops inside ``async with app:``, and how many times they are."""

    def __init__(
        self, source: StoreSource, name: str, wait: float = 0.0, batch: int = 1000
    ) -> None:
        """``wait`` is how long to try to open a store that is away, ``batch`` how many jobs of an
        ``enqueue_many`` are stored in one commit.
        """
        self._source = source
        self._wait = wait
        self._batch = batch
        self._name = name
        self.forget()
        here: weakref.ref[Facade] = weakref.ref(self)
        atexit.register(_exit, here)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=partial(_fork, here))

    # --- enqueue -------------------------------------------------------------------------------

    def enqueue(
        self, draft: Draft, timeout: float | None, connection: object | None = None
    ) -> Receipt:
        """Store one job while this thread waits.

        On failure: as ``call``, and what the store says.
        """
        if (lent := self._lent(connection)) is not None:
            return lent.put([draft])[0]
        receipts, spent = self._put_here((draft,), timeout)
        if receipts is not None:
            return receipts[0]
        receipt = self.call(
            lambda client: client.enqueue(draft), timeout, what="enqueue", spent=spent
        )
        # What was tried before may have been stored all the same.
        return ours([draft], [receipt])[0] if spent else receipt

    async def aenqueue(
        self, draft: Draft, timeout: float | None, connection: object | None = None
    ) -> Receipt:
        """Store one job while this coroutine waits.

        On failure: as ``ask``, and what the store says.
        """
        if (lent := self._lent(connection)) is not None:
            return (await lent.aput([draft]))[0]
        return await self.ask(lambda client: client.enqueue(draft), timeout, what="aenqueue")

    def enqueue_many(
        self, drafts: Sequence[Draft], timeout: float, connection: object | None = None
    ) -> list[Receipt]:
        """Store many jobs while this thread waits; ``timeout`` is for each commit.

        On failure: as ``call``, and what the store says; a note says how many are stored.
        """
        if (lent := self._lent(connection)) is not None:
            return lent.put(drafts)
        receipts: list[Receipt] = []
        for batch in self._batches(drafts):
            try:
                receipts += self._put_batch(batch, timeout)
            except Exception as error:
                error.add_note(_stored_before(receipts, drafts))
                raise
        return receipts

    async def aenqueue_many(
        self, drafts: Sequence[Draft], timeout: float, connection: object | None = None
    ) -> list[Receipt]:
        """The same, awaited."""
        if (lent := self._lent(connection)) is not None:
            return await lent.aput(drafts)
        receipts: list[Receipt] = []
        for batch in self._batches(drafts):
            try:
                receipts += await self._aput_batch(batch, timeout)
            except Exception as error:
                error.add_note(_stored_before(receipts, drafts))
                raise
        return receipts

    def _batches(self, drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
        size = self._batch
        return (drafts[start : start + size] for start in range(0, len(drafts), size))

    def _put_batch(self, batch: Sequence[Draft], timeout: float) -> list[Receipt]:
        receipts, spent = self._put_here(batch, timeout)
        if receipts is not None:
            return receipts
        if spent >= timeout:
            raise self._too_late(f"{len(batch)} jobs", timeout)
        # The batch keeps its own time limit; this one is for a store that does not even open.
        receipts = self.call(
            lambda client: client.enqueue_batch(batch, timeout, spent),
            2 * timeout,
            what="enqueue_many",
        )
        return ours(batch, receipts) if spent else receipts

    async def _aput_batch(self, batch: Sequence[Draft], timeout: float) -> list[Receipt]:
        return await self.ask(
            lambda client: client.enqueue_batch(batch, timeout), 2 * timeout, what="aenqueue_many"
        )

    def _put_here(
        self, drafts: Sequence[Draft], timeout: float | None
    ) -> tuple[list[Receipt] | None, float]:
        """Store jobs on this thread; return receipts and the seconds spent. None: use the loop; if
        seconds were spent, the jobs may be stored already.
        """
        thread = self._thread or self._start()
        engine = None if thread.is_here() else thread.engine
        inlet = None if engine is None else engine.inlet
        if inlet is None:
            return None, 0.0
        began_at = SystemClock.monotonic()
        try:
            receipts = inlet.put(drafts, timeout)
        except (EngineTimeout, EngineReentered, EngineClosed):
            raise
        except EngineUnavailable:
            receipts = None  # the loop has the patience for it
        return receipts, SystemClock.monotonic() - began_at

    def _lent(self, connection: object | None) -> CallerConnection | None:
        return None if connection is None else self._source.lent(connection)

    # --- any call ------------------------------------------------------------------------------

    def call(
        self,
        work: Work[R],
        timeout: float | None = None,
        *,
        what: str = "a call",
        spent: float = 0.0,
    ) -> R:
        """Do ``work`` on the façade's loop while this thread waits.

        On failure: ``EngineTimeout`` after ``timeout`` seconds, of which some may be ``spent``
        already, ``WrongThread`` on the loop itself, or whatever the work raises.
        """
        thread = self._thread or self._start()
        if thread.is_here():
            raise WrongThread(what)
        answered = threading.Lock()
        answered.acquire()
        submission = Submission(thread, work, answered.release)
        try:
            submission.submit()
            if answered.acquire(timeout=-1 if timeout is None else max(0.0, timeout - spent)):
                return submission.value()
            raise self._too_late(what, timeout)
        finally:
            submission.abandon()

    async def ask(self, work: Work[R], timeout: float | None = None, *, what: str = "a call") -> R:
        """Do ``work`` while this coroutine waits: on its own loop if that has a client, else on
        the façade's.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                client = self._client_here()
                if client is None:
                    return await self._submitted(work)
                await client.open()
                return await work(client)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._too_late(what, timeout) from error

    def _client_here(self) -> Client | None:
        # In a test's sandbox the store is not the one that the loop's client has open.
        if self._clients and self._source.is_own:
            client, _ = self._clients.get(asyncio.get_running_loop(), (None, 0))
            if client is not None:
                return client
        thread = self._thread
        return thread.client if thread is not None and thread.is_here() else None

    async def _submitted(self, work: Work[R]) -> R:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        thread = self._thread or self._start()
        submission = Submission(thread, work, partial(_wake, loop, answered))
        try:
            submission.submit()
            await answered
            return submission.value()
        finally:
            submission.abandon()

    def _too_late(self, what: str, timeout: float | None) -> EngineTimeout:
        return EngineTimeout(self._name, f"{what} took longer than {timeout:g} s")

    # --- life ----------------------------------------------------------------------------------

    def join_loop(self) -> None:
        """Give the running loop a client of its own, opened by its first use."""
        loop = asyncio.get_running_loop()
        client, uses = self._clients.get(loop) or (Client(self._source.connect, self._wait), 0)
        self._clients[loop] = client, uses + 1

    async def leave_loop(self) -> bool:
        """Close the client of the running loop once it was left as often as joined; True: no loop
        has one any more.
        """
        loop = asyncio.get_running_loop()
        client, uses = self._clients.pop(loop, (None, 0))
        if client is not None and uses > 1:
            self._clients[loop] = client, uses - 1
        elif client is not None:
            await client.close()
        return not self._clients

    @asynccontextmanager
    async def loop_client(self) -> AsyncIterator[None]:
        """Let the running loop have a client of its own meanwhile."""
        self.join_loop()
        try:
            yield
        finally:
            await self.leave_loop()

    def close(self) -> None:
        """Let the store go and end the thread. Idempotent; the next use opens anew."""
        thread = self._thread
        if thread is not None and thread.is_here():
            raise WrongThread("close")
        thread = self._stop()
        if thread is not None:
            thread.thread.join(CLOSE_PATIENCE)

    async def aclose(self) -> None:
        """The same, without blocking the caller's loop."""
        thread = self._stop()
        if thread is not None and not thread.is_here():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_PATIENCE):
                    await asyncio.wrap_future(thread.gone)
            thread.thread.join(CLOSE_PATIENCE)

    def forget(self) -> tuple[object, ...]:
        """Be as new: nothing is open, no caller waits, no lock is held. Returns what was open."""
        inherited = (self._thread, vars(self).get("_clients"))
        self._thread = None
        self._lock = threading.RLock()
        self._clients = {}
        return inherited

    def exit(self) -> None:
        """The interpreter exits: only daemon threads can still wait."""
        self._is_exiting = True
        if self._thread is not None:
            self._thread.is_exiting = True
        thread = self._stop()
        if thread is not None:
            thread.thread.join(EXIT_PATIENCE)

    def _start(self) -> LoopThread:
        if self._is_exiting and threading.current_thread().daemon:
            threading.Event().wait()  # the process ends, and this thread with it
        with self._lock:
            if self._thread is None:
                try:
                    thread = LoopThread(self._source.connect, self._wait)
                except RuntimeError as error:  # no thread can be started any more
                    raise EngineClosed(self._name) from error
                if self._thread is None:
                    self._finalizer = weakref.finalize(self, thread.stop)
                    self._finalizer.atexit = False
                    self._thread = thread
                else:  # a signal handler was here meanwhile
                    thread.stop()
            return self._thread

    def _stop(self) -> LoopThread | None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._finalizer.detach()
            thread.stop()
        return thread


# A forked child must not finalise what it inherited: closing it would disturb the parent.
_inherited: list[object] = []


def _fork(facade: weakref.ref[Facade]) -> None:
    here = facade()
    if here is not None:
        _inherited.append(here.forget())


def _exit(facade: weakref.ref[Facade]) -> None:
    here = facade()
    if here is not None:
        here.exit()


def _stored_before(receipts: Sequence[Receipt], drafts: Sequence[Draft]) -> str:
    return f"{len(receipts)} of {len(drafts)} jobs were stored before this"


def _wake(loop: asyncio.AbstractEventLoop, answered: asyncio.Future[None]) -> None:
    """Answer a coroutine on another loop; if that is closed, the coroutine is gone."""
    try:
        loop.call_soon_threadsafe(_answer, answered)
    except RuntimeError:
        pass


def _answer(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)


def is_on_a_loop() -> bool:
    """A loop runs in this thread: to block here is to stop it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Caller(Protocol):
    """An object with a way to the store."""

    @property
    def _facade(self) -> Facade: ...


C = TypeVar("C", bound=_Caller)


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[C, P], R]:
    """The blocking twin of an async method: the same work, done on the façade's loop."""

    @wraps(method)
    def twin(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._facade.call(lambda _: method(self, *args, **kwargs), what=name)

    name = twin.__name__ = method.__name__.removeprefix("a")
    twin.__qualname__ = method.__qualname__.replace(method.__name__, name)
    return twin
