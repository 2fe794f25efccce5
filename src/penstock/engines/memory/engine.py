"""The memory engine: jobs that live as long as their process.

The readable reference of the contract, and the oracle of the model tests. Handles on one
``MemoryStore`` may belong to different loops and threads; each verb is one step under its lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from math import inf
from typing import Concatenate, ParamSpec, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.core.finding import Finding, Level
from penstock.core.job import Draft, Job, State, Verdict
from penstock.engines.engine import Engine
from penstock.engines.memory.reads import MemoryViews
from penstock.engines.memory.store import NAME, MemoryJobs
from penstock.engines.records import (
    Ask,
    Cell,
    Control,
    Count,
    Exchange,
    Filter,
    Glance,
    Hand,
    Mended,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Report,
    Schema,
    Sighting,
    Standing,
    Term,
    Traffic,
    Traits,
    WorkerInfo,
)
from penstock.engines.validation import check_given
from penstock.errors import EngineClosed

# --- memory glance ------------------------------------------------------------------------------
#
# How the memory engine does at one instant: what ``glance`` counts, and what it picks out.


_OVER = (State.SUCCEEDED, State.CANCELLED)


def glance(store: MemoryViews, now: float, window: float, limit: int) -> Glance:
    """See the contract."""
    running = [job for job in store.jobs.values() if job.state is State.RUNNING]
    failed = [job for job in store.jobs.values() if job.state is State.FAILED]
    running.sort(key=lambda job: (job.claimed_at or 0.0, job.seq))
    failed.sort(key=lambda job: (job.finished_at or 0.0, job.seq), reverse=True)
    return Glance(
        now=now,
        counts=tuple(count for count in store.counts() if count.state not in _OVER),
        traffic=tuple(_traffic(store, now - window)),
        settings=dict(store.settings),
        workers=tuple(by_age(store)),
        busy=Counter(job.worker for job in running if job.worker),
        running=tuple(running[: max(0, limit)]),
        failed=tuple(failed[: max(0, limit)]),
    )


def by_age(store: MemoryViews) -> list[WorkerInfo]:
    """Every worker, the one that joined first before the others."""
    return sorted(store.workers.values(), key=lambda info: (info.joined_at, info.id))


def _traffic(store: MemoryViews, since: float) -> list[Traffic]:
    jobs = store.jobs.values()
    newest = takewhile(lambda job: job.enqueued_at > since, reversed(jobs))
    entered = Counter(job.queue for job in newest)
    ended = Counter((job.queue, job.state) for job in jobs if _ended_after(job, since))
    return [
        Traffic(
            queue=queue,
            entered=entered[queue],
            succeeded=ended[queue, State.SUCCEEDED],
            failed=ended[queue, State.FAILED],
            cancelled=ended[queue, State.CANCELLED],
        )
        for queue in sorted(entered.keys() | {queue for queue, _ in ended})
    ]


def _ended_after(job: Job, since: float) -> bool:
    return job.finished_at is not None and job.finished_at > since


# --- memory -------------------------------------------------------------------------------------


Step = ParamSpec("Step")
Result = TypeVar("Result")


class MemoryStore:
    """What the handles share: the jobs, the leadership, the cells, and who sleeps."""

    def __init__(self) -> None:
        self.jobs = MemoryJobs()
        self.term: tuple[str, int, float, float] = ("", 0, 0.0, 0.0)
        """Holder, epoch, until when, and for how long it was given."""
        self.cells: dict[str, Cell] = {}
        self.lock = threading.Lock()
        self.version = 0
        self._sleepers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @contextmanager
    def step(self) -> Iterator[MemoryJobs]:
        """One atomic step; whoever sleeps is woken after it if it changed anything."""
        with self.lock:
            before = self.jobs.changes
            yield self.jobs
            if self.jobs.changes != before:
                self.version += 1
                self._wake()

    def sleep(self, event: asyncio.Event, seen: int) -> None:
        """Let ``event`` be set by the next change after version ``seen``."""
        with self.lock:
            if self.version != seen:
                event.set()
            else:
                self._sleepers[event] = asyncio.get_running_loop()

    def forget(self, event: asyncio.Event) -> None:
        """Stop waking ``event``."""
        with self.lock:
            self._sleepers.pop(event, None)

    def _wake(self) -> None:
        for event, loop in self._sleepers.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
        self._sleepers.clear()


class MemoryEngine(Engine):
    """One handle on a ``MemoryStore``."""

    traits = Traits(name=NAME, max_batch=1000)

    def __init__(self, store: MemoryStore, clock: Clock | None = None) -> None:
        self.store = store
        self.clock = clock or SystemClock()
        self._is_open = False
        self._naps: set[asyncio.Event] = set()

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        for event in self._naps:
            event.set()

    async def migrate(self) -> int:
        return 1

    async def schema(self) -> Schema:
        return Schema(found=1, newest=1)

    async def now(self) -> float:
        return self.clock.now()

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        text = "the jobs live in the memory of this process, and end with it"
        return [Finding(check="memory", level=Level.NOTE, text=text)]

    def _step(
        self,
        verb: Callable[Concatenate[MemoryJobs, Step], Result],
        *args: Step.args,
        **kwargs: Step.kwargs,
    ) -> Result:
        # What these two carry is checked there, after the lease and item by item.
        given = () if verb in (MemoryJobs.enqueue, MemoryJobs.exchange) else (args, kwargs)
        with self._opened(given).step() as jobs:
            return verb(jobs, *args, **kwargs)

    def _opened(self, given: object = None) -> MemoryStore:
        """The store, if the handle is open and ``given`` is something that any store could take."""
        if not self._is_open:
            raise EngineClosed(NAME)
        check_given(NAME, given)
        return self.store

    # --- in and work ---------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return self._step(MemoryJobs.enqueue, drafts, self.clock.now())

    async def join(self, worker: WorkerInfo) -> None:
        self._step(MemoryJobs.join, worker, self.clock.now())

    async def leave(self, worker: str) -> None:
        self._step(MemoryJobs.leave, worker)

    async def beat(self, worker: str) -> None:
        self._step(MemoryJobs.beat, worker)

    async def exchange(self, ask: Ask) -> Exchange:
        return self._step(MemoryJobs.exchange, ask, self.clock.now())

    async def held(self, worker: str) -> list[Job]:
        return self._step(MemoryJobs.held, worker)

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        return self._step(MemoryJobs.progress, worker, reports)

    async def look(self, ask: Ask) -> float | None:
        return self._step(MemoryJobs.look, ask, self.clock.now())

    # --- control -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        return self._step(MemoryJobs.cancel, ids, reason, self.clock.now())

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        return self._step(MemoryJobs.retry, ids, self.clock.now())

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return self._step(MemoryJobs.purge, which, limit, cursor, self.clock.now())

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        self._step(MemoryJobs.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return self._step(MemoryJobs.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return self._step(MemoryJobs.promote, limit, self.clock.now())

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        return self._step(MemoryJobs.rescue, dead, limit, self.clock.now())

    async def prune(self, keep: float, limit: int) -> Pruned:
        return self._step(MemoryJobs.prune, keep, limit, self.clock.now())

    async def mend(self, *, rehearse: bool = False) -> Mended:
        return self._step(MemoryJobs.mend, self.clock.now(), rehearse=rehearse)

    async def tidy(self) -> float:
        self._opened()
        return inf

    # --- lead ----------------------------------------------------------------------------------

    async def lead(self, candidate: str, ttl: float) -> Term | None:
        with self._opened(candidate).step() as jobs:
            holder, epoch, until, given = self.store.term
            now = self.clock.now()
            if holder not in ("", candidate) and until > now:
                # More is left than was ever given: the clock went back.
                self.store.term = (holder, epoch, min(until, now + given), given)
                return None
            if holder != candidate or until <= now:
                epoch += 1
                jobs.changes += 1
            self.store.term = (candidate, epoch, now + ttl, ttl)
            return Term(holder=candidate, epoch=epoch, left=ttl)

    async def resign(self, holder: str, epoch: int) -> None:
        with self._opened(holder).step() as jobs:
            if self.store.term[:2] == (holder, epoch):
                self.store.term = ("", epoch, 0.0, 0.0)
                jobs.changes += 1

    async def leader(self) -> Term | None:
        holder, epoch, until, given = self._opened().term
        left = min(until - self.clock.now(), given)
        return Term(holder=holder, epoch=epoch, left=left) if holder and left > 0 else None

    # --- small values --------------------------------------------------------------------------

    async def cell(self, name: str) -> Cell:
        return self._opened(name).cells.get(name, Cell(None, 0))

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        with self._opened(name).step() as jobs:
            known = self.store.cells.get(name, Cell(None, 0))
            if known.version != version:
                return None
            jobs.changes += 1
            self.store.cells[name] = Cell(value, version + 1)
            return self.store.cells[name]

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return self._step(lambda jobs, ids: [jobs.jobs.get(id) for id in ids], ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return self._step(MemoryJobs.find, which, cursor, limit)

    async def count(self, which: Filter) -> int:
        return self._step(lambda jobs: sum(1 for _ in jobs.matching(which)))

    async def counts(self) -> list[Count]:
        return self._step(MemoryJobs.counts)

    async def glance(self, window: float, limit: int) -> Glance:
        return self._step(glance, self.clock.now(), window, limit)

    async def workers(self) -> list[WorkerInfo]:
        return self._step(by_age)

    async def hands(self) -> list[Hand]:
        return self._step(MemoryJobs.hands)

    async def line(self, id: str) -> Standing:
        return self._step(MemoryJobs.standing, id, self.clock.now())

    async def version(self) -> int:
        return self._opened().version

    async def listen(self, seen: int, timeout: float) -> int:
        event = asyncio.Event()
        self._opened().sleep(event, seen)
        self._naps.add(event)
        try:
            await self.clock.wait(event, timeout)
        finally:
            self._naps.discard(event)
            self.store.forget(event)
        return self._opened().version
