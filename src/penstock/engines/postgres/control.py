"""The steps of the PostgreSQL engine for control, upkeep and lead; a worker's are in ``work``.

A step runs in one transaction and changes only rows that it has locked. What may happen to a job is
decided in ``core.life``; the statements are in ``sql/postgres/steps.sql``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Hold, Job, State
from penstock.engines.postgres.history import Day, sort_out, to_days
from penstock.engines.postgres.reads import conditions
from penstock.engines.postgres.rows import can_be, json_text, texts, to_job, to_jobs, to_record
from penstock.engines.postgres.schema import DAYS_AHEAD
from penstock.engines.postgres.settle import KeyContested, PostgresWork
from penstock.engines.records import (
    Cell,
    Control,
    Filter,
    Mended,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Sighting,
    Term,
    entry_before,
)


class PostgresJobs(PostgresWork):
    """One store inside a write transaction."""

    # --- control -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        """See the contract."""
        await self._lock_all(ids)
        return [await self._cancel(id, reason) for id in ids]

    async def _cancel(self, id: str, reason: str) -> Control:
        job = await self._locked(id)
        if job is None or job.state.is_final or job.cancel_reason is not None:
            return Control(id, False, job.state if job else None)
        after = lifecycle.cancelled(job, reason, self.now)
        if after.state.is_final and job.unique is not None:
            await self._give_back(job.unique, id)
        await self._save(after)
        return Control(id, True, after.state)

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        """See the contract."""
        await self._lock_all(ids)
        return [await self._retry(id) for id in ids]

    async def _retry(self, id: str) -> Control:
        job = await self._locked(id)
        if job is None or job.state not in (State.FAILED, State.CANCELLED):
            return Control(id, False, job.state if job else None)
        if job.unique is not None:
            owner = await self._take_key(job.unique, id)
            if owner is not None:
                return Control(id, False, job.state, owner)
        after = replace(lifecycle.revived(job), seq=await self._ticket(), place=0.0)
        settings = (await self.settings()).get(job.queue)
        if settings is not None and settings.fair:
            after = replace(after, hold=Hold.UNPLACED, hold_cause=job.queue)
        values = {"at": job.finished_at, "job": json_text(to_record(after)), "id": id}
        if not await self._change("revive", values):
            # Its day has left the history since it was locked.
            if job.unique is not None:
                await self._give_back(job.unique, id)
            return Control(id, False, None)
        return Control(id, True, after.state)

    async def purge(self, which: Filter, limit: int, cursor: str | None) -> Purged:
        """See the contract."""
        before = entry_before(cursor)
        if limit <= 0:
            return Purged(cursor=cursor)
        fitting = conditions(which)
        await self._change("any_plan")
        rows = await self.turn.rows(
            fitting.put_in(self._steps["purgeable"]),
            {**fitting.values, "before": before, "limit": limit + 1},
        )
        doomed = rows[:limit]
        await self._change("delete", ([id for _, id, _ in doomed],))
        await self._change("delete_ended", ([id for _, id, _ in doomed],))
        owned = [(key, id) for _, id, key in doomed if key is not None]
        if owned:
            keys, owners = zip(*owned, strict=True)
            await self._ask("give_back", (list(keys), list(owners), self.now))
        rest = str(doomed[-1][0]) if len(rows) > limit else None
        return Purged(jobs=len(doomed), cursor=rest)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        """See the contract."""
        decided = (await self.settings()).get(queue)
        await self._ask("lock_queue", (queue,))
        await self._change(
            "set_queue",
            (
                queue,
                json_text(settings),
                settings.paused,
                settings.most,
                settings.ordered,
                settings.fair,
            ),
        )
        if decided is not None and decided.fair and not settings.fair:
            for statement in (
                "unhold_unplaced",
                "split_claims",
                "level",
                "forget_lanes",
                "forget_spots",
            ):
                await self._change(statement, (queue,))
            await self._lower()

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        """See the contract."""
        limit = max(0, limit)
        ((expired, ready),) = await self._ask("promote", {"now": self.now, "limit": limit})
        ((due,),) = await self._ask("next_instant")
        due_in = None if due is None else max(0.0, due - self.now)
        return Promoted(ready=ready, expired=expired, due_in=due_in)

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        """See the contract."""
        for sighting in dead:
            await self._change("bury", (sighting.worker, sighting.beat))
        orphans = to_jobs(await self._ask("orphans", (max(0, limit),)))
        rescued = []
        for job in orphans:
            # One whose key is contested is an orphan still when the next one looks.
            with contextlib.suppress(KeyContested):
                rescued.append(await self._wait_or_end(job, lifecycle.rescued(job, self.now), None))
        return rescued

    async def prune(self, keep: float, limit: int) -> tuple[Pruned, list[Day]]:
        """See the contract; days that go as a whole are left to be dropped."""
        limit = max(0, limit)
        await self._ask("make_days", (DAYS_AHEAD,))
        jobs, whole = await self._prune_days(self.now - keep, limit)
        ids = await self._change("prune_ledger", (self.now, limit))
        keys = await self._change("prune_keys", (self.now, limit))
        await self._change("prune_spots")
        await self._change("prune_sleepers")
        return Pruned(jobs=jobs, ids=ids, keys=keys), whole if limit else []

    async def _prune_days(self, before: float, limit: int) -> tuple[int, list[Day]]:
        some, whole = sort_out(to_days(await self._ask("days")), before)
        jobs = 0
        for day in some:
            if jobs >= limit:
                break
            begins_at, ends_at = day.begins_at, min(day.ends_at, before)
            ((gone,),) = await self._ask("prune_day", (begins_at, ends_at, limit - jobs))
            jobs += gone
            may_be_dropped = not gone and day.ends_at <= before and day.is_ours
            if may_be_dropped and not await self._ask("ended_within", (begins_at, ends_at)):
                whole.append(day)
        return jobs, whole

    async def mend(self, *, rehearse: bool = False) -> Mended:
        """See the contract."""
        if not rehearse:
            return await self._mend()
        await self._change("savepoint")
        mended = await self._mend()
        await self._change("undo")
        return mended

    async def _mend(self) -> Mended:
        ((placed,),) = await self._ask("place_all")
        unheld = await self._change("mend_holds", (sorted(await self._known_tasks()),))
        if unheld:
            await self._lower()
        await self._change("mend_claims")
        loose = await self._ask("loose_keys")
        if loose:
            keys, owners = zip(*loose, strict=True)
            await self._ask("give_back", (list(keys), list(owners), self.now))
        return Mended(placed=placed, unheld=unheld, keys=len(loose))

    # --- lead and small values -----------------------------------------------------------------

    async def lead(self, candidate: str, ttl: float) -> Term | None:
        """See the contract."""
        ((holder, epoch, until, given),) = await self._ask("lock_term")
        if holder not in ("", candidate) and until > self.now:
            # More is left than was ever given: the clock went back.
            if until - self.now > given:
                await self._change("set_term", (holder, epoch, self.now + given, given))
            return None
        if holder != candidate or until <= self.now:
            epoch += 1
        await self._change("set_term", (candidate, epoch, self.now + ttl, ttl))
        return Term(holder=candidate, epoch=epoch, left=ttl)

    async def resign(self, holder: str, epoch: int) -> None:
        """See the contract."""
        await self._change("resign", (holder, epoch))

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        """See the contract."""
        statement = "set_cell" if version else "new_cell"
        values = {"name": name, "value": value, "version": version}
        return Cell(value, version + 1) if await self._change(statement, values) else None

    # --- shared --------------------------------------------------------------------------------

    async def _lock_all(self, ids: Sequence[str]) -> None:
        """Lock jobs in one order for everybody, so that nobody waits in a circle."""
        if len(ids) > 1:
            for statement in ("lock_patiently", "lock_all_ended"):
                await self._ask(statement, (texts(ids),))

    async def _locked(self, id: str) -> Job | None:
        """A job that nobody else changes until this ends; live, or else ended."""
        if not can_be(id):
            return None
        rows = await self._ask("lock_one", (id,)) or await self._ask("lock_ended", (id,))
        return to_job(rows[0]) if rows else None
