"""What a sandbox is made of: a store, the app's handles on it, and workers that are told each step.

One worker runs one attempt after the other (``work``), or several take turns (``interleave``).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock import logs
from penstock.context import CURRENT
from penstock.core.job import Job, State
from penstock.core.spec import Spec
from penstock.engines.engine import Engine
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.observed import Observed
from penstock.events import Bus
from penstock.testing.clock import FakeClock
from penstock.testing.errors import Runaway, SandboxBusy, SandboxForked
from penstock.testing.execution import Execution, WorkerSpan, stop
from penstock.testing.faults import TaskFaults
from penstock.testing.faulty import Faulty
from penstock.testing.intercept import SandboxEngine, StoreLog, WorkerEngine
from penstock.testing.interleaving import Interleaver
from penstock.testing.runs import Run
from penstock.testing.stepper import Stepper, WorkerDeath
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.middleware import lifespan

RECENT: Final = 3

_INSIDE: Final[ContextVar[Harness]] = ContextVar("penstock_harness")
"""The harness whose hooks or async handlers run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """What is to be worked off."""

    call: str
    """What the test has called."""
    queue: str | None = None
    limit: int | None = None
    """Attempts after which to stop; None: when nothing is due any more."""
    until: float | None = None
    """The instant to come to; None: stay where the clock is."""
    after: Callable[[Run], bool] | None = None
    """Told of each run; True: that was the last."""

    def until_failure(self) -> DrainOrder:
        """The same, but the first failure ends it."""
        first = self.after

        def after(run: Run) -> bool:
            return run.is_surprise or (first is not None and first(run))

        return replace(self, after=after)


class Harness:
    """The inside of one sandbox."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        bus: Bus,
        clock: FakeClock,
        log: StoreLog,
        lease: float,
        max_attempts: int,
    ) -> None:
        self.clock = clock
        self.log = log
        self.task_faults = TaskFaults()
        self._store = MemoryStore()
        self.store_faults = Faulty(MemoryEngine(self._store, clock))
        """Where a test says what becomes of the app's calls to the store."""
        self.interleaver: Interleaver | None = None
        self._specs = specs
        self._bus = bus
        self._lease = lease
        self._max_attempts = max_attempts
        self._deaths: list[WorkerDeath] = []
        self._running: dict[str, Attempt] = {}
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self.idle: Future[None] = Future()
        """Done when jobs have run; a new one each time they do. The lock is taken a moment before
        it is renewed: the first one is done, too, so that no caller waits for it for ever."""
        self.idle.set_result(None)
        self._engine = Observed(WorkerEngine(self._store, clock, log), bus, tries=1)
        self._stepper = self._new_stepper()

    def connect(self) -> Engine:
        """A new handle for the app."""
        inner = MemoryEngine(self._store, self.clock)
        return Observed(SandboxEngine(inner, self.log, self.store_faults), self._bus, tries=1)

    async def open(self) -> None:
        """Open the worker's own handle. Nothing that it does ever waits: time limits are over."""
        await self._engine.open()
        await self._engine.close()
        await self._engine.inner.open()

    def jobs(self) -> list[Job]:
        """All jobs, in the order they were enqueued."""
        with self._store.lock:
            entered = self._store.entered
            return sorted(self._store.jobs.values(), key=lambda job: entered[job.id])

    def cancel(self, id: str) -> None:
        """Ask the attempt of a job to end, if it runs."""
        attempt = self._running.get(id)
        if attempt is not None:
            stop(attempt, Ending.CANCEL, hits=False)

    @property
    def is_busy(self) -> bool:
        """Jobs run just now."""
        return self._busy.locked()

    @property
    def is_inside(self) -> bool:
        """The caller is run by this harness, which does not end before the caller does."""
        if self.interleaver is not None or _INSIDE.get(None) is self:
            return True
        context = CURRENT.get(None)
        attempt = None if context is None else self._running.get(context.id)
        return attempt is not None and attempt.context is context

    # --- one worker, one attempt after the other -----------------------------------------------

    async def work(self, execution: Execution, order: DrainOrder, runs: list[Run]) -> None:
        """Be a worker for a while; each attempt is added to ``runs`` as it ends.

        On failure: ``Runaway``, or what a start-up hook raises.
        """
        with self._alone(order.call):
            await self._stepper.join()
            hooks = _WorkerHooks(self, execution, self._specs)
            try:
                await self._work(execution, order, runs, hooks)
            finally:
                await hooks.end()

    async def _work(
        self, execution: Execution, order: DrainOrder, runs: list[Run], hooks: _WorkerHooks
    ) -> None:
        while True:
            await self._stepper.rescue()
            while order.limit is None or len(runs) < order.limit:
                attempt = await self._stepper.claim(self._queues(order.queue))
                if attempt is None:
                    break
                await self._check(self._stepper, attempt, runs)
                runs.append(run := await self._run(self._stepper, execution, attempt, hooks))
                if order.after is not None and order.after(run):
                    return
            next_at = self._next_at()
            if order.until is None or next_at is None or next_at > order.until:
                break
            self.clock.advance_to(next_at)
        if order.until is not None:
            self.clock.advance_to(order.until)

    async def _run(
        self, stepper: Stepper, execution: Execution, attempt: Attempt, hooks: _WorkerHooks
    ) -> Run:
        try:
            await hooks.begin()
        except BaseException:
            await stepper.give_back(attempt)
            raise
        self._running[attempt.job.id] = attempt
        try:
            return await stepper.run(attempt, execution)
        finally:
            del self._running[attempt.job.id]

    async def _check(self, stepper: Stepper, attempt: Attempt, runs: list[Run]) -> None:
        begun = len(runs) + len(self._running)
        if begun >= self._max_attempts:
            await stepper.give_back(attempt)
            recent = deque((run.task for run in runs), RECENT)
            raise Runaway(begun, tuple(dict.fromkeys(recent)))

    def _next_at(self) -> float | None:
        """The next instant at which something happens by itself."""
        now, instants = self.clock.now(), [dead.rescued_at for dead in self._deaths]
        with self._store.lock:
            jobs = list(self._store.jobs.values())
        for job in jobs:
            if job.state is State.SCHEDULED:
                instants += (job.run_at or 0.0, job.expires_at or 0.0)
            elif job.state is State.READY:
                instants += (job.hold_until or 0.0, job.expires_at or 0.0)
        return min((instant for instant in instants if instant > now), default=None)

    # --- several workers, step by step ---------------------------------------------------------

    async def interleave(
        self,
        execution: Execution,
        works: list[Coroutine[Any, Any, object]],
        workers: int,
        seed: int,
        runs: list[Run],
    ) -> None:
        """Let coroutines and workers take turns, in the order that ``seed`` decides."""
        with self._alone("interleave"):
            await self._stepper.rescue()
            self.interleaver = interleaver = Interleaver(seed)
            self.log.is_interleaving = True
            hooks = _WorkerHooks(self, execution, self._specs)
            steppers = [self._new_stepper() for _ in range(workers)]
            try:
                await hooks.begin()
                mine = [self._take_turns(each, execution, runs, hooks) for each in steppers]
                await interleaver.lead([*works, *mine])
            finally:
                self.interleaver = None
                self.log.is_interleaving = False
                for stepper in steppers:
                    await stepper.leave()
                await hooks.end()

    async def _take_turns(
        self, stepper: Stepper, execution: Execution, runs: list[Run], hooks: _WorkerHooks
    ) -> None:
        interleaver = self.interleaver
        assert interleaver is not None
        await stepper.join()
        while True:
            attempt = await stepper.claim(self._queues())
            if attempt is None:
                if not await interleaver.idle():
                    return
                continue
            await asyncio.sleep(0)  # others may have a turn between a claim and its attempt
            await self._check(stepper, attempt, runs)
            runs.append(await self._run(stepper, execution, attempt, hooks))
            await asyncio.sleep(0)

    # --- what both need ------------------------------------------------------------------------

    def _queues(self, queue: str | None = None) -> tuple[str, ...]:
        return tuple(self.log.queues) if queue is None else (queue,)

    def _new_stepper(self) -> Stepper:
        return Stepper(
            self._engine, self._specs, self.clock, self._lease, self.task_faults, self._deaths
        )

    @contextmanager
    def _alone(self, call: str) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise SandboxForked(call)
        if not self._busy.acquire(blocking=False):
            raise SandboxBusy(call)
        self.idle = idle = Future[None]()
        try:
            with logs.context():
                yield
        finally:
            self._busy.release()
            idle.set_result(None)


class _WorkerHooks:
    """The app's start-up and shutdown around the attempts, if there are any."""

    def __init__(self, harness: Harness, execution: Execution, specs: Mapping[str, Spec]) -> None:
        self._harness = harness
        self._execution = execution
        self._specs = specs
        self._span: WorkerSpan | None = None

    async def begin(self) -> None:
        """Start up, once."""
        if self._span is None:
            span = WorkerSpan(lifespan([spec.hooks for spec in self._specs.values()]))
            span.variables.run(_INSIDE.set, self._harness)
            await self._execution.enter(span)
            self._span = span

    async def end(self) -> None:
        """Shut down, if it was started."""
        span, self._span = self._span, None
        if span is not None:
            await self._execution.leave(span)
