"""The claim loop: what a worker asks the store, and when.

One exchange that claims is in flight at a time. It goes out as soon as the one before is answered
and there is something to send or room to fill; there is no timer. Otherwise the worker sleeps until
the store may have something (see ``waiting``) or until it has something itself (``wake``): an
outcome, a free slot, a stop. While the store is away it is tried again for ever, at growing
intervals.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from math import inf
from random import random
from typing import Final

from penstock.clock import Clock
from penstock.core.job import Hold, State
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Filter
from penstock.engines.retrying import Backoff
from penstock.engines.waiting import WorkWaiter
from penstock.errors import EngineClosed, EngineError, LeaseLost
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.exchange import Exchanger
from penstock.worker.lease import Lease
from penstock.worker.log import WorkerLog
from penstock.worker.prefetch import Demand, SkipPace
from penstock.worker.settings import WorkerSettings

PACE: Final = 0.001
"""Seconds between two exchanges while all slots have enough to do: for ten outcomes an exchange
costs hardly more than for one.
"""

MOST: Final = 0.02
"""Seconds to wait before the next claim at most, however much there still is to do."""

RECHECK: Final = 0.004
"""Seconds after which it is estimated again how much there is to do, meanwhile."""

FLUSH_EVERY: Final = 0.5
"""Seconds between two looks at what handlers have reported."""

FORGET_UNKNOWN: Final = 60.0
"""Seconds after which jobs of unknown tasks are looked at again."""

LONGEST_NAP: Final = 0.05
"""Seconds to wait after calls of the store that led to nothing."""

SOONEST: Final = 0.005
"""Seconds after which a worker that ends when all is done looks first what others still run."""

LOCKED: Final = 0.02
"""Seconds to leave a locked row alone."""

SOON: Final = frozenset({None, Hold.LIMIT, Hold.RATE})
"""Holds that end by themselves while work goes on."""


class ClaimLoop:
    """Exchanges with the store for one worker."""

    def __init__(
        self,
        engine: Engine,
        lease: Lease,
        exchanger: Exchanger,
        dispatcher: Dispatcher,
        *,
        settings: WorkerSettings,
        clock: Clock,
        log: WorkerLog,
        wake: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._waiter = WorkWaiter(engine)
        self._lease = lease
        self._exchanger = exchanger
        self._dispatcher = dispatcher
        self._inflight = dispatcher.inflight
        self._clock = clock
        self._log = log
        self._poll = settings.poll
        self._patience = settings.patience
        self._promote = settings.upkeep_batch
        self._wake = wake
        self._queues = deque(settings.queues)
        self._backoff = Backoff()
        self._has_more = True
        """The last claim was answered in full: there may be more."""
        self._least_urgent: int | None = None
        """The least urgent priority that the last turn asked for."""
        self._is_called = False
        """The store may have something for this worker."""
        self._others = 0
        """How often in a row only other workers had something to do."""
        self._hollow = 0
        """Calls in a row that led to nothing."""
        self._skips = SkipPace(clock, settings.poll)
        self._asked_at = -inf
        self._flushed_at = -inf
        self._tidied_at = -inf
        self._forgot_at = -inf
        self.hurry = asyncio.Event()
        """Set it to try again now instead of after the back-off."""
        self.ends_when_empty = False
        self.is_empty = asyncio.Event()
        """Set when ``ends_when_empty`` and nothing is left to do."""

    async def run(self) -> None:
        """Keep the slots full until the dispatcher drains and all is settled, also what a lost
        reply may hide.
        """
        while not (
            self._dispatcher.is_draining and self._inflight.is_empty and self._exchanger.is_certain
        ):
            try:
                await self._exchanger.clear_up()
                await self._turn()
            except LeaseLost as error:
                self._exchanger.lose(error.worker)
                if self._dispatcher.is_draining:
                    return
            except EngineClosed:
                raise
            except EngineError as error:
                self._log.unavailable("exchange", error)
                if await self._clock.wait(self.hurry, self._backoff.next()):
                    self.hurry.clear()
            else:
                self._backoff.reset()

    async def _turn(self) -> None:
        """Exchange if there is a use for it; else sleep until there may be."""
        await self._gather()
        self._wake.clear()
        self._maintain()
        is_uneven = not self._has_more and self._dispatcher.planner.is_half_full
        demand = self._dispatcher.demand(may_skip=self._skips.may_skip(is_uneven=is_uneven))
        ask = self._ask(demand)
        if self._has_use(ask, demand):
            await self._exchange(ask, demand)
            if not self._inflight.outcomes:
                # Slots that were woken run before this goes on: quick jobs are done by then.
                await asyncio.sleep(0)
        elif self._may_be_last and await nothing_left(self._engine, ask.queues):
            self.is_empty.set()
            await self._wake.wait()
        else:
            await self._sleep()

    @property
    def _may_be_last(self) -> bool:
        return self.ends_when_empty and self._inflight.is_empty

    def _has_use(self, ask: Ask, demand: Demand) -> bool:
        if demand.least_urgent != self._least_urgent:
            self._least_urgent = demand.least_urgent
            self._has_more = True
        may_claim = (self._has_more and ask.want) or demand.skipped_kinds
        has_news = ask.outcomes or ask.reports or self._inflight.is_announcing
        return bool(has_news or may_claim or not self._waiter.has_looked_for(ask))

    async def _gather(self) -> None:
        """Right after an exchange, while no slot can run dry, let more outcomes come together."""
        if not self._dispatcher.has_stock or self._dispatcher.is_draining:
            return
        now = self._clock.monotonic()
        left = self._asked_at + PACE - now
        until = now + MOST
        while now < until and not self._dispatcher.is_draining:
            lasts = self._dispatcher.lasts
            if left <= 0 and lasts <= 0:
                return
            # To look again is dear: half of what is left to wait.
            pause = left if left > 0 else min(max(PACE, lasts / 2), RECHECK)
            if await self._clock.wait(self.hurry, pause):
                return
            now, left = self._clock.monotonic(), 0.0

    def _ask(self, demand: Demand) -> Ask:
        most = self._engine.traits.max_batch
        return Ask(
            worker=self._lease.worker,
            queues=tuple(self._queues),
            want=min(demand.want, most),
            slots=min(demand.slots, most),
            outcomes=self._inflight.outgoing(most),
            begun=self._inflight.begun(),
            reports=self._inflight.reports(most),
            avoid=self._dispatcher.planner.avoid(demand),
            told=self._inflight.told,
            least_urgent=demand.least_urgent,
            promote=self._promote,
        )

    async def _exchange(self, ask: Ask, demand: Demand) -> None:
        was_called, self._is_called = self._is_called, False
        # While every claim is answered in full, this worker will not sleep.
        runs_dry = not (self._has_more and ask.want) and not demand.skipped_kinds
        seen = await self._waiter.before(ask, runs_dry=runs_dry)
        self._asked_at = self._clock.monotonic()
        self._queues.rotate(-1)
        reply = await self._exchanger.send(ask)
        if reply is None:
            self._has_more = True
            return
        if demand.skipped_kinds:
            self._skips.skipped(self._asked_at, found=bool(reply.jobs))
            return
        if ask.want:
            self._has_more = ask.want <= len(reply.jobs)
        if reply.jobs:
            self._others = 0
        self._waiter.after(ask, seen, reply)
        got_something = bool(reply.jobs or reply.cancels or ask.outcomes)
        self._hollow = self._hollow + 1 if was_called and not got_something else 0
        if ask.outcomes and not reply.jobs and self._inflight.is_waiting_for(ask.outcomes):
            await self._clock.wait(self._wake, LOCKED)

    # --- between exchanges ---------------------------------------------------------------------

    async def _sleep(self) -> None:
        """Sleep until the store or the worker itself has something, or the poll is due."""
        if self._hollow > 1:
            # Calls for nothing, one after the other: a look that errs must not be a hot loop.
            nap = min(LONGEST_NAP, 0.005 * self._hollow)
            if await self._clock.wait(self._wake, nap):
                return
        timeout = self._poll * (0.98 + 0.02 * random())
        if self._may_be_last:
            # The store does not tell when other workers have run what is left: look soon, then
            # less often.
            self._others += 1
            timeout = min(timeout, SOONEST * 2.0 ** min(self._others, 10))
        if self._dispatcher.planner.is_half_full:
            timeout = min(timeout, self._skips.due_in())
        await self._listen(timeout)

    async def _listen(self, timeout: float) -> None:
        """Sleep until the store may have something, or this worker has."""
        error: EngineError | None = None

        async def listen() -> None:
            nonlocal error
            try:
                self._is_called = await self._waiter.sleep(timeout)
            except EngineError as trouble:
                error = trouble
            finally:
                self._wake.set()

        if self._wake.is_set():
            return
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listen())
            await self._wake.wait()
            listening.cancel()
        if error is not None:
            raise error

    def _maintain(self) -> None:
        now = self._clock.monotonic()
        if now - self._tidied_at >= self._patience / 4:
            self._tidied_at = now
            self._dispatcher.tidy()
        if now - self._forgot_at >= FORGET_UNKNOWN:
            self._forgot_at = now
            self._dispatcher.planner.unknown.clear()
        if now - self._flushed_at >= FLUSH_EVERY:
            self._flushed_at = now
            self._inflight.collect_reports()


async def nothing_left(engine: Engine, queues: Collection[str]) -> bool:
    """No job of these queues runs anywhere, is ready or will be so by itself.

    What is scheduled for later does not count, nor what is held for an unknown task, a
    dependency or a breaker, nor what waits in a paused queue. What costs least is asked first:
    others may be at work for long.
    """
    if any(each.queue in queues for each in await engine.running()):
        return False
    paused = {queue for queue, each in (await engine.queues()).items() if each.paused}
    ready = await engine.counts(Filter(queues=tuple(queues), states=(State.READY,)))
    return not any(each.hold in SOON and each.queue not in paused for each in ready)
