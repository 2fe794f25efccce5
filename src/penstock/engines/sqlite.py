"""The SQLite engine: the embedded default, many processes on one file.

What a handle has open is in ``sqlite_handle``; here is what it does, verb by verb. Writers take the
locks of ``file_gate`` first, so that they wait in turn; readers wait for nobody.
``synchronous=NORMAL`` in WAL mode survives ``kill -9`` of any process; ``full`` survives a power
cut as well.

| if the process dies                    | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| before COMMIT returned                 | SQLite rolls back; the caller has no answer and may     |
|                                        | repeat the call                                         |
| after COMMIT, before the answer        | it happened; a repeated call says so (see the contract) |
| while it migrates                      | the whole step is rolled back; the next one migrates    |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from math import inf

from penstock.core.job import Draft, Job, Verdict
from penstock.engines.engine import Answer
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
    Sighting,
    Standing,
    Term,
    WorkerInfo,
)
from penstock.engines.sqlite_glance import glance
from penstock.engines.sqlite_handle import SqliteHandle
from penstock.engines.sqlite_jobs import SqliteJobs
from penstock.engines.sqlite_thread import named_errors
from penstock.engines.sqlite_views import SqliteViews
from penstock.engines.sqlite_watch import DataVersionWatch
from penstock.engines.storable import check_drafts, check_outcomes, check_reports
from penstock.errors import EngineBusy, EngineClosed


class SqliteEngine(SqliteHandle):
    """One handle on one SQLite file."""

    # --- in and work ---------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        drafts = tuple(drafts)
        check_drafts(self.traits.name, drafts)
        return await self._write(SqliteJobs.enqueue, drafts)

    def enqueue_now(self, drafts: Sequence[Draft], timeout: float | None) -> list[Receipt] | None:
        drafts = tuple(drafts)
        check_drafts(self.traits.name, drafts)
        counter = self._counter
        if counter is None:
            raise EngineClosed(self.traits.name)
        with contextlib.suppress(EngineBusy), named_errors(self.traits.name, self.path):
            receipts = counter.serve(drafts)
            if receipts is not None:
                return receipts
        if len(drafts) > 1:
            return None
        return [counter.stand(drafts[0], timeout, self._store)]

    def enqueue_soon(self, draft: Draft, answer: Answer) -> Callable[[], None] | None:
        check_drafts(self.traits.name, (draft,))
        if self._counter is None:
            raise EngineClosed(self.traits.name)
        return self._counter.hand_in(draft, answer, self._store)

    async def join(self, worker: WorkerInfo) -> None:
        await self._write(SqliteJobs.join, worker)

    async def leave(self, worker: str) -> None:
        await self._write(SqliteJobs.leave, worker)

    async def beat(self, worker: str) -> None:
        await self._write(SqliteJobs.beat, worker)

    async def exchange(self, ask: Ask) -> Exchange:
        check_outcomes(self.traits.name, ask.outcomes)
        return await self._write(SqliteJobs.exchange, ask, self._entries)

    async def held(self, worker: str) -> list[Job]:
        return await self._read(SqliteViews.held, worker)

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        check_reports(self.traits.name, reports)
        return await self._write(SqliteJobs.progress, worker, reports)

    async def look(self, ask: Ask) -> float | None:
        return await self._read(SqliteViews.look, ask)

    # --- control -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        return await self._write(SqliteJobs.cancel, ids, reason)

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        return await self._write(SqliteJobs.retry, ids)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._write(SqliteJobs.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._write(SqliteJobs.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._read(SqliteViews.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return await self._write(SqliteJobs.promote, limit)

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        return await self._write(SqliteJobs.rescue, dead, limit)

    async def prune(self, keep: float, limit: int) -> Pruned:
        return await self._write(SqliteJobs.prune, keep, limit)

    async def mend(self, *, rehearse: bool = False) -> Mended:
        return await self._write(SqliteJobs.mend, rehearse=rehearse)

    async def tidy(self) -> float:
        self._watching()
        return inf  # whoever writes does what is left to do

    # --- lead and small values -----------------------------------------------------------------

    async def lead(self, candidate: str, ttl: float) -> Term | None:
        return await self._write(SqliteJobs.lead, candidate, ttl)

    async def resign(self, holder: str, epoch: int) -> None:
        await self._write(SqliteJobs.resign, holder, epoch)

    async def leader(self) -> Term | None:
        return await self._read(SqliteViews.leader)

    async def cell(self, name: str) -> Cell:
        return await self._read(SqliteViews.cell, name)

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        return await self._write(SqliteJobs.set_cell, name, value, version)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._read(SqliteViews.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._read(SqliteViews.find, which, cursor, limit)

    async def count(self, which: Filter) -> int:
        return await self._read(SqliteViews.count, which)

    async def counts(self) -> list[Count]:
        return await self._read(SqliteViews.counts)

    async def loads(self, queues: Sequence[str]) -> Mapping[str, int]:
        return await self._read(SqliteViews.loads, queues)

    async def glance(self, window: float, limit: int) -> Glance:
        return await self._read(glance, window, limit)

    async def workers(self) -> list[WorkerInfo]:
        return await self._read(SqliteViews.workers)

    async def hands(self) -> list[Hand]:
        return await self._read(SqliteViews.hands)

    async def line(self, id: str) -> Standing:
        return await self._read(SqliteViews.standing, id)

    async def version(self) -> int:
        return self._watching().version()

    async def listen(self, seen: int, timeout: float) -> int:
        return await self._watching().listen(seen, timeout)

    def _watching(self) -> DataVersionWatch:
        if self._watch is None or self._thread is None or not self._thread.is_alive:
            raise EngineClosed(self.traits.name)
        return self._watch
