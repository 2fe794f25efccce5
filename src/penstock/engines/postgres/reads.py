"""What the PostgreSQL engine reads: the steps that change nothing, on one snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.job import FINAL, Job, State
from penstock.engines.postgres.rows import Row, text, texts, to_jobs
from penstock.engines.postgres.transaction import SQL, Snapshot, Transaction
from penstock.engines.records import (
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
    return Conditions(
        live=_fits(which, [state for state in which.states if state not in FINAL], "live"),
        history=_fits(which, [state for state in which.states if state in FINAL], "history"),
        values=_values(which),
    )


def _fits(which: Filter, states: Sequence[State], table: str) -> str:
    """The conditions on one table. Of the states only those that it can have are named, so that a
    plan may use an index of one state.
    """
    is_impossible = bool(which.states) and not states
    if table == "live":
        is_impossible |= which.finished_since is not None
    else:
        # What has ended is held by nothing.
        is_impossible |= which.is_open or bool(which.workers) or bool(which.holds)
    if is_impossible:
        return SQL["if_none"]
    names = [name for name in _values(which) if not name.endswith("_states")]
    if states:
        names.append(f"{table}_states")
    if which.is_open:
        names.append("open")
    tests = [SQL[f"if_{name}"] for name in names]
    if which.holds:
        # Not as a value: of one that is not known a plan thinks that many jobs have it.
        kinds = ", ".join(f"'{hold.value}'" for hold in which.holds)
        tests.append(SQL["if_holds"].format(kinds=kinds))
    return " AND ".join(tests) or SQL["if_any"]


def _values(which: Filter) -> dict[str, Any]:
    lists = ("ids", "workers", "queues", "tasks", "keys")
    asked = {name: getattr(which, name) for name in lists}
    values: dict[str, Any] = {each: texts(given) for each, given in asked.items() if given}
    if which.states:
        values["live_states"] = [state.value for state in which.states if state not in FINAL]
        values["history_states"] = [state.value for state in which.states if state in FINAL]
    if which.tag is not None:
        values["tag"] = text(which.tag)
    if which.correlation_id is not None:
        values["correlation_id"] = text(which.correlation_id)
    for name in ("since", "until", "finished_since", "tickets_below"):
        if (value := getattr(which, name)) is not None:
            values[name] = value
    return values


# --- jobs, queues and workers -------------------------------------------------------------------

_settings = msgspec.json.Decoder(QueueSettings)
_info = msgspec.json.Decoder(WorkerInfo)


async def held(tx: Transaction, worker: str) -> list[Job]:
    """See the contract."""
    if not await tx.ask("worker", {"worker": text(worker)}):
        raise LeaseLost(worker)
    return to_jobs(await tx.ask("held_by", {"worker": worker}))


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


async def counts(snapshot: Snapshot, which: Filter) -> list[Count]:
    """See the contract."""
    return [count_of(*row) for row in await _matching(snapshot, "counts", which)]


async def running(snapshot: Snapshot) -> list[Running]:
    """See the contract."""
    rows = await snapshot.ask("running")
    return [
        Running(
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


async def queues(snapshot: Snapshot) -> dict[str, QueueSettings]:
    """See the contract."""
    rows = await snapshot.ask("settings")
    return {queue: _settings.decode(said) for queue, said in sorted(rows)}


async def cell(snapshot: Snapshot, name: str) -> Cell:
    """See the contract."""
    ((now, *stored),) = await snapshot.ask("cell", {"name": text(name)})
    return cell_at(now, *stored)


async def cells(snapshot: Snapshot, prefix: str, cursor: str | None, limit: int) -> CellPage:
    """See the contract."""
    limit = max(0, limit)
    values = {"prefix": text(prefix), "after": text(cursor or ""), "limit": limit + 1}
    rows = await snapshot.ask("cells", {**values, "is_first": cursor is None})
    page = tuple((name, cell_at(now, *stored)) for name, now, *stored in rows[:limit])
    return CellPage(page, page[-1][0] if page and len(rows) > limit else None)


async def workers(snapshot: Snapshot) -> list[WorkerInfo]:
    """Every worker that has a lease."""
    return [
        replace(_info.decode(info), beat=beat, joined_at=joined_at)
        for beat, joined_at, info in await snapshot.ask("workers")
    ]


async def _matching(snapshot: Snapshot, statement: str, which: Filter, **values: Any) -> list[Row]:
    fitting = conditions(which)
    return await snapshot.rows(fitting.put_in(SQL[statement]), {**fitting.values, **values})
