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
from penstock.core import job as stored
from penstock.core.job import State
from penstock.core.units import Duration, seconds
from penstock.errors import BadOption, EngineUnavailable, JobGone
from penstock.handle import Handle
from penstock.job import Job, shown
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
    UnusedFault,
    WouldBlock,
    since,
)
from penstock.testing.execution import (
    Execution,
    Interleaved,
    OnLoop,
    OnThread,
    run_without_waiting,
)
from penstock.testing.faults import At, Raised
from penstock.testing.harness import DrainOrder, Harness
from penstock.testing.inspection import AnyTask, Entry, Inspector
from penstock.testing.intercept import FacadeIntercept, StoreLog
from penstock.testing.runs import Drained, Failure, FailureLog, Run
from penstock.testing.transactions import Lent

START: Final = 1_767_225_600.0
"""The first instant of 2026, UTC: a test that passes today passes tomorrow."""

MAX_ATTEMPTS: Final = 10_000
MODES: Final = ("manual", "inline")
INLINE: Final = "enqueue"
"""What the test has called, where jobs run inline."""


class Sandbox:
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
        self._failures = FailureLog()
        self._is_open = False
        self._was_opened = False
        log = StoreLog(self._failures.look_at, lambda id: self._harness.cancel(id))
        specs, lease = app._specs, app.settings.lease
        self._harness = Harness(specs, app.bus, self.clock, log, lease, max_attempts)
        self._inspector = Inspector(app, self._harness, self._start)
        self._opener = StoreOpener(self._harness.connect, self.clock)
        self._intercept = FacadeIntercept(
            app._facade, outside=self._step_outside, run=self._inline, arun=self._ainline
        )
        self._lent = Lent(connection)
        self._on_thread = OnThread()
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
        self._failures.unseen.clear()
        return tuple(self._failures.all)

    @property
    def recorded(self) -> tuple[Failure, ...]:
        """The same, for a report: it is no look."""
        return tuple(self._failures.all)

    def check(self) -> None:
        """Raise what the end of the block would: ``UnseenFailure`` or ``UnusedFault``. Once."""
        unseen, self._failures.unseen = tuple(self._failures.unseen), []
        if self.strict and unseen:
            raise UnseenFailure(unseen) from unseen[0].error
        if self.strict:
            self._harness.task_faults.check()
            for verb, times in self._harness.store_faults.forgo().items():
                raise UnusedFault("the loss of a reply", verb, times)

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
        run_without_waiting(self._harness.open())
        self._intercept.begin()
        # From now on new handles are of this store; those on the real store go when the app is
        # closed, right after this.
        self.app._source.put(self._opener)
        self.app.hooks.lend(self._lent)
        self._is_open = True

    def _end(self) -> None:
        self._is_open = False
        self.app._source.take(self._opener)
        self.app.hooks.take_back(self._lent)
        self._intercept.end()
        if is_on_a_loop():
            self._threads.submit(self._on_thread.close).result()
        else:
            self._on_thread.close()
        self._threads.shutdown(wait=False)

    def _judge(self, error: BaseException | None) -> None:
        if error is None:
            self.check()
        elif unseen := self._failures.unseen:
            lines = "\n".join(f"  {failure}" for failure in unseen[:10])
            error.add_note(f"in the sandbox, {len(unseen)} attempts failed:\n{lines}")

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
        return self._on_thread.wait(self.ainterleave(workers=workers, seed=seed))

    async def ainterleave(
        self, *works: Coroutine[Any, Any, object], workers: int = 2, seed: int | None = None
    ) -> Drained:
        """Run coroutines, and what is due with several workers, until all have ended.

        They take turns in an order that ``seed`` decides, by default the sandbox's: the same seed,
        the same order. A turn lasts until the next ``await`` that really waits, so async handlers
        can meet in between; a sync handler is one turn. What fails has a note with the seed.
        """
        seed, runs = self.seed if seed is None else seed, list[Run]()
        execution = Interleaved(self._threads, self._step_outside)
        try:
            self._check_open("ainterleave")
            _from_one("workers", workers)
            await self._harness.interleave(execution, list(works), workers, seed, runs)
        except BaseException as error:
            error.add_note(f"this was an interleaving with seed={seed}")
            raise
        finally:
            for work in works:
                work.close()  # which says nothing to those that have ended
            self._failures.add(runs)
        return Drained(tuple(runs))

    # --- looking -------------------------------------------------------------------------------

    def enqueued(self, task: AnyTask | None = None, /, *args: Any, **expected: Any) -> list[Entry]:
        """What was enqueued since the block began, in order: all of it, of one task, or what fits.

        Arguments may be given by place or by name, and options by name, as for
        ``assert_enqueued``. What the store knew already (same id, same unique key) is not there.
        """
        if task is None:
            return self._inspector.entries()
        return self._inspector.enqueued(task, args, expected)

    def assert_enqueued(
        self, task: AnyTask, /, *args: Any, count: int | None = None, **expected: Any
    ) -> list[Entry]:
        """Fail unless such a job was enqueued, or exactly ``count`` of them; return those.

        What is not said may be anything. A name is an argument if the task has such a parameter,
        else an option: ``queue``, ``key``, ``delay``, ``run_at``, ``unique``, ``priority``, ... An
        option whose name is taken by a parameter is said with ``using``:
        ``t.assert_enqueued(send.using(key="7"), to="a@b.c")``. Defaults count as given. A parameter
        that is called ``count`` can only be given by place.
        """
        return self._inspector.check_enqueued(task, args, expected, count)

    def assert_not_enqueued(self, task: AnyTask, /, *args: Any, **expected: Any) -> None:
        """Fail if such a job was enqueued."""
        if self.enqueued(task, *args, **expected):
            raise self._inspector.unmet(task, args, expected, "no job")

    @property
    def jobs(self) -> list[Job[Any]]:
        """All jobs as they are now, in the order they were enqueued."""
        return [shown(job, self.app._signature_of(job.task)) for job in self._harness.jobs()]

    @property
    def waiting(self) -> list[Job[Any]]:
        """Those that are ready or scheduled, with the reason if they are held."""
        return [job for job in self.jobs if job.state.is_waiting]

    def snapshot(self) -> dict[str, Any]:
        """The store as plain data that is the same in each run: for snapshot tests and diffs.

        Instants are seconds since the block began, ids are "job 1", "job 2" unless chosen; what
        says nothing is left out, and so are tracebacks.
        """
        return self._inspector.snapshot()

    # --- faults: what is asked for and never happens fails the test ------------------------------
    #
    # Several for one task happen in the order they were asked for, one to each attempt.

    def crash(self, task: AnyTask, at: At = "after", *, times: int | None = 1) -> None:
        """Let the process of the task's next attempt die: ``before`` the handler is called,
        ``during`` (after its first line), before so many-th line that it runs, or ``after`` it has
        done everything, before the store knows.

        As after ``kill -9`` the job is rescued when the lease has run out: ``advance`` by that,
        and it runs again. The second time it is a child process that dies, and the job is ready at
        once; the third time it fails. In the handler a ``Crash`` is raised there, which is no
        ``Exception``: ``finally`` and ``with`` run, as they would not in a dead process.
        """
        self._harness.task_faults.add_crash(self._inspector.declared(task).spec, at, times)

    def fail(self, task: AnyTask, error: Raised = None, *, times: int | None = 1) -> None:
        """Let the task's next attempts raise ``error`` in place of the handler; None: for ever."""
        self._harness.task_faults.add_failure(self._inspector.declared(task).spec, error, times)

    def time_out(self, task: AnyTask, *, times: int | None = 1) -> None:
        """Let the task's next attempts run out of time, before the first line of the handler."""
        self._harness.task_faults.add_time_out(self._inspector.declared(task).spec, times)

    @contextmanager
    def store_down(self) -> Iterator[None]:
        """Let the store be away: what the app asks of it raises ``EngineUnavailable``."""
        was_down = self._harness.store_faults.is_down
        self._harness.store_faults.down()
        try:
            yield
        finally:
            if not was_down:
                self._harness.store_faults.up()

    def lose_reply(self, verb: str = "enqueue", *, times: int = 1) -> None:
        """Let the app's next call happen and its answer be lost: ``EngineUnavailable``, though the
        job is stored. An id of your own makes it safe to enqueue again.
        """
        _from_one("times", times)
        self._harness.store_faults.fail(verb, when="after", times=times)

    # --- how ------------------------------------------------------------------------------------

    def _run(self, order: DrainOrder, raises: bool = False) -> Drained:
        if is_on_a_loop():
            raise WouldBlock(order.call)
        return run_without_waiting(self._work(self._on_thread, order, raises))

    async def _arun(self, order: DrainOrder, raises: bool = False) -> Drained:
        return await self._work(OnLoop(self._threads, self._step_outside), order, raises)

    async def _work(self, execution: Execution, order: DrainOrder, raises: bool) -> Drained:
        self._check_open(order.call)
        if self._harness.store_faults.is_down:
            raise EngineUnavailable("memory", "the test took it down")
        runs: list[Run] = []
        try:
            await self._harness.work(execution, order.until_failure() if raises else order, runs)
        finally:
            self._failures.add(runs)
        if raises and runs and runs[-1].is_surprise and (failure := runs[-1].failure) is not None:
            self._failures.forget(failure)
            raise failure.error
        return Drained(tuple(runs))

    def _order(self, call: str, queue: str | None, limit: int | None) -> DrainOrder:
        if queue is not None:
            word("queue", queue)
        if limit is not None:
            _from_one("limit", limit)
        return DrainOrder(call=call, queue=queue, limit=limit)

    def _later(self, call: str, duration: Duration) -> DrainOrder:
        return DrainOrder(call=call, until=self.clock.now() + seconds(duration))

    def _up_to(self, job: Handle[Any] | str) -> DrainOrder:
        id = job if isinstance(job, str) else job.id
        found = self._job(id)
        match found.state:
            case State.READY:
                return DrainOrder(call="run", after=lambda run: run.job.id == id)
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

    def _job(self, id: str) -> stored.Job:
        for job in self._harness.jobs():
            if job.id == id:
                return job
        raise JobGone(id)

    def _check_open(self, call: str) -> None:
        if not self._is_open:
            raise SandboxClosed(call)

    def _step_outside(self) -> None:
        if self._harness.interleaver is not None:
            self._harness.interleaver.step_outside()

    # --- inline --------------------------------------------------------------------------------

    def _has_more(self) -> bool:
        return self.mode == "inline" and len(self._harness.log.stored) > self._ran_until

    def _inline(self, waits: bool) -> None:
        """Run what was enqueued. A thread that runs jobs just now does it: it looks again at the
        end. Only a call that waits anyhow waits for that; else that thread could wait for this one.
        """
        while self._has_more() and not self._harness.is_inside:
            if not self._harness.is_busy:
                with self._up_to_now():
                    if is_on_a_loop():
                        self._threads.submit(self._run, DrainOrder(call=INLINE)).result()
                    else:
                        self._run(DrainOrder(call=INLINE))
            elif waits and not is_on_a_loop():
                self._harness.idle.result()
            else:
                return

    async def _ainline(self) -> None:
        """The same, awaited. Here a caller that is run by the other thread can be told from any
        other, so that every other one returns after the jobs have run.
        """
        while self._has_more() and not self._harness.is_inside:
            if not self._harness.is_busy:
                with self._up_to_now():
                    await self._arun(DrainOrder(call=INLINE))
            else:
                await asyncio.shield(asyncio.wrap_future(self._harness.idle))

    @contextmanager
    def _up_to_now(self) -> Iterator[None]:
        """Run what is stored so far, unless another thread was quicker."""
        stored = self._harness.log.stored
        count = len(stored)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, SandboxBusy) or error.call != INLINE:
                self._ran_until = len(stored)  # it has failed once, and that is enough
                raise
        else:
            self._ran_until = max(self._ran_until, count)


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
