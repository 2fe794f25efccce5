"""What a sandbox is made of: a store, the handles on it, and a worker that is told each step."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
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
from penstock.testing.faults import Faults
from penstock.testing.faulty import Faulty
from penstock.testing.intercept import Front, Watch
from penstock.testing.interleaving import Turnstile
from penstock.testing.runs import Run
from penstock.testing.stepper import Death, Place, Stay, Stepper, stop
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.middleware import lifespan

RECENT: Final = 3

_INSIDE: Final[ContextVar[Bench]] = ContextVar("penstock_bench")
"""The bench whose hooks or async handlers run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
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


class Bench:
    """The inside of one sandbox."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        bus: Bus,
        clock: FakeClock,
        watch: Watch,
        lease: float,
        max_attempts: int,
    ) -> None:
        self.clock = clock
        self.store = MemoryStore()
        self.watch = watch
        self.faults = Faults()
        self.script = Faulty(MemoryEngine(self.store, clock))
        """Where a test says what becomes of the app's calls to the store."""
        self.turnstile: Turnstile | None = None
        self._specs = specs
        self._bus = bus
        self._lease = lease
        self._max_attempts = max_attempts
        self._deaths: list[Death] = []
        self._running: dict[str, Attempt] = {}
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self.idle: Future[None] = Future()
        """Done when jobs have run; a new one each time they do. Who is busy is so a moment before
        it is renewed: the first one is done, too, so that nobody waits for it for ever."""
        self.idle.set_result(None)
        self._engine = Observed(MemoryEngine(self.store, clock), bus, tries=1)
        self._stepper = self._new_stepper()

    def connect(self) -> Engine:
        """A new handle for the app."""
        front = Front(MemoryEngine(self.store, self.clock), self.watch, self.script)
        return Observed(front, self._bus, tries=1)

    async def open(self) -> None:
        """Open the worker's own handle. Nothing that it does ever waits: time limits are over."""
        await self._engine.open()
        await self._engine.close()
        await self._engine.inner.open()

    def jobs(self) -> list[Job]:
        """All jobs, in the order they were enqueued."""
        with self.store.lock:
            entered = self.store.entered
            return sorted(self.store.jobs.values(), key=lambda job: entered[job.id])

    def ask_to_end(self, id: str) -> None:
        """Somebody cancels a running job."""
        attempt = self._running.get(id)
        if attempt is not None:
            stop(attempt, Ending.CANCEL, hits=False)

    @property
    def is_busy(self) -> bool:
        """Jobs run just now."""
        return self._busy.locked()

    @property
    def is_inside(self) -> bool:
        """Whoever asks is run by this bench, which does not end before they do."""
        if self.turnstile is not None or _INSIDE.get(None) is self:
            return True
        context = CURRENT.get(None)
        attempt = None if context is None else self._running.get(context.id)
        return attempt is not None and attempt.context is context

    # --- one worker, one attempt after the other -----------------------------------------------

    async def work(self, place: Place, order: Order, runs: list[Run]) -> None:
        """Be a worker for a while; each attempt is added to ``runs`` as it ends.

        On failure: ``Runaway``, or what a start-up hook raises.
        """
        with self._alone(order.call):
            await self._stepper.join()
            life = _Life(self, place, self._specs)
            try:
                await self._work(place, order, runs, life)
            finally:
                await life.end()

    async def _work(self, place: Place, order: Order, runs: list[Run], life: _Life) -> None:
        while True:
            await self._stepper.rescue()
            while order.limit is None or len(runs) < order.limit:
                attempt = await self._stepper.claim(self._queues(order.queue))
                if attempt is None:
                    break
                await self._check(self._stepper, attempt, runs)
                runs.append(run := await self._run(self._stepper, place, attempt, life))
                if order.after is not None and order.after(run):
                    return
            next_at = self._next_at()
            if order.until is None or next_at is None or next_at > order.until:
                break
            self.clock.advance_to(next_at)
        if order.until is not None:
            self.clock.advance_to(order.until)

    async def _run(self, stepper: Stepper, place: Place, attempt: Attempt, life: _Life) -> Run:
        try:
            await life.begin()
        except BaseException:
            await stepper.give_back(attempt)
            raise
        self._running[attempt.job.id] = attempt
        try:
            return await stepper.run(attempt, place)
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
        now, instants = self.clock.now(), [death.rescued_at for death in self._deaths]
        with self.store.lock:
            jobs = list(self.store.jobs.values())
        for job in jobs:
            if job.state is State.SCHEDULED:
                instants += (job.run_at or 0.0, job.expires_at or 0.0)
            elif job.state is State.READY:
                instants += (job.hold_until or 0.0, job.expires_at or 0.0)
        return min((instant for instant in instants if instant > now), default=None)

    # --- several workers, step by step ---------------------------------------------------------

    async def interleave(
        self,
        place: Place,
        works: list[Coroutine[Any, Any, object]],
        workers: int,
        seed: int,
        runs: list[Run],
    ) -> None:
        """Let coroutines and workers take turns, in the order that ``seed`` decides."""
        with self._alone("interleave"):
            await self._stepper.rescue()
            self.turnstile = turnstile = Turnstile(seed)
            self.watch.has_company = True
            life = _Life(self, place, self._specs)
            steppers = [self._new_stepper() for _ in range(workers)]
            try:
                await life.begin()
                mine = [self._take_turns(each, place, runs, life) for each in steppers]
                await turnstile.lead([*works, *mine])
            finally:
                self.turnstile = None
                self.watch.has_company = False
                for stepper in steppers:
                    await stepper.leave()
                await life.end()

    async def _take_turns(
        self, stepper: Stepper, place: Place, runs: list[Run], life: _Life
    ) -> None:
        turnstile = self.turnstile
        assert turnstile is not None
        await stepper.join()
        while True:
            attempt = await stepper.claim(self._queues())
            if attempt is None:
                if not await turnstile.idle():
                    return
                continue
            await asyncio.sleep(0)  # others may have a turn between a claim and its attempt
            await self._check(stepper, attempt, runs)
            runs.append(await self._run(stepper, place, attempt, life))
            await asyncio.sleep(0)

    # --- what both need ------------------------------------------------------------------------

    def _queues(self, queue: str | None = None) -> tuple[str, ...]:
        return tuple(self.watch.queues) if queue is None else (queue,)

    def _new_stepper(self) -> Stepper:
        return Stepper(
            self._engine, self._specs, self.clock, self._lease, self.faults, self._deaths
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


class _Life:
    """The app's start-up and shutdown around the attempts, if there are any."""

    def __init__(self, bench: Bench, place: Place, specs: Mapping[str, Spec]) -> None:
        self._bench = bench
        self._place = place
        self._specs = specs
        self._stay: Stay | None = None

    async def begin(self) -> None:
        """Start up, once."""
        if self._stay is None:
            stay = Stay(lifespan([spec.hooks for spec in self._specs.values()]))
            stay.variables.run(_INSIDE.set, self._bench)
            await self._place.enter(stay)
            self._stay = stay

    async def end(self) -> None:
        """Shut down, if it was started."""
        stay, self._stay = self._stay, None
        if stay is not None:
            await self._place.leave(stay)
