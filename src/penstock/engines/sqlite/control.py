"""What persons and the leader do to jobs of an SQLite store: control, upkeep, leadership, cells.

A function with the name of a verb is that verb, and the contract says what it promises. Each is a
step of one write transaction. What may happen to a job is decided in ``core.lifecycle``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Hold, Job, State
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
    cell_at,
    entry_before,
    over_at,
)
from penstock.engines.sqlite.claim import wait_or_end
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.queues import (
    forget_places,
    give_key_back,
    hold_key,
    is_fair,
    key_owner,
    place_all,
    promote_due,
    take_tickets,
)
from penstock.engines.sqlite.reads import cell, due_in, find_job, where
from penstock.engines.sqlite.rows import json_text, to_jobs, to_save


def cancel(tx: SqliteTransaction, ids: Sequence[str], reason: str) -> list[Control]:
    return [_cancel(tx, id, reason) for id in ids]


def _cancel(tx: SqliteTransaction, id: str, reason: str) -> Control:
    job = find_job(tx, id)
    if job is None or job.state.is_final or job.cancel_reason is not None:
        return Control(id, False, job.state if job else None)
    after = lifecycle.cancelled(job, reason, tx.now)
    if after.state.is_final and job.unique is not None:
        give_key_back(tx, job.unique, id)
    tx.run("save", to_save(after))
    return Control(id, True, after.state)


def retry(tx: SqliteTransaction, ids: Sequence[str]) -> list[Control]:
    return [_retry(tx, id) for id in ids]


def _retry(tx: SqliteTransaction, id: str) -> Control:
    job = find_job(tx, id)
    if job is None or job.state not in (State.FAILED, State.CANCELLED):
        return Control(id, False, job.state if job else None)
    if job.unique is not None:
        owner = key_owner(tx, job.unique, id)
        if owner is not None:
            return Control(id, False, job.state, owner)
        hold_key(tx, job.unique, id)
    after = replace(lifecycle.revived(job), seq=take_tickets(tx, 1), place=0.0)
    if is_fair(tx, job.queue):
        after = replace(after, hold=Hold.UNPLACED, hold_cause=job.queue)
    tx.run("save", to_save(after))
    return Control(id, True, after.state)


def purge(tx: SqliteTransaction, which: Filter, limit: int, cursor: str | None) -> Purged:
    before = entry_before(cursor)
    if limit <= 0:
        return Purged(cursor=cursor)
    rows = tx.matching("purgeable", where(which), before=before, limit=limit + 1)
    doomed = rows[:limit]
    for _, id, key in doomed:
        if key is not None:
            give_key_back(tx, key, id)
        tx.run("delete", (id,))
    rest = str(doomed[-1][0]) if len(rows) > limit else None
    return Purged(jobs=len(doomed), cursor=rest)


def set_queue(tx: SqliteTransaction, queue: str, settings: QueueSettings) -> None:
    was_fair = is_fair(tx, queue)
    tx.run("set_queue", (queue, json_text(settings)))
    if was_fair and not settings.fair:
        forget_places(tx, queue)


# --- upkeep -------------------------------------------------------------------------------------


def promote(tx: SqliteTransaction, limit: int) -> Promoted:
    done = promote_due(tx, limit)
    return replace(done, due_in=due_in(tx, "next_instant", [{}]))


def rescue(tx: SqliteTransaction, dead: Sequence[Sighting], limit: int) -> list[Job]:
    for sighting in dead:
        tx.run("end_lease", (sighting.worker, sighting.beat))
    orphans = to_jobs(tx.all("orphans", (max(0, limit),)))
    return [wait_or_end(tx, job, lifecycle.rescued(job, tx.now)) for job in orphans]


def prune(tx: SqliteTransaction, keep: float, limit: int) -> Pruned:
    limit = max(0, limit)
    old = tx.all("old", (tx.now - keep, limit))
    tx.run_many("delete", old)
    ids = tx.run("prune_ledger", (tx.now, limit)).rowcount
    keys = tx.run("prune_keys", (tx.now, limit)).rowcount
    tx.run("prune_spots")
    tx.run("prune_cells", {"now": tx.now, "limit": limit})
    return Pruned(jobs=len(old), ids=ids, keys=keys)


def mend(tx: SqliteTransaction, *, rehearse: bool = False) -> Mended:
    with tx.savepoint() as roll_back:
        mended = Mended(placed=place_all(tx), unheld=_mend_holds(tx), keys=_mend_keys(tx))
        if rehearse:
            roll_back()
    return mended


def _mend_holds(tx: SqliteTransaction) -> int:
    unheld = 0
    for id, task, queue, hold, hold_until in tx.all("holds"):
        has_cause = hold_until is not None or (
            is_fair(tx, queue)
            if hold == Hold.UNPLACED
            else hold == Hold.UNKNOWN_TASK and task not in tx.known_tasks
        )
        if not has_cause:
            tx.run("unhold", (id,))
            unheld += 1
    return unheld


def _mend_keys(tx: SqliteTransaction) -> int:
    loose = tx.all("loose_keys")
    for key, owner in loose:
        give_key_back(tx, key, owner)
    return len(loose)


# --- leadership and small values ----------------------------------------------------------------


def set_cell(
    tx: SqliteTransaction, name: str, value: bytes | None, version: int, ttl: float | None
) -> Cell | None:
    if cell(tx, name).version != version:
        return None
    # A version is a ticket: it never starts again.
    stored = (value, take_tickets(tx, 1), *over_at(tx.now, ttl))
    tx.run("set_cell", (name, *stored))
    return cell_at(tx.now, *stored)
