"""The memory engine: jobs that live as long as their process.

The readable reference of the contract, and the oracle of the model tests. Handles on one
``MemoryStore`` may belong to different loops and threads; each verb is one step under its lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.core.finding import Finding, Level
from penstock.core.job import Draft, Job
from penstock.engines.engine import Engine
from penstock.engines.memory import reads
from penstock.engines.memory.store import NAME, MemoryStore
from penstock.engines.records import (
    Ask,
    Cell,
    CellPage,
    Count,
    Exchange,
    Filter,
    News,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Repaired,
    Rewrite,
    Rewritten,
    Running,
    Schema,
    Sighting,
    Traits,
    WorkerInfo,
)
from penstock.engines.validation import check_given
from penstock.errors import EngineClosed

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class MemoryEngine(Engine):
    """One handle on a ``MemoryStore``."""

    traits = Traits(name=NAME, max_batch=1000)

    def __init__(self, store: MemoryStore, clock: Clock | None = None) -> None:
        self.store = store
        self.clock = clock or SystemClock()
        self._is_open = False
        self._waiting: set[asyncio.Event] = set()

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        for event in self._waiting:
            event.set()

    async def migrate(self, *, check: bool = False) -> Schema:
        return Schema(found=1, newest=1)

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        """What the doctor says of this store."""
        text = "the jobs live in the memory of this process, and end with it"
        return [Finding(check="memory", level=Level.NOTE, text=text)]

    def _step(
        self,
        verb: Callable[Concatenate[MemoryStore, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        # What these two carry is checked there, after the lease and item by item.
        given = () if verb in (MemoryStore.enqueue, MemoryStore.exchange) else (args, kwargs)
        with self._opened(given).step() as store:
            return verb(store, *args, **kwargs)

    def _opened(self, given: object = None) -> MemoryStore:
        """The store, if the handle is open and ``given`` is something that any store could take."""
        if not self._is_open:
            raise EngineClosed(NAME)
        check_given(NAME, given)
        return self.store

    # --- in and work ---------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return self._step(MemoryStore.enqueue, drafts, self.clock.now())

    async def join(self, worker: WorkerInfo) -> None:
        self._step(MemoryStore.join, worker, self.clock.now())

    async def leave(self, worker: str) -> None:
        self._step(MemoryStore.leave, worker)

    async def beat(self, worker: str) -> bytes | None:
        return self._step(MemoryStore.beat, worker, self.clock.now())

    async def exchange(self, ask: Ask) -> Exchange:
        return self._step(MemoryStore.exchange, ask, self.clock.now())

    async def held(self, worker: str) -> list[Job]:
        return self._step(reads.held, worker)

    # --- control -------------------------------------------------------------------------------

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        return self._step(MemoryStore.rewrite, rewrites, self.clock.now())

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return self._step(MemoryStore.purge, which, limit, cursor, self.clock.now())

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        self._step(MemoryStore.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return self._step(reads.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return self._step(MemoryStore.promote, limit, self.clock.now())

    async def end_leases(self, dead: Sequence[Sighting]) -> list[str]:
        return self._step(MemoryStore.end_leases, dead)

    async def prune(self, limit: int) -> Pruned:
        return self._step(MemoryStore.prune, limit, self.clock.now())

    async def repair(
        self, limit: int, cursor: str | None = None, *, rehearse: bool = False
    ) -> Repaired:
        return self._step(MemoryStore.repair, limit, cursor, self.clock.now(), rehearse=rehearse)

    # --- small values --------------------------------------------------------------------------

    async def cell(self, name: str) -> Cell:
        return self._step(reads.cell, name, self.clock.now())

    async def set_cell(
        self, name: str, value: bytes | None, version: int, ttl: float | None = None
    ) -> Cell | None:
        return self._step(MemoryStore.set_cell, name, value, version, ttl, self.clock.now())

    async def cells(self, prefix: str, cursor: str | None, limit: int) -> CellPage:
        return self._step(reads.cells, prefix, cursor, limit, self.clock.now())

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return self._step(reads.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return self._step(reads.find, which, cursor, limit)

    async def counts(self, which: Filter) -> list[Count]:
        return self._step(reads.counts, which)

    async def running(self) -> list[Running]:
        return self._step(reads.running)

    async def workers(self) -> list[WorkerInfo]:
        return self._step(reads.workers)

    async def version(self, kind: News) -> int:
        return self._opened().versions[kind]

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        event = asyncio.Event()
        self._opened().listen(event, kind, seen)
        self._waiting.add(event)
        try:
            await self.clock.wait(event, timeout)
        finally:
            self._waiting.discard(event)
            self.store.forget(event)
        return self._opened().versions[kind]
