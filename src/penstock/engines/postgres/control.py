"""The steps of the PostgreSQL engine for workers' leases, control and upkeep.

A step runs in one transaction and changes only rows that it has locked. What may happen to a job is
decided in ``core.lifecycle``; the statements are in ``sql/postgres/steps.sql``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Verdict
from penstock.engines.postgres import reads
from penstock.engines.postgres.history import Day, sort_out, to_days
from penstock.engines.postgres.reads import conditions
from penstock.engines.postgres.rows import (
    ID,
    can_be,
    json_text,
    to_adopted,
    to_job,
    to_record,
)
from penstock.engines.postgres.schema import DAYS_AHEAD
from penstock.engines.postgres.settle import (
    Changed,
    KeyContested,
    end_and_follow,
    give_back,
    lower,
    signed_for,
    take_or_give_back,
    write_back,
)
from penstock.engines.postgres.transaction import SQL, Transaction
from penstock.engines.records import (
    Filter,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Repaired,
    Rewrite,
    Rewritten,
    Sighting,
    WorkerInfo,
    entry_before,
)
from penstock.errors import BadOption

# --- leases -------------------------------------------------------------------------------------


async def join(tx: Transaction, worker: WorkerInfo) -> None:
    """See the contract."""
    await tx.ask("lock_tasks")
    await tx.ask("join", (worker.id, tx.now, json_text(worker)))


async def leave(tx: Transaction, worker: str) -> None:
    """See the contract."""
    await tx.change("leave", (worker,))


# --- control ------------------------------------------------------------------------------------


async def rewrite(tx: Transaction, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
    """See the contract."""
    ids = sorted({each.job.id for each in rewrites if can_be(each.job.id)})
    # All that lock many rows do so in one order, so that none waits in a circle.
    live = await tx.ask("lock_patiently", (ids,))
    rows = live + await tx.ask("lock_ended", (ids,))
    stored = {row[ID]: Changed(to_job(row), signed_for(row)) for row in rows}
    answers = [await _rewrite(tx, each, stored) for each in rewrites]
    changed = [
        each.job.id
        for each, answer in zip(rewrites, answers, strict=True)
        if answer.verdict is Verdict.DONE and each.revision is not None
    ]
    was_live = {row[ID] for row in live}
    await write_back(tx, [stored[id] for id in changed if id in was_live])
    return answers


async def _rewrite(tx: Transaction, rewrite: Rewrite, stored: dict[str, Changed]) -> Rewritten:
    """Judge one; what it changes is put into ``stored``. What enters the live jobs is written."""
    job = rewrite.job
    found = stored.get(job.id)
    before = None if found is None else found.after
    if rewrite.revision is None:
        is_known = before is not None or bool(await tx.ask("remembered", (job.id, tx.now)))
    else:
        is_known = before is None or before.revision != rewrite.revision
    if is_known:
        return Rewritten(Verdict.STALE, before)
    owner: str | None = None
    followers: list[Receipt] | None = []
    try:
        if rewrite.then:
            followers = await end_and_follow(tx, job, rewrite.then)
        else:
            owner = await take_or_give_back(tx, job)
    except KeyContested:
        return Rewritten(Verdict.LATER, before)
    if followers is None:
        return Rewritten(Verdict.LATER, before)
    if owner is not None:
        return Rewritten(Verdict.STALE, before, owner)
    if rewrite.revision is None or job.seq == lifecycle.NEW_TICKET:
        ((ticket, _),) = await tx.ask("ticket")
        job = replace(job, seq=int(ticket))
    signed = None if found is None else found.signed
    if before is None:
        settings = (await reads.queues(tx)).get(job.queue)
        line = (job.key or "") if settings is not None and settings.is_keyed else None
        if not await tx.ask("adopt", (json_text(to_adopted(job, job.seq, line)),)):
            return Rewritten(Verdict.LATER)
        if rewrite.remember > 0:
            await tx.change("remember", (job.id, tx.now + rewrite.remember, job.task))
        await lower(tx, [job.queue])
        return Rewritten(Verdict.DONE, replace(job, revision=0))
    if before.state.is_final:
        values = (json_text([to_record(job, signed)]), [lifecycle.forget_at(before)])
        if not await tx.ask("revive_all", values):
            # Its day has left the history since it was locked.
            await give_back(tx, [] if job.unique_key is None else [(job.unique_key, job.id)])
            return Rewritten(Verdict.STALE)
    job = replace(job, revision=before.revision + 1)
    stored[job.id] = Changed(job, signed)
    return Rewritten(Verdict.DONE, job, followers=tuple(followers))


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
    await tx.ask("lock_queue", (queue,))
    columns = (settings.paused, settings.most, settings.ordered, settings.is_keyed)
    keys = (settings.max_running_per_key, json_text(settings.weights))
    await tx.change("set_queue", (queue, json_text(settings), *columns, *keys))


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


async def end_leases(tx: Transaction, dead: Sequence[Sighting]) -> list[str]:
    """See the contract."""
    return [
        each.worker
        for each in dead
        if can_be(each.worker) and await tx.change("end_lease", (each.worker, each.beat))
    ]


async def prune(tx: Transaction, limit: int) -> tuple[Pruned, list[Day]]:
    """See the contract; days that go as a whole are left to be dropped."""
    limit = max(0, limit)
    await tx.ask("make_days", (DAYS_AHEAD,))
    jobs, whole = await _prune_days(tx, tx.now, limit)
    ids = await tx.change("prune_ledger", (tx.now, limit))
    keys = await tx.change("prune_keys", (tx.now, limit))
    await tx.ask("prune_lines", (limit,))
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


class RepairCursor(msgspec.Struct, frozen=True):
    """Where a round of repairs goes on; None: that part is done."""

    key: str | None = ""
    line: tuple[str, int, str] | None = ("", -(1 << 63), "")


async def repair(
    tx: Transaction, limit: int, cursor: str | None, *, rehearse: bool = False
) -> Repaired:
    """See the contract."""
    if not rehearse:
        return await _repair(tx, limit, cursor)
    await tx.change("savepoint")
    found = await _repair(tx, limit, cursor)
    await tx.change("undo")
    return found


async def _repair(tx: Transaction, limit: int, cursor: str | None) -> Repaired:
    limit, at = max(0, limit), _repair_at(cursor)
    keys, key, lines, line = 0, None, 0, None
    if at.key is not None:
        keys, key = await _repair_keys(tx, limit, at.key)
    if at.line is not None:
        ((lines, *found),) = await tx.ask("lost_lines", (limit, *at.line))
        line = None if found[0] is None else tuple(found)
    is_done = key is None and line is None
    rest = None if is_done else json_text(RepairCursor(key, line))
    return Repaired(lines=lines, keys=keys, cursor=rest)


async def _repair_keys(tx: Transaction, limit: int, after: str) -> tuple[int, str | None]:
    """Give back unique keys that no job needs; return how many, and the last one looked at."""
    held = await tx.ask("held_keys", (after or None, after or None, limit + 1))
    loose = [(key, owner) for key, owner, is_needed in held[:limit] if not is_needed]
    await give_back(tx, loose)
    return len(loose), held[limit - 1][0] if limit and len(held) > limit else None


def _repair_at(cursor: str | None) -> RepairCursor:
    if cursor is None:
        return RepairCursor()
    try:
        return msgspec.json.decode(cursor, type=RepairCursor)
    except msgspec.DecodeError as error:
        raise BadOption("cursor", cursor, "give the one of the call before, or none") from error
