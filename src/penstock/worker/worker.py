"""A worker: run it, stop it from any thread, look at its counters.

Three loops live side by side in a run: the caller's loop runs the claim loop and the async
handlers; one thread beats for the lease; one thread does the upkeep, which stands for election. A
handler that blocks the caller's loop stops neither of the two.

Stopping, in the order of time

| when                   | what                                                                |
|------------------------|---------------------------------------------------------------------|
| ``stop(drain)``        | no more claims; what has not started is given back; beats go on     |
| after ``drain``        | coroutines are cancelled, threads interrupted, children killed;     |
|                        | what ends of that is given back; a start-up that still goes on is   |
|                        | cancelled                                                           |
| half of ``grace`` more | what does not end is left to the parent, which gives it back when   |
|                        | this process is dead; or, without one, given back as it stands      |
| all of ``grace``       | the store is away: what could not be settled is for the leader      |
| at the end             | the leadership is resigned, the lease given back                    |
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from math import inf
from typing import Any, Final

from penstock import logs
from penstock.clock import Clock, within
from penstock.core.spec import Spec
from penstock.engines.engine import Engine
from penstock.engines.orders import DrainOrder
from penstock.engines.retrying import open_patiently
from penstock.errors import EngineError
from penstock.worker.claim_loop import ClaimLoop
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.exchange import Exchanger
from penstock.worker.lease import Lease, keep_beating
from penstock.worker.log import WorkerLog
from penstock.worker.middleware import lifespan
from penstock.worker.pool import StartGate
from penstock.worker.settings import WorkerSettings
from penstock.worker.side_thread import SideThread
from penstock.worker.status import NoParent, Parent, Stats
from penstock.worker.watchdog import Watchdog

Upkeep = Callable[[Engine, str, Callable[[], float]], Coroutine[Any, Any, None]]
"""What a worker does for all, beside its jobs, on a handle of its own and under this name; the last
argument says when its last beat was sent that has reached the store."""

ROUNDING: Final = 0.001
"""Seconds that a deadline may be early: clocks and sleeps are not exact."""


class Worker:
    """Runs jobs of the tasks in ``specs``. ``connect`` makes a new, unopened handle each time it is
    called; the worker opens and closes what it gets.
    """

    def __init__(
        self,
        connect: Callable[[], Engine],
        specs: Mapping[str, Spec],
        settings: WorkerSettings | None = None,
        *,
        clock: Clock,
        parent: Parent | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self.settings = settings or WorkerSettings()
        self.ready = asyncio.Event()
        """Set once the store has given it its lease."""
        self.is_drain_ordered = False
        """A person has ordered it to drain and stop; see ``engines.orders``."""
        self.stats = Stats()
        self._connect = connect
        self._specs = specs
        self._clock = clock
        self._parent = parent or NoParent()
        self._upkeep = upkeep
        self._lock = threading.Lock()
        """Guards what ``stop`` says to a run that may just begin."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_in: float | None = None
        self._ends_when_empty = False
        # What lives as long as one run; made by it.
        self._log: WorkerLog
        self._engine: Engine
        self._gate: StartGate
        self._lease: Lease
        self._dispatcher: Dispatcher
        self._exchanger: Exchanger
        self._claim_loop: ClaimLoop
        self._wake: asyncio.Event
        self._nudge: asyncio.Event
        self._stopping: asyncio.Event
        self._deadline = inf
        self._is_torn = False

    @property
    def id(self) -> str:
        """Its present id: new with each run and after each lost lease; empty before the first."""
        return self._lease.worker if self._loop is not None else ""

    async def run(self, *, until_empty: bool = False) -> None:
        """Run jobs until ``stop``, and return when everything is settled.

        With ``until_empty``, also when no job of its queues is ready, runs or is due any more. Jobs
        that are scheduled for later do not count, retries included; nor do those that wait for an
        unknown task, a dependency, a breaker or in a paused queue.

        Being cancelled is a ``stop(0)``: what runs is given back before this raises.
        On failure: what ``open`` raises, except that a store which is away is waited for.
        """
        self._prepare()
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._ends_when_empty = self._ends_when_empty or until_empty
        self._heed(self._stop_in)
        hooks = [spec.hooks for spec in self._specs.values()]
        with logs.context():
            async with AsyncExitStack() as stack:
                if await self._started(stack.enter_async_context(lifespan(hooks))):
                    await self._open()

    def stop(self, drain: float | None = None) -> None:
        """Let ``run`` end, from any thread: running attempts may go on for ``drain`` seconds, by
        default those of the settings. Called again, the shorter time counts.
        """
        seconds = self.settings.drain if drain is None else max(0.0, drain)
        with self._lock:
            self._stop_in = seconds if self._stop_in is None else min(seconds, self._stop_in)
            self._tell(seconds)

    def stop_when_empty(self) -> None:
        """Let ``run`` end when there is nothing left to do, from any thread; see ``run``."""
        with self._lock:
            self._ends_when_empty = True
            self._tell(None)

    def _obey(self, order: DrainOrder) -> None:
        """Every beat brings the order again, until the worker has left."""
        if not self.is_drain_ordered:
            self.is_drain_ordered = True
            self._log.info("drain ordered", worker=self._lease.worker)
            self.stop(order.within)

    def _tell(self, seconds: float | None) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._heed, seconds)
            except RuntimeError:
                pass  # its loop is closed: it has stopped

    # --- one run -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        settings, clock = self.settings, self._clock
        self._log = log = WorkerLog()
        self._engine = self._connect()
        self._wake, self._nudge, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._deadline, self._is_torn = inf, False
        self._gate = StartGate(clock)
        self._lease = Lease(settings, self._gate, clock, self._lost, self._regained)
        self._dispatcher = Dispatcher(
            self._specs,
            settings,
            clock=clock,
            gate=self._gate,
            worker=lambda: self._lease.worker,
            stats=self.stats,
            log=log,
            parent=self._parent,
            wake=self._wake.set,
        )
        self._exchanger = Exchanger(
            self._engine,
            self._lease,
            self._dispatcher,
            specs=self._specs,
            settings=settings,
            clock=clock,
            log=log,
            parent=self._parent,
        )
        self._claim_loop = ClaimLoop(
            self._engine,
            self._lease,
            self._exchanger,
            self._dispatcher,
            settings=settings,
            clock=clock,
            log=log,
            wake=self._wake,
        )

    def _heed(self, stop_in: float | None) -> None:
        """Hear what the worker was told: to stop within so many seconds, or when all is done."""
        self._claim_loop.ends_when_empty = self._ends_when_empty
        if stop_in is not None:
            self._deadline = min(self._deadline, self._clock.monotonic() + stop_in)
            self._stopping.set()
            self._claim_loop.hurry.set()
        self._wake.set()
        self._nudge.set()

    async def _started(self, start_up: Coroutine[Any, Any, None]) -> bool:
        """Start up; False: that went on for too long after the worker was told to stop."""
        try:
            async with asyncio.timeout(None) as limit:
                guard = asyncio.create_task(self._cut_short(limit))
                try:
                    await start_up
                finally:
                    guard.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            self._log.warning("start-up cut short", worker=self._lease.worker)
            return False
        return True

    async def _cut_short(self, limit: asyncio.Timeout) -> None:
        await self._stopping.wait()
        while (left := self._deadline - self._clock.monotonic()) > ROUNDING:
            self._nudge.clear()
            await self._clock.wait(self._nudge, left)
        limit.reschedule(asyncio.get_running_loop().time())

    async def _open(self) -> None:
        complain = self._log.unavailable
        try:
            if await open_patiently(self._engine, self._clock, complain, self._stopping):
                await self._work()
        finally:
            await self._engine.close()

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                await self._run_in(group)
        except BaseExceptionGroup as errors:
            if len(errors.exceptions) == 1:
                raise errors.exceptions[0] from None
            raise
        finally:
            await self._leave()

    async def _run_in(self, group: asyncio.TaskGroup) -> None:
        """Let everything live in ``group`` as long as the claim loop does."""
        helpers = [
            *(group.create_task(self._vital(life)) for life in self._dispatcher.lives()),
            *(group.create_task(self._vital(thread.run())) for thread in self._side_threads()),
            group.create_task(self._stop_when_empty()),
        ]
        work = group.create_task(self._vital(self._claim_loop.run()))
        work.add_done_callback(lambda _: self._nudge.set())
        helpers.append(group.create_task(self._vital(self._wind_down(work))))
        try:
            await asyncio.wait([work])
            await self._unwind()
        except asyncio.CancelledError:
            if not self._is_torn:
                self._heed(0.0)
                self._claim_loop.ends_when_empty = False
                await asyncio.wait([work])
                await self._unwind()
            raise
        finally:
            self._dispatcher.close()
            for helper in helpers:
                helper.cancel()

    async def _vital(self, life: Coroutine[Any, Any, None]) -> None:
        """What must not fail: if it does, the whole run ends with its error.

        Slots survive cancellations that are meant for handlers; they must know of this one before
        the group cancels them.
        """
        try:
            await life
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._is_torn = True
            self._dispatcher.close()
            raise

    # --- beside the claim loop -----------------------------------------------------------------

    def _side_threads(self) -> list[SideThread]:
        """The beats with the watchdog, and the upkeep, each with a thread and a handle."""
        settings, clock, log, lease = self.settings, self._clock, self._log, self._lease
        watchdog = Watchdog(
            self._dispatcher, lambda: lease.worker, settings, clock, log, self._parent
        )
        upkeep, candidate = self._upkeep, lease.worker

        async def beat(engine: Engine) -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    beats = keep_beating(engine, lease, settings.beat_every, clock, log, self._obey)
                    group.create_task(beats)
                    group.create_task(watchdog.run(engine))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None

        threads = [SideThread("beats", lambda: self._with_handle(beat, "beat"), log)]
        if upkeep is not None:

            async def lead(engine: Engine) -> None:
                await upkeep(engine, candidate, lease.beat_at)

            threads.append(SideThread("leader", lambda: self._with_handle(lead, "leader"), log))
        return threads

    async def _with_handle(
        self, main: Callable[[Engine], Coroutine[Any, Any, None]], caller: str
    ) -> None:
        engine = self._connect()
        try:
            complain = partial(self._log.unavailable, caller=caller)
            await open_patiently(engine, self._clock, complain)
            self._log.available(caller)
            await main(engine)
        finally:
            await engine.close()

    def _lost(self, worker: str) -> None:
        self._exchanger.lose(worker)
        self._wake.set()

    def _regained(self) -> None:
        self.ready.set()
        self._dispatcher.pump()
        self._wake.set()

    # --- the end -------------------------------------------------------------------------------

    async def _stop_when_empty(self) -> None:
        await self._claim_loop.is_empty.wait()
        self._heed(self.settings.drain)

    async def _wind_down(self, work: asyncio.Task[None]) -> None:
        """Once told to stop, see that it ends in time."""
        await self._stopping.wait()
        dispatcher, grace, worker = self._dispatcher, self.settings.grace, self._lease.worker
        left = round(max(0.0, self._deadline - self._clock.monotonic()), 3)
        self._log.info("worker draining", worker=worker, seconds=left, running=dispatcher.running)
        dispatcher.drain()
        self._wake.set()
        if await self._ends(work, 0.0):
            return
        dispatcher.end_all()
        if await self._ends(work, grace / 2):
            return
        dispatcher.leave_all()
        if await self._ends(work, grace):
            return
        running, unsettled = dispatcher.running, dispatcher.inflight.outcomes
        worker = self._lease.worker
        self._log.warning("worker gave up", worker=worker, running=running, unsettled=unsettled)
        work.cancel()

    async def _ends(self, work: asyncio.Task[None], extra: float) -> bool:
        """Wait until all is settled, or until ``extra`` seconds after the deadline."""
        while not work.done():
            left = self._deadline + extra - self._clock.monotonic()
            if left <= ROUNDING or self._dispatcher.is_hopeless:
                return False
            self._nudge.clear()
            await self._clock.wait(self._nudge, left)
        return True

    async def _unwind(self) -> None:
        """Let handlers whose jobs are lost clean up, for a moment."""
        deadline = self._clock.monotonic() + self.settings.grace / 2
        while not self._dispatcher.is_unwound:
            left = deadline - self._clock.monotonic()
            if left <= ROUNDING:
                return
            self._wake.clear()
            await self._clock.wait(self._wake, left)

    async def _leave(self) -> None:
        worker = self._lease.worker
        if self._dispatcher.left_to_parent:
            return  # what is left is settled under this lease, when the process is dead
        try:
            await within(self._clock, self.settings.grace, self._engine.leave(worker))
        except (EngineError, TimeoutError) as error:
            self._log.unavailable("leave", error)
        self._log.info("worker left", worker=worker, **self.stats.counted())
