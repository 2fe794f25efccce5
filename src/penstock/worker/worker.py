"""The worker, as its owner sees it: run it, stop it from anywhere, look at its counters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from math import inf
from typing import Any, Final

from penstock import logs
from penstock.clock import Clock, within
from penstock.core.spec import Spec
from penstock.engines.engine import Engine
from penstock.errors import EngineError
from penstock.leader.chores import all_chores
from penstock.leader.election import TTL, Election
from penstock.leader.leader import Leader
from penstock.worker.claim_loop import ClaimLoop
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.exchange import Exchanger
from penstock.worker.inflight import Inflight
from penstock.worker.lease import Heartbeat, Lease, open_patiently
from penstock.worker.log import Journal
from penstock.worker.middleware import lifespan
from penstock.worker.pool import StartGate
from penstock.worker.settings import WorkerSettings
from penstock.worker.side_thread import SideThread
from penstock.worker.status import NoParent, Parent, Stats, StoreTime
from penstock.worker.tools import Tools
from penstock.worker.watchdog import Watchdog

# --- shift --------------------------------------------------------------------------------------
#
# One run of a worker, from its first join to its last outcome.
#
# Three loops live side by side: the caller's loop runs the exchange loop and the async handlers;
# one
# thread beats for the lease; one thread stands for election and does the leader's chores. A handler
# that blocks the caller's loop stops neither of the two.
#
# Stopping, in the order of time
#
# | when                   | what                                                                |
# |------------------------|---------------------------------------------------------------------|
# | ``stop(drain)``        | no more claims; what has not started is given back; beats go on     |
# | after ``drain``        | coroutines are cancelled, threads hit, children killed; what ends   |
# |                        | of that is given back; a start-up that still goes on is cancelled   |
# | half of ``grace`` more | what does not end is bequeathed to the parent, who gives it back  |
# |                        | when this process is dead; or, without one, given back as it stands |
# | all of ``grace``       | the store is away: what could not be settled is for the leader      |
# | at the end             | the leadership is resigned, the lease given back                    |


ROUNDING: Final = 0.001
"""Seconds that a deadline may be early: clocks and sleeps are not exact."""


class Shift:
    """Everything that lives as long as one run. ``joined`` is called when it has its lease."""

    def __init__(
        self,
        connect: Callable[[], Engine],
        specs: Mapping[str, Spec],
        settings: WorkerSettings,
        clock: Clock,
        stats: Stats,
        parent: Parent,
        joined: Callable[[], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._settings = settings
        self._clock = clock
        self._joined = joined
        self._engine = connect()
        self._journal = Journal()
        self._wake = asyncio.Event()
        self._nudge = asyncio.Event()
        self._stopping = asyncio.Event()
        self._deadline = inf
        gate = StartGate(clock)
        self.lease = Lease(settings, gate, clock, self._lost, self._regained)
        self._tools = Tools(
            specs=specs,
            settings=settings,
            clock=clock,
            gate=gate,
            inflight=Inflight(clock.monotonic),
            time=StoreTime(clock),
            stats=stats,
            journal=self._journal,
            parent=parent,
            worker=lambda: self.lease.worker,
            wake=self._wake.set,
        )
        self._dispatcher = Dispatcher(self._tools)
        self._exchanger = Exchanger(self._engine, self.lease, self._dispatcher, self._tools)
        self._claim_loop = ClaimLoop(
            self._engine, self.lease, self._exchanger, self._dispatcher, self._tools, self._wake
        )
        self._is_torn = False

    def heed(self, stop_in: float | None, ends_when_empty: bool) -> None:
        """Hear what the worker was told: to stop within so many seconds, or when all is done."""
        self._claim_loop.ends_when_empty = ends_when_empty
        if stop_in is not None:
            self._deadline = min(self._deadline, self._clock.monotonic() + stop_in)
            self._stopping.set()
            self._claim_loop.hurry.set()
        self._wake.set()
        self._nudge.set()

    async def work(self) -> None:
        """Work until told to stop and everything is settled, or cannot be."""
        hooks = [spec.hooks for spec in self._tools.specs.values()]
        with logs.context():
            async with AsyncExitStack() as stack:
                if await self._started(stack.enter_async_context(lifespan(hooks))):
                    await self._opened()

    async def _started(self, start_up: Coroutine[Any, Any, None]) -> bool:
        """Start up; False: that went on for too long after we were told to stop."""
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
            self._journal.start_up_cut_short(self.lease.worker)
            return False
        return True

    async def _cut_short(self, limit: asyncio.Timeout) -> None:
        await self._stopping.wait()
        while (left := self._deadline - self._clock.monotonic()) > ROUNDING:
            self._nudge.clear()
            await self._clock.wait(self._nudge, left)
        limit.reschedule(self.loop.time())

    async def _opened(self) -> None:
        try:
            if await open_patiently(self._engine, self._clock, self._journal, self._stopping):
                await self._work()
        finally:
            await self._engine.close()

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                await self._staffed(group)
        except BaseExceptionGroup as errors:
            if len(errors.exceptions) == 1:
                raise errors.exceptions[0] from None
            raise
        finally:
            await self._leave()

    async def _staffed(self, group: asyncio.TaskGroup) -> None:
        """Let everything live in ``group`` as long as the exchange loop does."""
        helpers = [
            *(group.create_task(self._vital(life)) for life in self._dispatcher.lives()),
            *(
                group.create_task(self._vital(side_thread.run()))
                for side_thread in self._side_threads()
            ),
            group.create_task(self._stop_when_empty()),
        ]
        work = group.create_task(self._vital(self._claim_loop.take()))
        work.add_done_callback(lambda _: self._nudge.set())
        helpers.append(group.create_task(self._vital(self._wind_down(work))))
        try:
            await asyncio.wait([work])
            await self._unwind()
        except asyncio.CancelledError:
            if not self._is_torn:
                self.heed(0.0, False)
                await asyncio.wait([work])
                await self._unwind()
            raise
        finally:
            self._dispatcher.close()
            for helper in helpers:
                helper.cancel()

    def _side_threads(self) -> list[SideThread]:
        every = self._settings.beat_every
        watchdog = Watchdog(self._dispatcher, self._tools)
        beats = Heartbeat(
            self._connect, self.lease, every, self._clock, self._journal, watchdog.run
        )
        side_thread = [SideThread("beats", beats.run, self._journal)]
        if self._settings.leads:
            chores = all_chores(self._settings.lease, self._settings.keep_finished, self._clock)
            election = Election(
                self.lease.worker, self._clock, min(TTL, self._settings.lease * 2 / 3)
            )
            leader = Leader(self._connect, election, chores, self._clock)
            side_thread.append(SideThread("leader", leader.run, self._journal))
        return side_thread

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

    # --- the lease -----------------------------------------------------------------------------

    def _lost(self, worker: str) -> None:
        self._exchanger.lose(worker)
        self._wake.set()

    def _regained(self) -> None:
        self._joined()
        self._dispatcher.pump()
        self._wake.set()

    # --- the end -------------------------------------------------------------------------------

    async def _stop_when_empty(self) -> None:
        await self._claim_loop.is_empty.wait()
        self.heed(self._settings.drain, True)

    async def _wind_down(self, work: asyncio.Task[None]) -> None:
        """Once told to stop, see that it ends in time."""
        await self._stopping.wait()
        inflight, grace = self._tools.inflight, self._settings.grace
        left = max(0.0, self._deadline - self._clock.monotonic())
        self._journal.draining(self.lease.worker, left, self._dispatcher.running)
        self._dispatcher.drain()
        self._wake.set()
        if await self._ends(work, 0.0):
            return
        self._dispatcher.end_all()
        if await self._ends(work, grace / 2):
            return
        self._dispatcher.leave_all()
        if await self._ends(work, grace):
            return
        self._journal.gave_up(self.lease.worker, self._dispatcher.running, inflight.outcomes)
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
        deadline = self._clock.monotonic() + self._settings.grace / 2
        while not self._dispatcher.is_unwound:
            left = deadline - self._clock.monotonic()
            if left <= ROUNDING:
                return
            self._wake.clear()
            await self._clock.wait(self._wake, left)

    async def _leave(self) -> None:
        worker = self.lease.worker
        if self._dispatcher.left_to_parent:
            return  # what is left is settled under this lease, when the process is dead
        try:
            await within(self._clock, self._settings.grace, self._engine.leave(worker))
        except (EngineError, TimeoutError) as error:
            self._journal.unavailable("leave", error)
        self._journal.left(worker, self._tools.stats)


# --- worker -------------------------------------------------------------------------------------


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
    ) -> None:
        self.settings = settings or WorkerSettings()
        self.ready = asyncio.Event()
        """Set once the store has given it its lease."""
        self.stats = Stats()
        self._connect = connect
        self._specs = specs
        self._clock = clock
        self._overseer = parent or NoParent()
        self._lock = threading.Lock()
        self._shift: Shift | None = None
        self._stop_in: float | None = None
        self._ends_when_empty = False

    @property
    def id(self) -> str:
        """Its present id: new with each run and after each lost lease; empty before the first."""
        return self._shift.lease.worker if self._shift is not None else ""

    async def run(self, *, until_empty: bool = False) -> None:
        """Run jobs until ``stop``, and return when everything is settled.

        With ``until_empty``, also when no job of its queues is ready, runs or is due any more. Jobs
        that are scheduled for later do not count, retries included; nor do those that wait for an
        unknown task, a dependency, a breaker or in a paused queue.

        Being cancelled is a ``stop(0)``: what runs is given back before this raises.
        On failure: what ``open`` raises, except that a store which is away is waited for.
        """
        shift = Shift(
            self._connect,
            self._specs,
            self.settings,
            self._clock,
            self.stats,
            self._overseer,
            self.ready.set,
        )
        with self._lock:
            self._shift = shift
            self._ends_when_empty = self._ends_when_empty or until_empty
        shift.heed(self._stop_in, self._ends_when_empty)
        await shift.work()

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

    def _tell(self, seconds: float | None) -> None:
        shift = self._shift
        if shift is not None:
            try:
                shift.loop.call_soon_threadsafe(shift.heed, seconds, self._ends_when_empty)
            except RuntimeError:
                pass  # its loop is closed: it has stopped
