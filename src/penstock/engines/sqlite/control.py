"""What persons and the leader do to jobs of an SQLite store: control, upkeep, cells.

A function with the name of a verb is that verb, and the contract says what it promises. Each is a
step of one write transaction. What may happen to a job is decided in ``core.lifecycle``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Verdict
from penstock.engines.records import (
    Cell,
    Filter,
    Promoted,
    Pruned,
    Purged,
    Rewrite,
    Rewritten,
    Sighting,
    cell_at,
    entry_before,
    over_at,
)
from penstock.engines.sqlite.claim import take_or_give_back
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.enqueue import enqueue
from penstock.engines.sqlite.key_line_batches import prune_lines
from penstock.engines.sqlite.key_lines import note
from penstock.engines.sqlite.queues import give_key_back, promote_due, save, take_tickets
from penstock.engines.sqlite.reads import cell, due_in, find_job, where
from penstock.engines.sqlite.rows import json_names, to_adopt, to_insert


def rewrite(tx: SqliteTransaction, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
    return [_rewrite(tx, each) for each in rewrites]


def _rewrite(tx: SqliteTransaction, rewrite: Rewrite) -> Rewritten:
    job = rewrite.job
    found = find_job(tx, job.id)
    if rewrite.revision is None:
        is_known = found is not None or bool(tx.one("remembered", (json_names([job.id]), tx.now)))
    else:
        is_known = found is None or found.revision != rewrite.revision
    if is_known:
        return Rewritten(Verdict.STALE, found)
    owner = take_or_give_back(tx, job)
    if owner is not None:
        return Rewritten(Verdict.STALE, found, owner)
    if rewrite.revision is None or job.seq == lifecycle.NEW_TICKET:
        job = replace(job, seq=take_tickets(tx, 1))
    if rewrite.revision is None:
        columns, rows = to_insert([to_adopt(job)])
        tx.insert(columns, 1, rows)
        if rewrite.remember > 0:
            tx.run("remember", (job.id, tx.now + rewrite.remember, job.task))
    save(tx, found, job)
    followers = tuple(enqueue(tx, rewrite.then))
    return Rewritten(Verdict.DONE, find_job(tx, job.id), followers=followers)


def purge(tx: SqliteTransaction, which: Filter, limit: int, cursor: str | None) -> Purged:
    before = entry_before(cursor)
    if limit <= 0:
        return Purged(cursor=cursor)
    rows = tx.matching("purgeable", where(which), before=before, limit=limit + 1)
    doomed = rows[:limit]
    for _, id, key, *_ in doomed:
        if key is not None:
            give_key_back(tx, key, id)
        tx.run("delete", (id,))
    note(tx, {(queue, priority, line) for *_, queue, priority, line in doomed if line is not None})
    rest = str(doomed[-1][0]) if len(rows) > limit else None
    return Purged(jobs=len(doomed), cursor=rest)


# --- upkeep -------------------------------------------------------------------------------------


def promote(tx: SqliteTransaction, limit: int) -> Promoted:
    done = promote_due(tx, limit)
    return replace(done, due_in=due_in(tx, "next_instant", [{}]))


def end_leases(tx: SqliteTransaction, dead: Sequence[Sighting]) -> list[str]:
    return [
        each.worker for each in dead if tx.run("end_lease", (each.worker, each.beat)).rowcount == 1
    ]


def prune(tx: SqliteTransaction, limit: int) -> Pruned:
    limit = max(0, limit)
    old = tx.all("old", (tx.now, limit))
    tx.run_many("delete", old)
    ids = tx.run("prune_ledger", (tx.now, limit)).rowcount
    keys = tx.run("prune_keys", (tx.now, limit)).rowcount
    prune_lines(tx, limit)
    tx.run("prune_cells", {"now": tx.now, "limit": limit})
    return Pruned(jobs=len(old), ids=ids, keys=keys)


# --- small values ----------------------------------------------------------------------------


def set_cell(
    tx: SqliteTransaction, name: str, value: bytes | None, version: int, ttl: float | None
) -> Cell | None:
    if cell(tx, name).version != version:
        return None
    # A version is a ticket: it never starts again.
    stored = (value, take_tickets(tx, 1), *over_at(tx.now, ttl))
    tx.run("set_cell", (name, *stored))
    return cell_at(tx.now, *stored)
