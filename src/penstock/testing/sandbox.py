"""A sandbox: an app on a private store in memory, with a clock that moves when the test says so.

    with Sandbox(app) as t:
        sign_up("ada@example.com")                    # enqueues a mail, and a reminder
        t.assert_enqueued(send, to="ada@example.com")
        t.drain()                                     # runs what is due
        t.advance("3d")                               # and what falls due in three days

Nothing is pretended: arguments pass through JSON and the store, attempts are run by the worker's
own runner, with retries, hooks and dependencies. When the block ends the app is as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self

from penstock.app import Penstock
from penstock.core.job import Job, State
from penstock.core.units import Duration, seconds
from penstock.errors import BadOption, EngineUnavailable, JobGone
from penstock.handle import Handle
from penstock.options import instant, word
from penstock.stores import StoreOpener
from penstock.sync import is_on_a_loop
from penstock.testing.clock import FakeClock
from penstock.testing.errors import (
    NotDue,
    SandboxBusy,
    SandboxClosed,
    SandboxUsed,
    UnseenFailure,
    WouldBlock,
    since,
)
from penstock.testing.harness import Bench, Order
from penstock.testing.intercept import Detour, Watch
from penstock.testing.mishaps import Mishaps
from penstock.testing.runs import Drained, Failure, Run
from penstock.testing.stepper import Guided, Here, OnLoop, Place, taken
from penstock.testing.transactions import Lent

START: Final = 1_767_225_600.0
"""The first instant of 2026, UTC: a test that passes today passes tomorrow."""

MAX_ATTEMPTS: Final = 10_000
MODES: Final = ("manual", "inline")
INLINE: Final = "enqueue"
"""What the test has called, where jobs run inline."""


class Sandbox(Mishaps):
    """One app in a sandbox, for one block: ``with`` or ``async with``.

    ``mode="manual"``: jobs wait until the test runs them. ``mode="inline"``: each call that
    enqueues runs all that is due before it returns. ``now`` is when the clock begins. ``strict``:
    an attempt that failed and that the test never looked at fails the test when the block ends.
    ``seed`` decides the order of ``interleave``. ``max_attempts`` ends what would never end.
    Transactional tasks write on ``connection``, or on what suits them of a list, each attempt
    inside a savepoint.
    """

    def __init__(
        self,
        app: Penstock,
        *,
        mode: Literal["manual", "inline"] = "manual",
        now: datetime | float | None = None,
        strict: bool = True,
        seed: int = 0,
        max_attempts: int = MAX_ATTEMPTS,
        connection: object = None,
    ) -> None:
        if mode not in MODES:
            raise BadOption("mode", mode, "give 'manual' or 'inline'")
        _from_one("max_attempts", max_attempts)
        self.app = app
        self.mode = mode
        self.seed = seed
        self._start = _instant(now)
        self.clock = FakeClock(self._start)
        """The clock; the app's own, too, while the block lasts."""
        self.strict = strict
        self._failures: list[Failure] = []
        self._unseen: list[Failure] = []
        self._is_open = False
        self._was_opened = False
        watch = Watch(self._look_at, lambda id: self._bench.ask_to_end(id))
        specs = app._specs
        self._bench = Bench(specs, app.bus, self.clock, watch, app.settings.lease, max_attempts)
        self._opener = StoreOpener(self._bench.connect, self.clock)
        self._detour = Detour(
            app._facade,
            outside=self._step_outside,
            run=self._inline,
            arun=self._ainline,
        )
        self._lent = Lent(connection)
        self._here = Here()
        self._threads = ThreadPoolExecutor(1, "penstock sandbox")
        self._ran_until = 0

    @property
    def now(self) -> datetime:
        """The virtual instant, UTC."""
        return datetime.fromtimestamp(self.clock.now(), UTC)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every attempt that raised, with the exception itself. Reading it is looking: what is in
        here does not fail the test any more.
        """
        self._unseen.clear()
        return tuple(self._failures)

    @property
    def recorded(self) -> tuple[Failure, ...]:
        """The same, for those who only report it."""
        return tuple(self._failures)

    def check(self) -> None:
        """Raise what the end of the block would: ``UnseenFailure`` or ``UnusedFault``. Once."""
        unseen, self._unseen = tuple(self._unseen), []
        if self.strict and unseen:
            raise UnseenFailure(unseen) from unseen[0].error
        if self.strict:
            self._bench.faults.check()
            self._check_replies()

    # --- the block -----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._begin()
        self.app.close()
        return self

    async def __aenter__(self) -> Self:
        self._begin()
        await self.app.aclose()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end()
        self.app.close()
        self._judge(error)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end()
        await self.app.aclose()
        self._judge(error)

    def _begin(self) -> None:
        if self._was_opened:
            raise SandboxUsed("__enter__")
        self._was_opened = True
        taken(self._bench.open())
        self._detour.begin()
        # From now on new handles are of this store; whoever has one of the real store loses it
        # when the app is closed, right after this.
        self.app._source.put(self._opener)
        self.app.hooks.lend(self._lent)
        self._is_open = True

    def _end(self) -> None:
        self._is_open = False
        self.app._source.take(self._opener)
        self.app.hooks.take_back(self._lent)
        self._detour.end()
        if is_on_a_loop():
            self._threads.submit(self._here.close).result()
        else:
            self._here.close()
        self._threads.shutdown(wait=False)

    def _judge(self, error: BaseException | None) -> None:
        if error is None:
            self.check()
        elif self._unseen:
            lines = "\n".join(f"  {failure}" for failure in self._unseen[:10])
            error.add_note(f"in the sandbox, {len(self._unseen)} attempts failed:\n{lines}")

    # --- running jobs --------------------------------------------------------------------------

    def drain(
        self, queue: str | None = None, *, limit: int | None = None, raises: bool = False
    ) -> Drained:
        """Run what is due, in order, one attempt at a time, and what that enqueues, until nothing
        is due any more; return what happened.

        With ``queue``, only of that one; with ``limit``, so many attempts at most. The clock stands
        still: retries and delayed jobs wait for ``advance``. ``raises``: the first exception of a
        handler ends it, and comes out here. One drain is one run of a worker: start-up hooks run
        before its first attempt and shutdown hooks after the last.
        """
        return self._run(self._order("drain", queue, limit), raises)

    async def adrain(
        self, queue: str | None = None, *, limit: int | None = None, raises: bool = False
    ) -> Drained:
        """The same, awaited: async handlers run on this loop."""
        return await self._arun(self._order("drain", queue, limit), raises)

    def step(self, queue: str | None = None) -> Run | None:
        """Run one attempt; None: nothing is due."""
        return next(iter(self._run(self._order("step", queue, 1))), None)

    async def astep(self, queue: str | None = None) -> Run | None:
        """The same, awaited."""
        return next(iter(await self._arun(self._order("step", queue, 1))), None)

    def run(self, job: Handle[Any] | str, *, raises: bool = False) -> Run:
        """Run what is due, in order, up to this job's next attempt; return how that one went.

        On failure: ``NotDue`` if it cannot run now.
        """
        order = self._up_to(job)
        return self._of(job, self._run(order, raises))

    async def arun(self, job: Handle[Any] | str, *, raises: bool = False) -> Run:
        """The same, awaited."""
        order = self._up_to(job)
        return self._of(job, await self._arun(order, raises))

    def advance(self, duration: Duration, *, raises: bool = False) -> Drained:
        """Let time pass, and run what falls due meanwhile, each at its own instant."""
        return self._run(self._later("advance", duration), raises)

    async def aadvance(self, duration: Duration, *, raises: bool = False) -> Drained:
        """The same, awaited."""
        return await self._arun(self._later("aadvance", duration), raises)

    def interleave(self, *, workers: int = 2, seed: int | None = None) -> Drained:
        """Run what is due with several workers that take turns; see ``ainterleave``."""
        if is_on_a_loop():
            raise WouldBlock("interleave")
        return self._here.wait(self.ainterleave(workers=workers, seed=seed))

    async def ainterleave(
        self, *works: Coroutine[Any, Any, object], workers: int = 2, seed: int | None = None
    ) -> Drained:
        """Run coroutines, and what is due with several workers, until all have ended.

        They take turns in an order that ``seed`` decides, by default the sandbox's: the same seed,
        the same order. A turn lasts until the next ``await`` that really waits, so async handlers
        can meet in between; a sync handler is one turn. What fails has a note with the seed.
        """
        seed, runs = self.seed if seed is None else seed, list[Run]()
        place = Guided(self._threads, self._step_outside)
        try:
            self._check_open("ainterleave")
            _from_one("workers", workers)
            await self._bench.interleave(place, list(works), workers, seed, runs)
        except BaseException as error:
            error.add_note(f"this was an interleaving with seed={seed}")
            raise
        finally:
            for work in works:
                work.close()  # which says nothing to those that have ended
            self._record(runs)
        return Drained(tuple(runs))

    # --- how ------------------------------------------------------------------------------------

    def _run(self, order: Order, raises: bool = False) -> Drained:
        if is_on_a_loop():
            raise WouldBlock(order.call)
        return taken(self._work(self._here, order, raises))

    async def _arun(self, order: Order, raises: bool = False) -> Drained:
        return await self._work(OnLoop(self._threads, self._step_outside), order, raises)

    async def _work(self, place: Place, order: Order, raises: bool) -> Drained:
        self._check_open(order.call)
        if self._bench.script.is_down:
            raise EngineUnavailable("memory", "the test took it down")
        runs: list[Run] = []
        try:
            await self._bench.work(place, _stopping(order) if raises else order, runs)
        finally:
            self._record(runs)
        if raises and runs and runs[-1].is_surprise and (failure := runs[-1].failure) is not None:
            self._unseen = [each for each in self._unseen if each is not failure]
            raise failure.error
        return Drained(tuple(runs))

    def _order(self, call: str, queue: str | None, limit: int | None) -> Order:
        if queue is not None:
            word("queue", queue)
        if limit is not None:
            _from_one("limit", limit)
        return Order(call=call, queue=queue, limit=limit)

    def _later(self, call: str, duration: Duration) -> Order:
        return Order(call=call, until=self.clock.now() + seconds(duration))

    def _up_to(self, job: Handle[Any] | str) -> Order:
        id = job if isinstance(job, str) else job.id
        found = self._job(id)
        match found.state:
            case State.READY:
                return Order(call="run", after=lambda run: run.job.id == id)
            case State.SCHEDULED:
                due_at = since(self._start, found.run_at or 0.0)
                now = since(self._start, self.clock.now())
                why = f"it is due at {due_at}, and it is {now}; advance(...) first"
            case State.RUNNING:
                why = "the worker that has it died; advance(...) by the lease first"
            case _:
                why = "it has ended"
        raise NotDue(id, found.state, why)

    def _of(self, job: Handle[Any] | str, drained: Drained) -> Run:
        id = job if isinstance(job, str) else job.id
        for run in drained:
            if run.job.id == id:
                return run
        found = self._job(id)
        why = f"it is held ({found.hold})" if found.hold else "its queue gives nothing"
        raise NotDue(id, found.state, f"{why}; see t.waiting and app.queues()")

    def _job(self, id: str) -> Job:
        for job in self._bench.jobs():
            if job.id == id:
                return job
        raise JobGone(id)

    def _record(self, runs: list[Run]) -> None:
        for run in runs:
            failure = run.failure
            if failure is None or not run.is_surprise:
                continue
            self._failures.append(failure)
            if not run.is_injected:
                self._unseen.append(failure)

    def _look_at(self, id: str) -> None:
        self._unseen = [failure for failure in self._unseen if failure.job.id != id]

    def _check_open(self, call: str) -> None:
        if not self._is_open:
            raise SandboxClosed(call)

    def _step_outside(self) -> None:
        if self._bench.turnstile is not None:
            self._bench.turnstile.step_outside()

    # --- inline --------------------------------------------------------------------------------

    def _has_more(self) -> bool:
        return self.mode == "inline" and len(self._bench.watch.stored) > self._ran_until

    def _inline(self, waits: bool) -> None:
        """Run what was enqueued. If others run jobs just now, they do: they look again at the end.
        Only a call that waits anyhow waits for that; else it could be them who wait for us.
        """
        while self._has_more() and not self._bench.is_inside:
            if not self._bench.is_busy:
                with self._up_to_now():
                    if is_on_a_loop():
                        self._threads.submit(self._run, Order(call=INLINE)).result()
                    else:
                        self._run(Order(call=INLINE))
            elif waits and not is_on_a_loop():
                self._bench.idle.result()
            else:
                return

    async def _ainline(self) -> None:
        """The same, awaited. Async code that these others run can be told from any other, so here
        nobody else returns before the jobs have run.
        """
        while self._has_more() and not self._bench.is_inside:
            if not self._bench.is_busy:
                with self._up_to_now():
                    await self._arun(Order(call=INLINE))
            else:
                await asyncio.shield(asyncio.wrap_future(self._bench.idle))

    @contextmanager
    def _up_to_now(self) -> Iterator[None]:
        """Run what is stored so far; if others were quicker, they do."""
        stored = self._bench.watch.stored
        count = len(stored)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, SandboxBusy) or error.call != INLINE:
                self._ran_until = len(stored)  # it has failed once, and that is enough
                raise
        else:
            self._ran_until = max(self._ran_until, count)


def _stopping(order: Order) -> Order:
    """The same, but ended by the first failure."""
    first = order.after

    def after(run: Run) -> bool:
        return run.is_surprise or (first is not None and first(run))

    return Order(
        call=order.call, queue=order.queue, limit=order.limit, until=order.until, after=after
    )


def _from_one(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadOption(name, value, "give a whole number from 1")


def _instant(now: datetime | float | None) -> float:
    match now:
        case None:
            return START
        case datetime() if now.utcoffset() is None:
            raise BadOption("now", now, "it has no time zone; give one, such as tzinfo=UTC")
        case datetime():
            return now.timestamp()
        case _:
            return instant("now", now)
