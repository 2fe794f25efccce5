"""The steps of the PostgreSQL engine for workers' leases, control, upkeep and leadership.

A step runs in one transaction and changes only rows that it has locked. What may happen to a job is
decided in ``core.lifecycle``; the statements are in ``sql/postgres/steps.sql``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Hold, Job, State
from penstock.engines.postgres import reads
from penstock.engines.postgres.history import Day, sort_out, to_days
from penstock.engines.postgres.reads import conditions
from penstock.engines.postgres.rows import can_be, json_text, texts, to_job, to_jobs, to_record
from penstock.engines.postgres.schema import DAYS_AHEAD
from penstock.engines.postgres.settle import (
    KeyContested,
    give_back,
    known_tasks,
    lower,
    save,
    take_key,
    wait_or_end,
)
from penstock.engines.postgres.transaction import SQL, Transaction
from penstock.engines.records import (
    Control,
    Filter,
    Mended,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Sighting,
    WorkerInfo,
    entry_before,
)

# --- leases -------------------------------------------------------------------------------------


async def join(tx: Transaction, worker: WorkerInfo) -> None:
    """See the contract."""
    await tx.ask("lock_tasks")
    await tx.ask("join", (worker.id, tx.now, json_text(worker)))
    lifted = await tx.ask("unhold_known", (Hold.UNKNOWN_TASK.value, list(worker.tasks)))
    if lifted:
        await lower(tx, [queue for (queue,) in lifted])


async def leave(tx: Transaction, worker: str) -> None:
    """See the contract."""
    await tx.change("leave", (worker,))


# --- control ------------------------------------------------------------------------------------


async def cancel(tx: Transaction, ids: Sequence[str], reason: str) -> list[Control]:
    """See the contract."""
    await _lock_all(tx, ids)
    return [await _cancel(tx, id, reason) for id in ids]


async def _cancel(tx: Transaction, id: str, reason: str) -> Control:
    job = await _locked(tx, id)
    if job is None or job.state.is_final or job.cancel_reason is not None:
        return Control(id, False, job.state if job else None)
    after = lifecycle.cancelled(job, reason, tx.now)
    if after.state.is_final and job.unique is not None:
        await give_back(tx, [(job.unique, id)])
    await save(tx, after)
    return Control(id, True, after.state)


async def retry(tx: Transaction, ids: Sequence[str]) -> list[Control]:
    """See the contract."""
    await _lock_all(tx, ids)
    return [await _retry(tx, id) for id in ids]


async def _retry(tx: Transaction, id: str) -> Control:
    job = await _locked(tx, id)
    if job is None or job.state not in (State.FAILED, State.CANCELLED):
        return Control(id, False, job.state if job else None)
    if job.unique is not None:
        owner = await take_key(tx, job.unique, id)
        if owner is not None:
            return Control(id, False, job.state, owner)
    ((ticket,),) = await tx.ask("ticket")
    after = replace(lifecycle.revived(job), seq=int(ticket), place=0.0)
    settings = (await reads.queues(tx)).get(job.queue)
    if settings is not None and settings.fair:
        after = replace(after, hold=Hold.UNPLACED, hold_cause=job.queue)
    values = {"at": job.finished_at, "job": json_text(to_record(after)), "id": id}
    if not await tx.change("revive", values):
        # Its day has left the history since it was locked.
        if job.unique is not None:
            await give_back(tx, [(job.unique, id)])
        return Control(id, False, None)
    return Control(id, True, after.state)


async def purge(tx: Transaction, which: Filter, limit: int, cursor: str | None) -> Purged:
    """See the contract."""
    before = entry_before(cursor)
    if limit <= 0:
        return Purged(cursor=cursor)
    fitting = conditions(which)
    await tx.change("any_plan")
    rows = await tx.rows(
        fitting.put_in(SQL["purgeable"]), {**fitting.values, "before": before, "limit": limit + 1}
    )
    doomed = rows[:limit]
    for statement in ("delete", "delete_ended"):
        await tx.change(statement, ([id for _, id, _ in doomed],))
    await give_back(tx, [(key, id) for _, id, key in doomed if key is not None])
    rest = str(doomed[-1][0]) if len(rows) > limit else None
    return Purged(jobs=len(doomed), cursor=rest)


async def set_queue(tx: Transaction, queue: str, settings: QueueSettings) -> None:
    """See the contract."""
    decided = (await reads.queues(tx)).get(queue)
    await tx.ask("lock_queue", (queue,))
    columns = (settings.paused, settings.most, settings.ordered, settings.fair)
    await tx.change("set_queue", (queue, json_text(settings), *columns))
    if decided is not None and decided.fair and not settings.fair:
        for statement in ("unhold_unplaced", "level", "forget_lanes", "forget_spots"):
            await tx.change(statement, (queue,))
        await lower(tx, [queue])


# --- upkeep -------------------------------------------------------------------------------------


async def promote(tx: Transaction, limit: int) -> Promoted:
    """See the contract."""
    limit = max(0, limit)
    ((expired, ready),) = await tx.ask("promote", {"now": tx.now, "limit": limit})
    ((due, _),) = await tx.ask("next_instant")
    return Promoted(ready=ready, expired=expired, due_in=due_in(due, tx.now))


def due_in(due: float | None, now: float) -> float | None:
    """Seconds until an instant."""
    return None if due is None else max(0.0, due - now)


async def rescue(tx: Transaction, dead: Sequence[Sighting], limit: int) -> list[Job]:
    """See the contract."""
    for sighting in dead:
        await tx.change("end_lease", (sighting.worker, sighting.beat))
    rescued = []
    for job in to_jobs(await tx.ask("orphans", (max(0, limit),))):
        # One whose key is contested is an orphan still at the next call.
        with contextlib.suppress(KeyContested):
            rescued.append(await wait_or_end(tx, job, lifecycle.rescued(job, tx.now), None))
    return rescued


async def prune(tx: Transaction, keep: float, limit: int) -> tuple[Pruned, list[Day]]:
    """See the contract; days that go as a whole are left to be dropped."""
    limit = max(0, limit)
    await tx.ask("make_days", (DAYS_AHEAD,))
    jobs, whole = await _prune_days(tx, tx.now - keep, limit)
    ids = await tx.change("prune_ledger", (tx.now, limit))
    keys = await tx.change("prune_keys", (tx.now, limit))
    await tx.change("prune_spots")
    await tx.change("prune_lowered")
    await tx.change("prune_sleepers")
    await tx.change("prune_cells", (limit,))
    return Pruned(jobs=jobs, ids=ids, keys=keys), whole if limit else []


async def _prune_days(tx: Transaction, before: float, limit: int) -> tuple[int, list[Day]]:
    some, whole = sort_out(to_days(await tx.ask("days")), before)
    jobs = 0
    for day in some:
        if jobs >= limit:
            break
        begins_at, ends_at = day.begins_at, min(day.ends_at, before)
        ((gone,),) = await tx.ask("prune_day", (begins_at, ends_at, limit - jobs))
        jobs += gone
        may_be_dropped = not gone and day.ends_at <= before and day.is_ours
        if may_be_dropped and not await tx.ask("ended_within", (begins_at, ends_at)):
            whole.append(day)
    return jobs, whole


async def mend(tx: Transaction, *, rehearse: bool = False) -> Mended:
    """See the contract."""
    if not rehearse:
        return await _mend(tx)
    await tx.change("savepoint")
    mended = await _mend(tx)
    await tx.change("undo")
    return mended


async def _mend(tx: Transaction) -> Mended:
    ((placed,),) = await tx.ask("place_all")
    lifted = await tx.ask("mend_holds", (sorted(await known_tasks(tx)),))
    if lifted:
        await lower(tx, [queue for (queue,) in lifted])
    loose = await tx.ask("loose_keys")
    await give_back(tx, [(key, owner) for key, owner in loose])
    return Mended(placed=placed, unheld=len(lifted), keys=len(loose))


# --- leadership and small values ----------------------------------------------------------------


# --- shared -------------------------------------------------------------------------------------


async def _lock_all(tx: Transaction, ids: Sequence[str]) -> None:
    """Lock jobs in the order that all steps lock them, so that none waits in a circle."""
    if len(ids) > 1:
        for statement in ("lock_patiently", "lock_all_ended"):
            await tx.ask(statement, (texts(ids),))


async def _locked(tx: Transaction, id: str) -> Job | None:
    """A job that only this transaction changes until it ends; live, or else ended."""
    if not can_be(id):
        return None
    rows = await tx.ask("lock_one", (id,)) or await tx.ask("lock_ended", (id,))
    return to_job(rows[0]) if rows else None
