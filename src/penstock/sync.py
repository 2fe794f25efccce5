"""The façade: one loop in one thread of this process does everything for callers of every kind.

Blocking callers hand their work over and wait; async callers on whatever loop hand it over and
await. So a process has one handle on the store however many threads and loops it has, their single
enqueues share commits, and ``asyncio.run`` may be called again and again.

The loop and its thread are of one process. A forked child has neither: it forgets them, with every
lock that may have been held at that moment, and opens its own at first use. It closes nothing that
it inherited, for the parent still uses the other ends, and keeps it all so that nothing is
finalised either.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from penstock.client import stored_before
from penstock.clock import SystemClock
from penstock.core.job import Draft
from penstock.engines.engine import Engine
from penstock.engines.observed import ours
from penstock.engines.records import Receipt
from penstock.errors import EngineClosed, EngineTimeout, WrongThread
from penstock.home import CLOSE_PATIENCE, EXIT_PATIENCE, Errand, Home, Work
from penstock.mailbox import Mailbox
from penstock.stores import Borrow, Borrowed

AT_ONCE: Final = 1000
"""Jobs that a caller's own thread stores with one call. More are on their way to the store while
the next ones are made ready, which takes two.
"""

P = ParamSpec("P")
R = TypeVar("R")


class Facade:
    """The way of one app to its store, for any thread and any loop of any process."""

    _home: Home | None = None
    _is_exiting = False
    _lock: threading.RLock  # a signal handler may come while its own thread holds it
    _mailboxes: dict[asyncio.AbstractEventLoop, Mailbox]

    def __init__(
        self,
        connect: Callable[[], Engine],
        name: str,
        borrow: Borrow = lambda _: None,
        wait: float = 0.0,
    ) -> None:
        """``wait`` is how long to try to open a store that is away."""
        self._connect = connect
        self._wait = wait
        self._name = name
        self._borrow = borrow
        self.forget()
        here: weakref.ref[Facade] = weakref.ref(self)
        atexit.register(_exit, here)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=partial(_fork, here))

    def call(
        self,
        work: Work[R],
        timeout: float | None = None,
        *,
        what: str = "a call",
        spent: float = 0.0,
    ) -> R:
        """Do ``work`` on the loop while this thread waits.

        On failure: ``EngineTimeout`` after ``timeout`` seconds, of which some may be ``spent``
        already, ``WrongThread`` on the loop itself, or whatever the work raises.
        """
        home = self._home or self._move_in()
        if home.is_here():
            raise WrongThread(what)
        answered = threading.Lock()
        answered.acquire()
        errand = Errand(home, work, answered.release)
        try:
            home.begin(errand)
            if answered.acquire(timeout=-1 if timeout is None else max(0.0, timeout - spent)):
                return errand.value()
            raise self._too_late(what, timeout)
        finally:
            errand.abandon()

    def enqueue(
        self, draft: Draft, timeout: float | None, connection: object | None = None
    ) -> Receipt:
        """Store one job while this thread waits: on this thread itself, where the store knows how,
        and on the caller's ``connection``, where one is given.

        On failure: as ``call``, and what the store says.
        """
        if (lent := self._lent(connection)) is not None:
            return lent.put([draft])[0]
        receipts, spent = self._put_now((draft,), timeout)
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
        """Store one job while this coroutine waits; the loop is not asked where the store needs
        none.

        On failure: as ``ask``, and what the store says.
        """
        if (lent := self._lent(connection)) is not None:
            return (await lent.aput([draft]))[0]
        home, spent = self._home or self._move_in(), 0.0
        if not home.is_here() and (engine := home.opened) is not None:
            began_at = SystemClock.monotonic()
            receipt = await self._hand_in(engine, draft, timeout)
            if receipt is not None:
                return receipt
            spent = SystemClock.monotonic() - began_at
        receipt = await self.ask(
            lambda client: client.enqueue(draft), timeout, what="aenqueue", spent=spent
        )
        return ours([draft], [receipt])[0] if spent else receipt

    def enqueue_many(
        self, drafts: Sequence[Draft], timeout: float, connection: object | None = None
    ) -> list[Receipt]:
        """Store many jobs while this thread waits; ``timeout`` is for each commit.

        On failure: as ``call``, and what the store says.
        """
        if (lent := self._lent(connection)) is not None:
            return lent.put(drafts)
        try:
            receipts, spent = self._put_now(drafts, timeout)
            if spent >= timeout and receipts is None:
                raise self._too_late(f"{len(drafts)} jobs", timeout)
        except Exception as error:
            error.add_note(stored_before(0, len(drafts)))
            raise
        if receipts is not None:
            return receipts
        receipts = self.call(
            lambda client: client.enqueue_all(drafts, timeout, spent), what="enqueue_many"
        )
        return ours(drafts, receipts) if spent else receipts

    def _put_now(
        self, drafts: Sequence[Draft], timeout: float | None
    ) -> tuple[list[Receipt] | None, float]:
        """Store jobs on this thread itself, where the store knows how; None: it did not. It tells
        for how many seconds it tried: then they may be stored all the same.
        """
        home = self._home or self._move_in()
        engine = None if home.is_here() else home.opened
        if engine is None or not 0 < len(drafts) <= min(AT_ONCE, engine.traits.max_batch):
            return None, 0.0
        began_at = SystemClock.monotonic()
        receipts = engine.enqueue_now(drafts, timeout)
        return receipts, SystemClock.monotonic() - began_at

    async def aenqueue_many(
        self, drafts: Sequence[Draft], timeout: float, connection: object | None = None
    ) -> list[Receipt]:
        """The same, awaited."""
        if (lent := self._lent(connection)) is not None:
            return await lent.aput(drafts)
        return await self.ask(lambda client: client.enqueue_all(drafts, timeout))

    def _lent(self, connection: object | None) -> Borrowed | None:
        return None if connection is None else self._borrow(connection)

    async def _hand_in(self, engine: Engine, draft: Draft, timeout: float | None) -> Receipt | None:
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[Receipt | None] = loop.create_future()
        leave, timer = _nothing, None
        try:
            left = engine.enqueue_soon(draft, partial(_stored, self._mailbox(loop), stored))
            if left is None:
                return None
            leave = left
            if timeout is not None:
                timer = loop.call_later(timeout, self._expire, stored, timeout)
            return await stored
        finally:
            leave()
            if timer is not None:
                timer.cancel()

    def _expire(self, stored: asyncio.Future[Receipt | None], timeout: float) -> None:
        if not stored.done():
            stored.set_exception(self._too_late("aenqueue", timeout))

    async def ask(
        self,
        work: Work[R],
        timeout: float | None = None,
        *,
        what: str = "a call",
        spent: float = 0.0,
    ) -> R:
        """Do ``work`` on the loop while this coroutine waits, on its own loop or on this one."""
        home = self._home or self._move_in()
        if home.is_here():
            await home.client.open()
            return await work(home.client)
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        errand = Errand(home, work, partial(_answer, self._mailbox(loop), answered))
        limit = asyncio.timeout(None if timeout is None else max(0.0, timeout - spent))
        try:
            home.begin(errand)
            async with limit:
                await answered
            return errand.value()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._too_late(what, timeout) from error
        finally:
            errand.abandon()

    def close(self) -> None:
        """Let the store go and end the thread. Idempotent; the next use opens anew."""
        home = self._home
        if home is not None and home.is_here():
            raise WrongThread("close")
        home = self._move_out()
        if home is not None:
            home.thread.join(CLOSE_PATIENCE)

    async def aclose(self) -> None:
        """The same, without blocking the caller's loop."""
        home = self._move_out()
        if home is not None and not home.is_here():
            async with asyncio.timeout(CLOSE_PATIENCE):
                await asyncio.wrap_future(home.gone)
            home.thread.join(CLOSE_PATIENCE)

    def forget(self) -> Home | None:
        """Be as new: nothing is open, nobody waits, no lock is held. Returns what was open."""
        home, self._home = self._home, None
        self._lock = threading.RLock()
        self._mailboxes = {}
        return home

    def _move_in(self) -> Home:
        if self._is_exiting and threading.current_thread().daemon:
            threading.Event().wait()  # the process ends, and this thread with it
        with self._lock:
            if self._home is None:
                try:
                    home = Home(self._connect, self._wait)
                except RuntimeError as error:  # no thread can be started any more
                    raise EngineClosed(self._name) from error
                if self._home is None:
                    self._farewell = weakref.finalize(self, home.leave)
                    self._farewell.atexit = False
                    self._home = home
                else:  # a signal handler was here meanwhile
                    home.leave()
            return self._home

    def _move_out(self) -> Home | None:
        with self._lock:
            home, self._home = self._home, None
        if home is not None:
            self._farewell.detach()
            home.leave()
        return home

    def exit(self) -> None:
        """The interpreter exits: of those who wait only daemon threads are left."""
        self._is_exiting = True
        if self._home is not None:
            self._home.is_silent = True
        home = self._move_out()
        if home is not None:
            home.thread.join(EXIT_PATIENCE)

    def _mailbox(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        """Where answers to the callers on ``loop`` go."""
        found = self._mailboxes.get(loop)
        if found is None:
            for other in [each for each in list(self._mailboxes) if each.is_closed()]:
                self._mailboxes.pop(other, None)
            found = self._mailboxes[loop] = Mailbox(loop)
        return found

    def _too_late(self, what: str, timeout: float | None) -> EngineTimeout:
        return EngineTimeout(self._name, f"{what} took longer than {timeout:g} s")


# A forked child must not finalise what it inherited: closing it would disturb the parent.
_inherited: list[Home | None] = []


def _fork(facade: weakref.ref[Facade]) -> None:
    here = facade()
    if here is not None:
        _inherited.append(here.forget())


def _exit(facade: weakref.ref[Facade]) -> None:
    here = facade()
    if here is not None:
        here.exit()


def _nothing() -> None:
    """There is nothing to leave."""


def _answer(mailbox: Mailbox, answered: asyncio.Future[None]) -> None:
    """Wake a coroutine on another loop; if that is closed, nobody waits."""
    try:
        mailbox.post(partial(_wake, answered))
    except RuntimeError:
        pass


def _stored(
    mailbox: Mailbox,
    stored: asyncio.Future[Receipt | None],
    receipt: Receipt | None,
    error: Exception | None,
) -> None:
    """Tell a coroutine what became of its job; if its loop is closed, nobody waits."""
    if mailbox.is_here():
        _tell(stored, receipt, error)
        return
    try:
        mailbox.post(partial(_tell, stored, receipt, error))
    except RuntimeError:
        pass


def _tell(
    stored: asyncio.Future[Receipt | None], receipt: Receipt | None, error: Exception | None
) -> None:
    if stored.done():
        return
    if error is None:
        stored.set_result(receipt)
    else:
        stored.set_exception(error)


def _wake(answered: asyncio.Future[None]) -> None:
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
    """Whoever has a way to the store."""

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
