"""What the SQLite engine reads: steps that change nothing, each on one snapshot.

A function with the name of a verb is that verb, and the contract says what it promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.core.job import FINAL, Job, State
from penstock.engines.records import (
    Ask,
    Cell,
    CellPage,
    Count,
    Filter,
    Page,
    QueueSettings,
    Running,
    WorkerInfo,
    cell_at,
    count_of,
    entry_before,
)
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.rows import json_names, json_text, to_job, to_jobs
from penstock.errors import LeaseLost


def held(tx: SqliteTransaction, worker: str) -> list[Job]:
    check_lease(tx, worker)
    return sorted(to_jobs(tx.all("held_by", (worker,))), key=lambda job: job.order)


def get(tx: SqliteTransaction, ids: Sequence[str]) -> list[Job | None]:
    jobs = {job.id: job for job in to_jobs(tx.all("jobs", (json_names(ids),)))}
    return [jobs.get(id) for id in ids]


def find(tx: SqliteTransaction, which: Filter, cursor: str | None, limit: int) -> Page:
    before = entry_before(cursor)
    if limit <= 0:
        return Page((), cursor)
    rows = tx.matching("find", where(which), before=before, limit=limit + 1)
    page = rows[:limit]
    return Page(tuple(to_jobs(page)), str(page[-1][0]) if len(rows) > limit else None)


def counts(tx: SqliteTransaction, which: Filter) -> list[Count]:
    found = []
    for statement in _parts(which):
        rows = tx.matching(statement, where(which))
        found += [count_of(*row) for row in rows]
    return found


def _parts(which: Filter) -> Iterator[str]:
    """The statements that find all jobs which fit, each by an index of its own."""
    states = set(which.states or State)
    if which.finished_since is None:
        yield from (
            f"count_{state.value}"
            for state in (State.READY, State.SCHEDULED, State.RUNNING)
            if state in states
        )
        if State.READY in states:
            yield "count_held"
    if which.is_open or states.isdisjoint(FINAL):
        return
    if which.finished_since is not None:
        yield "count_ended_since"
        return
    if State.FAILED in states:
        yield "count_failed"
    if states & {State.SUCCEEDED, State.CANCELLED}:
        yield "count_ended"


def running(tx: SqliteTransaction) -> list[Running]:
    return [
        Running(
            worker=worker or "",
            queue=queue,
            task=task,
            priority=priority,
            jobs=jobs,
            started=started,
            first=first,
            since_at=since_at,
        )
        for worker, queue, task, priority, jobs, started, first, since_at in tx.run("running")
    ]


def queues(tx: SqliteTransaction) -> dict[str, QueueSettings]:
    return dict(sorted(tx.settings.items()))


def workers(tx: SqliteTransaction) -> list[WorkerInfo]:
    return tx.workers()


def cell(tx: SqliteTransaction, name: str) -> Cell:
    row = tx.one("cell", (name,))
    return Cell(now=tx.now) if row is None else cell_at(tx.now, *row)


def cells(tx: SqliteTransaction, prefix: str, cursor: str | None, limit: int) -> CellPage:
    limit = max(0, limit)
    after = prefix if cursor is None else cursor
    window = {"prefix": prefix, "after": after, "is_first": cursor is None, "now": tx.now}
    rows = tx.all("cells", {**window, "limit": limit + 1})
    page = tuple((name, cell_at(tx.now, *stored)) for name, *stored in rows[:limit])
    return CellPage(page, page[-1][0] if page and len(rows) > limit else None)


# --- what other steps read as well --------------------------------------------------------------


def find_job(tx: SqliteTransaction, id: str) -> Job | None:
    row = tx.one("job", (id,))
    return None if row is None else to_job(row)


def has_lease(tx: SqliteTransaction, worker: str) -> bool:
    return tx.one("worker", (worker,)) is not None


def check_lease(tx: SqliteTransaction, worker: str) -> None:
    if not has_lease(tx, worker):
        raise LeaseLost(worker)


def cancels_for(tx: SqliteTransaction, ask: Ask) -> list[str]:
    """Jobs of this worker whose cancellation it was not told of."""
    return [id for (id,) in tx.all("cancels", (ask.worker,)) if id not in ask.told]


def due_in(tx: SqliteTransaction, statement: str, asked: Sequence[dict[str, Any]]) -> float | None:
    """Seconds to the earliest instant that a statement finds, asked once for each."""
    instants = [tx.run(statement, each).fetchone()[0] for each in asked]
    known = [instant for instant in instants if instant is not None]
    return max(0.0, min(known) - tx.now) if known else None


def where(which: Filter) -> dict[str, Any]:
    """The conditions of a filter, as ``matching`` takes them."""
    return {
        "ids": json_names(which.ids) if which.ids else None,
        "workers": json_names(which.workers) if which.workers else None,
        "states": json_text(which.states) if which.states else None,
        "queues": json_names(which.queues) if which.queues else None,
        "tasks": json_names(which.tasks) if which.tasks else None,
        "keys": json_names(which.keys) if which.keys else None,
        "hold": which.holds[0] if len(which.holds) == 1 else None,
        "holds": json_text(which.holds) if len(which.holds) > 1 else None,
        "tag": which.tag,
        "correlation_id": which.correlation_id,
        "since": which.since,
        "until": which.until,
        "finished_since": which.finished_since,
        "tickets_below": which.tickets_below,
        "open": which.is_open or None,
    }
