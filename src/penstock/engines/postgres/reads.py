"""What the PostgreSQL engine reads: the steps that change nothing, on one snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.job import FINAL, Hold, Job, State
from penstock.engines.postgres.bounds import RANGES, Ranges, whole
from penstock.engines.postgres.rows import Row, text, texts, to_jobs
from penstock.engines.postgres.transaction import SQL, Snapshot, Transaction
from penstock.engines.records import (
    ANY_PRIORITY,
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
)
from penstock.errors import LeaseLost

# --- filters ------------------------------------------------------------------------------------


class Conditions(msgspec.Struct, frozen=True):
    """A filter as SQL: which rows of each table are meant."""

    live: str
    history: str
    values: Mapping[str, Any]

    def put_in(self, sql: str) -> str:
        """Return a statement with the conditions where it has ``{live}`` and ``{history}``."""
        return sql.replace("{live}", self.live).replace("{history}", self.history)


def conditions(which: Filter) -> Conditions:
    """Say in SQL which jobs are meant; a table that can have none of them is not read."""
    values = _values(which)
    fits = " AND ".join(SQL[f"if_{each}"] for each in values) or SQL["if_any"]
    states = set(which.states)
    return Conditions(
        live=SQL["if_none"] if states and states <= FINAL else fits,
        history=SQL["if_none"] if states and states.isdisjoint(FINAL) else fits,
        values=values,
    )


def _values(which: Filter) -> dict[str, Any]:
    asked = {"ids": which.ids, "queues": which.queues, "tasks": which.tasks, "keys": which.keys}
    values: dict[str, Any] = {each: texts(given) for each, given in asked.items() if given}
    if which.states:
        values["states"] = [state.value for state in which.states]
    if which.holds:
        values["holds"] = [hold.value for hold in which.holds]
    if which.tag is not None:
        values["tag"] = text(which.tag)
    if which.correlation_id is not None:
        values["correlation_id"] = text(which.correlation_id)
    if which.since is not None:
        values["since"] = which.since
    if which.until is not None:
        values["until"] = which.until
    return values


# --- jobs, queues and workers -------------------------------------------------------------------

_settings = msgspec.json.Decoder(QueueSettings)
_info = msgspec.json.Decoder(WorkerInfo)


async def held(tx: Transaction, worker: str) -> list[Job]:
    """See the contract."""
    if not await tx.ask("worker", {"worker": text(worker)}):
        raise LeaseLost(worker)
    return to_jobs(await tx.ask("held_by", {"worker": worker}))


async def look(snapshot: Snapshot, ask: Ask, ranges: Ranges | None = None) -> float | None:
    """See the contract. With ``ranges`` only these parts of the lines are looked at."""
    queues = texts(ask.queues) if ask.want > 0 else []
    values = {
        **dict(zip(RANGES, (ranges or whole(queues)).arrays, strict=True)),
        "worker": text(ask.worker),
        "told": texts(ask.told),
        "queues": queues,
        "avoid": texts(ask.avoid),
        "lowered": None if ranges is None else ranges.lowered,
        "has_slot": ask.slots > 0,
        "least_urgent": ANY_PRIORITY if ask.least_urgent is None else ask.least_urgent,
    }
    ((due_in,),) = await snapshot.ask("look", values)
    return None if due_in is None else float(due_in)


async def get(snapshot: Snapshot, ids: Sequence[str]) -> list[Job | None]:
    """See the contract."""
    jobs = {job.id: job for job in to_jobs(await snapshot.ask("get", {"ids": texts(ids)}))}
    return [jobs.get(id) for id in ids]


async def find(snapshot: Snapshot, which: Filter, cursor: str | None, limit: int) -> Page:
    """See the contract."""
    before = entry_before(cursor)
    if limit <= 0:
        return Page((), cursor)
    statement = "find_ids" if which.ids else "find"
    rows = await _matching(snapshot, statement, which, before=before, limit=limit + 1)
    page = rows[:limit]
    return Page(tuple(to_jobs(page)), str(page[-1][0]) if len(rows) > limit else None)


async def count(snapshot: Snapshot, which: Filter) -> int:
    """See the contract."""
    ((jobs,),) = await _matching(snapshot, "count", which)
    return int(jobs)


async def counts(snapshot: Snapshot) -> list[Count]:
    """See the contract."""
    return [_to_count(*row) for row in await snapshot.ask("counts")]


async def hands(snapshot: Snapshot) -> list[Hand]:
    """See the contract."""
    rows = await snapshot.ask("hands")
    return [
        Hand(
            worker=worker,
            queue=queue,
            task=task,
            priority=priority,
            jobs=jobs,
            started=started,
            first=first,
            since_at=since_at,
        )
        for worker, queue, task, priority, jobs, started, first, since_at in rows
    ]


async def standing(tx: Transaction, id: str) -> Standing:
    """See the contract."""
    (job,) = await get(tx, [id])
    ledger = await tx.ask("remembered", {"id": text(id), "now": tx.now})
    stands = Standing(now=tx.now, job=job, remembered_until=ledger[0][0] if ledger else None)
    if job is None:
        return stands
    decided = (await settings(tx)).get(job.queue, QueueSettings())
    stands = replace(stands, settings=decided)
    if not job.state.is_waiting:
        return stands
    ticket = {"priority": job.priority, "place": job.place, "seq": job.seq}
    line = {**ticket, "queue": job.queue, "now": tx.now, "some": SOME}
    if job.state is State.READY and job.hold is None:
        before = await tx.ask("ahead", {**line, "most": LINE_LIMIT + 1})
        stands = replace(
            stands,
            ahead=before[0][2] if before else 0,
            more_urgent=before[0][3] if before else 0,
            keys=tuple((key, jobs) for key, jobs, *_ in before),
        )
    if decided.ordered:
        blockers = await tx.ask("blockers", {**line, "id": id, "is_open": job.is_open})
        stands = replace(stands, blockers=tuple(id for (id,) in blockers))
    return stands


async def queues(tx: Transaction) -> dict[str, QueueSettings]:
    """See the contract."""
    decided = await settings(tx)
    found = {queue for (queue,) in await tx.ask("queue_names")} | decided.keys()
    return {queue: decided.get(queue, QueueSettings()) for queue in sorted(found)}


async def leader(tx: Transaction) -> Term | None:
    """See the contract."""
    ((holder, epoch, until, ttl),) = await tx.ask("term")
    left = min(until - tx.now, ttl)
    return Term(holder=holder, epoch=epoch, left=left) if holder and left > 0 else None


async def cell(snapshot: Snapshot, name: str) -> Cell:
    """See the contract."""
    rows = await snapshot.ask("cell", {"name": text(name)})
    return Cell(*rows[0]) if rows else Cell(None, 0)


async def settings(snapshot: Snapshot) -> dict[str, QueueSettings]:
    """What was decided about queues; those without a decision are not in it."""
    return {queue: _settings.decode(said) for queue, said in await snapshot.ask("settings")}


async def workers(snapshot: Snapshot) -> list[WorkerInfo]:
    """Every worker that has a lease."""
    return [
        replace(_info.decode(info), beat=beat, joined_at=joined_at)
        for beat, joined_at, info in await snapshot.ask("workers")
    ]


async def _matching(snapshot: Snapshot, statement: str, which: Filter, **values: Any) -> list[Row]:
    fitting = conditions(which)
    return await snapshot.rows(fitting.put_in(SQL[statement]), {**fitting.values, **values})


def _to_count(queue: str, state: str, hold: str | None, jobs: int) -> Count:
    return Count(queue=queue, state=State(state), hold=Hold(hold) if hold else None, jobs=jobs)


# --- glance -------------------------------------------------------------------------------------


async def glance(tx: Transaction, window: float, limit: int) -> Glance:
    """See the contract."""
    limit = max(0, limit)
    busy: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for worker, queue, jobs in await tx.ask("glance_busy"):
        busy[worker] += jobs
        running[queue] += jobs
    counts = [_to_count(*row) for row in await tx.ask("glance_counts")]
    counts += [_to_count(queue, State.RUNNING, None, jobs) for queue, jobs in running.items()]
    failing = [count.queue for count in counts if count.state is State.FAILED]
    failed = await tx.ask("glance_failed", {"queues": failing, "limit": limit})
    return Glance(
        now=tx.now,
        counts=tuple(counts),
        traffic=await _traffic(tx, tx.now - window),
        settings=await settings(tx),
        workers=tuple(await workers(tx)),
        busy=busy,
        running=tuple(to_jobs(await tx.ask("glance_running", {"limit": limit}))),
        failed=tuple(to_jobs(failed)),
    )


async def _traffic(tx: Transaction, since: float) -> tuple[Traffic, ...]:
    entered: Counter[str] = Counter(dict(await tx.ask("glance_entered", {"since": since})))
    rows = await tx.ask("glance_ended", {"since": since})
    ended = Counter({(queue, State(state)): jobs for queue, state, jobs in rows})
    return tuple(
        Traffic(
            queue=queue,
            entered=entered[queue],
            succeeded=ended[queue, State.SUCCEEDED],
            failed=ended[queue, State.FAILED],
            cancelled=ended[queue, State.CANCELLED],
        )
        for queue in sorted(entered.keys() | {queue for queue, _ in ended})
    )
