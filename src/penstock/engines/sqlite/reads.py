"""What the SQLite engine reads: steps that change nothing, each on one snapshot.

A function with the name of a verb is that verb, and the contract says what it promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.job import Hold, Job, State
from penstock.engines.records import (
    LINE_LIMIT,
    SOME,
    Ask,
    Cell,
    Count,
    Filter,
    Glance,
    Hand,
    Page,
    QueueSettings,
    Standing,
    Term,
    Traffic,
    WorkerInfo,
    entry_before,
    most_common,
)
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.queues import (
    gives_at,
    head_of,
    is_ordered,
    ordered_gives_at,
    room_in,
)
from penstock.engines.sqlite.rows import json_names, json_text, to_job, to_jobs
from penstock.errors import LeaseLost


def held(tx: SqliteTransaction, worker: str) -> list[Job]:
    check_lease(tx, worker)
    return sorted(to_jobs(tx.all("held_by", (worker,))), key=lambda job: job.order)


def look(tx: SqliteTransaction, ask: Ask) -> float | None:
    if cancels_for(tx, ask):
        return 0.0
    if ask.want <= 0:
        return None
    instants = []
    for queue in ask.queues:
        if room_in(tx, queue) > 0:
            find = ordered_gives_at if is_ordered(tx, queue) else gives_at
            instant = find(tx, head_of(tx, ask, queue, 1))
            if instant is not None and instant <= tx.now:
                return 0.0
            if instant is not None:
                instants.append(instant)
    return min(instants) - tx.now if instants else None


def get(tx: SqliteTransaction, ids: Sequence[str]) -> list[Job | None]:
    jobs = {job.id: job for job in to_jobs(tx.all("jobs", (json_names(ids),)))}
    return [jobs.get(id) for id in ids]


def find(tx: SqliteTransaction, which: Filter, cursor: str | None, limit: int) -> Page:
    before = entry_before(cursor)
    if limit <= 0:
        return Page((), cursor)
    rows = tx.all("find", {**where(which), "before": before, "limit": limit + 1})
    page = rows[:limit]
    return Page(tuple(to_jobs(page)), str(page[-1][0]) if len(rows) > limit else None)


def count(tx: SqliteTransaction, which: Filter) -> int:
    (jobs,) = tx.run("count", where(which)).fetchone()
    return int(jobs)


def counts(tx: SqliteTransaction) -> list[Count]:
    return [_count(*row) for row in tx.run("counts")]


def hands(tx: SqliteTransaction) -> list[Hand]:
    return [
        Hand(
            worker=worker or "",
            queue=queue,
            task=task,
            priority=priority,
            jobs=jobs,
            started=started,
            first=first,
            since_at=since_at,
        )
        for worker, queue, task, priority, jobs, started, first, since_at in tx.run("hands")
    ]


def line(tx: SqliteTransaction, id: str) -> Standing:
    job = find_job(tx, id)
    row = tx.one("remembered", (id, tx.now))
    stands = Standing(now=tx.now, job=job, remembered_until=None if row is None else row[0])
    if job is None:
        return stands
    settings = tx.settings.get(job.queue, QueueSettings())
    stands = replace(stands, settings=settings)
    if not job.state.is_waiting:
        return stands
    ticket = {"priority": job.priority, "place": job.place, "seq": job.seq}
    place = {**ticket, "queue": job.queue, "now": tx.now, "limit": LINE_LIMIT + 1}
    is_in_line = job.state is State.READY and job.hold is None
    before = tx.all("ahead", place) if is_in_line else []
    place |= {"id": id, "is_open": job.is_open, "limit": SOME}
    blockers = tx.all("blockers", place) if settings.ordered else []
    return replace(
        stands,
        ahead=len(before),
        more_urgent=sum(priority < job.priority for priority, _ in before),
        keys=most_common(key for _, key in before),
        blockers=tuple(id for (id,) in blockers),
    )


def queues(tx: SqliteTransaction) -> dict[str, QueueSettings]:
    names = {name for (name,) in tx.run("queue_names")} | tx.settings.keys()
    return {name: tx.settings.get(name, QueueSettings()) for name in sorted(names)}


def workers(tx: SqliteTransaction) -> list[WorkerInfo]:
    return tx.workers()


def leader(tx: SqliteTransaction) -> Term | None:
    holder, epoch, until, ttl = tx.run("term").fetchone()
    left = min(until - tx.now, ttl)
    return Term(holder=holder, epoch=epoch, left=left) if holder and left > 0 else None


def cell(tx: SqliteTransaction, name: str) -> Cell:
    row = tx.one("cell", (name,))
    return Cell(None, 0) if row is None else Cell(*row)


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
    """The parameters of the conditions in ``find``, ``count`` and ``purgeable``."""
    return {
        "ids": json_names(which.ids),
        "states": json_text(which.states),
        "queues": json_names(which.queues),
        "tasks": json_names(which.tasks),
        "keys": json_names(which.keys),
        "holds": json_text(which.holds),
        "tag": which.tag,
        "correlation_id": which.correlation_id,
        "since": which.since,
        "until": which.until,
    }


# --- glance -------------------------------------------------------------------------------------


def glance(tx: SqliteTransaction, window: float, limit: int) -> Glance:
    limit = max(0, limit)
    busy: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for worker, queue, jobs in tx.run("busy"):
        busy[worker] += jobs
        running[queue] += jobs
    live = [_count(*row) for row in tx.run("live_counts")]
    failed = [each.queue for each in live if each.state is State.FAILED]
    return Glance(
        now=tx.now,
        counts=(*(_count(queue, "running", None, running[queue]) for queue in running), *live),
        traffic=tuple(_traffic(tx, tx.now - window)),
        settings=tx.settings,
        workers=tuple(tx.workers()),
        busy=busy,
        running=_first_running(tx, limit),
        failed=_last_failed(tx, failed, limit),
    )


def _traffic(tx: SqliteTransaction, since: float) -> Iterator[Traffic]:
    entered: Counter[str] = Counter()
    for queue, at in tx.run("newest"):
        if at <= since:
            break
        entered[queue] += 1
    ended: Counter[tuple[str, str]] = Counter()
    for queue, state, jobs in tx.run("ended", (since,)):
        ended[queue, state] = jobs
    for queue in sorted(entered.keys() | {queue for queue, _ in ended}):
        yield Traffic(
            queue=queue,
            entered=entered[queue],
            succeeded=ended[queue, State.SUCCEEDED],
            failed=ended[queue, State.FAILED],
            cancelled=ended[queue, State.CANCELLED],
        )


def _first_running(tx: SqliteTransaction, limit: int) -> tuple[Job, ...]:
    jobs = _jobs_by_entry(tx, [entry for (entry,) in tx.run("running", (limit,))])
    return tuple(sorted(jobs, key=lambda job: (job.claimed_at or 0.0, job.seq)))


def _last_failed(tx: SqliteTransaction, queues: Sequence[str], limit: int) -> tuple[Job, ...]:
    last = [row for queue in queues for row in tx.run("last_failed", (queue, limit))]
    jobs = _jobs_by_entry(tx, [entry for _, _, entry in sorted(last, reverse=True)[:limit]])
    return tuple(sorted(jobs, key=lambda job: (job.finished_at or 0.0, job.seq), reverse=True))


def _jobs_by_entry(tx: SqliteTransaction, entries: Sequence[int]) -> list[Job]:
    return to_jobs(tx.all("jobs_by_entry", (json_text(entries),)))


def _count(queue: str, state: str, hold: str | None, jobs: int) -> Count:
    return Count(queue=queue, state=State(state), hold=Hold(hold) if hold else None, jobs=jobs)
