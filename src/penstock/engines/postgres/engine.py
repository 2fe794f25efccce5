"""The PostgreSQL engine: the truth for teams, every process on one database.

What a handle has open is in ``handle``, what it does for a worker in ``exchanging``; here is the
rest, verb by verb. Time is the server's. The usual way in is one function call, so one round trip
and one commit (see ``sql/postgres/0002_enqueue.sql``).

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| the process dies before a commit       | the server rolls back; nothing happened                 |
| it dies after a commit, before the     | it happened; a repeated call says so (see the contract) |
| answer                                 |                                                         |
| the server is killed                   | what was committed is there when it is back             |
| two handles are in each other's way    | one of them is repeated, or told to come later          |
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from penstock.core.job import Draft, Job, ids_of
from penstock.engines.postgres import history
from penstock.engines.postgres.claim import PostgresExchanging
from penstock.engines.postgres.control import PostgresJobs
from penstock.engines.postgres.enqueue import to_json, to_plain, to_receipts
from penstock.engines.postgres.errors import KNOWN_ID, LOCKED, SAME_ID, named_errors, says
from penstock.engines.postgres.reads import PostgresViews, glance
from penstock.engines.postgres.wakeup import ANY, DONE, NEWS, WORK
from penstock.engines.records import (
    Cell,
    Control,
    Count,
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
    Sighting,
    Standing,
    Term,
    WorkerInfo,
)
from penstock.engines.validation import check_drafts
from penstock.errors import EngineUnavailable

PUT_PLAIN = "SELECT penstock.put_plain(%s, %s, %s, %s, %s, %s, %s)"
PUT = "SELECT * FROM penstock.put(%s)"


class PostgresEngine(PostgresExchanging):
    """One handle on one PostgreSQL store."""

    # --- in ------------------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        if not drafts:
            return []
        try:
            with named_errors(self.traits.name):
                return await self._put(drafts)
        except BaseException:
            self._doubt.add(drafts)
            raise

    async def _put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        plain = to_plain(self.traits.name, drafts)
        if plain is not None:
            row = plain.row(self._doubt.since)
            try:
                await self._call(PUT_PLAIN, row, wakes=WORK, fills=plain.queue)
                return [Receipt(id, True) for id in ids_of(drafts)]
            except EngineUnavailable as error:
                if not any(says(error, state) for state in (KNOWN_ID, SAME_ID, LOCKED)):
                    raise
        check_drafts(self.traits.name, drafts)
        return to_receipts(await self._call(PUT, (to_json(drafts),), wakes=WORK))

    # --- control -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        return await self._write(ANY, PostgresJobs.cancel, ids, reason)

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        return await self._write(WORK, PostgresJobs.retry, ids)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._write(ANY, PostgresJobs.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._write(WORK, PostgresJobs.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._read(PostgresViews.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return await self._write(ANY, PostgresJobs.promote, limit)

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        return await self._write(ANY, PostgresJobs.rescue, dead, limit)

    async def prune(self, keep: float, limit: int) -> Pruned:
        pruned, whole = await self._write(NEWS, PostgresJobs.prune, keep, limit)
        if not whole:
            return pruned
        return replace(pruned, jobs=pruned.jobs + await self._drop_days(whole))

    async def mend(self, *, rehearse: bool = False) -> Mended:
        return await self._write(WORK, PostgresJobs.mend, rehearse=rehearse)

    async def tidy(self) -> float:
        ((dead, live, is_ours),) = await self._call(history.SQL["dead"], ())
        if not is_ours:
            return inf
        rests = self._tidying.rests_for
        if rests or not self._tidying.is_worth_it(dead, live):
            return max(history.EVERY, rests)
        if not await self._clear_away(dead):
            return inf
        return self._tidying.rests_for

    # --- lead and small values -----------------------------------------------------------------

    async def lead(self, candidate: str, ttl: float) -> Term | None:
        return await self._write(NEWS, PostgresJobs.lead, candidate, ttl)

    async def resign(self, holder: str, epoch: int) -> None:
        await self._write(NEWS, PostgresJobs.resign, holder, epoch)

    async def leader(self) -> Term | None:
        return await self._read(PostgresViews.leader)

    async def cell(self, name: str) -> Cell:
        return await self._read(PostgresViews.cell, name)

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        return await self._write(NEWS, PostgresJobs.set_cell, name, value, version)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._seek(PostgresViews.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._read(PostgresViews.find, which, cursor, limit)

    async def count(self, which: Filter) -> int:
        return await self._read(PostgresViews.count, which)

    async def counts(self) -> list[Count]:
        return await self._read(PostgresViews.counts)

    async def glance(self, window: float, limit: int) -> Glance:
        return await self._read(glance, window, limit)

    async def workers(self) -> list[WorkerInfo]:
        return await self._read(PostgresViews.workers)

    async def hands(self) -> list[Hand]:
        return await self._read(PostgresViews.hands)

    async def line(self, id: str) -> Standing:
        return await self._read(PostgresViews.standing, id)

    async def results(self, ids: Sequence[str], timeout: float) -> dict[str, Job | None]:
        watch = self._watching()
        deadline = self.clock.monotonic() + timeout
        while True:
            seen = await watch.version(DONE) if timeout > 0 else 0
            jobs = dict(zip(ids, await self.get(ids), strict=True))
            ended = {id: job for id, job in jobs.items() if job is None or job.state.is_final}
            left = deadline - self.clock.monotonic()
            if ended or left <= 0:
                return ended
            await watch.listen(seen, left, DONE)

    async def version(self) -> int:
        return await self._watching().version()

    async def listen(self, seen: int, timeout: float) -> int:
        return await self._watching().listen(seen, timeout)
