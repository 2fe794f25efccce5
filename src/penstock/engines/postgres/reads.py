"""What the PostgreSQL engine reads: the steps that change nothing, on one snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from penstock.core.job import FINAL, Hold, Job, State
from penstock.engines.postgres.bounds import RANGES, Ranges, whole
from penstock.engines.postgres.rows import Row, text, texts, to_jobs
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
from penstock.engines.sql_files import statements
from penstock.errors import LeaseLost

# --- filters ------------------------------------------------------------------------------------
#
# A filter as SQL: the conditions it sets, in the words of ``views.sql``, and their values.


class Conditions(msgspec.Struct, frozen=True):
    """Which rows of each table are meant."""

    live: str
    history: str
    values: Mapping[str, Any]

    def put_in(self, sql: str) -> str:
        """Return a statement with the conditions where it has ``{live}`` and ``{history}``."""
        return sql.replace("{live}", self.live).replace("{history}", self.history)


def conditions(which: Filter) -> Conditions:
    """Say in SQL which jobs are meant; a table that can have none of them is not read."""
    sql = statements("postgres/views.sql")
    values = _values(which)
    fits = " AND ".join(sql[f"if_{each}"] for each in values) or sql["if_any"]
    states = set(which.states)
    return Conditions(
        live=sql["if_none"] if states and states <= FINAL else fits,
        history=sql["if_none"] if states and states.isdisjoint(FINAL) else fits,
        values=values,
    )


def _values(which: Filter) -> dict[str, Any]:
    """What is asked for, by the condition that asks."""
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


# --- views --------------------------------------------------------------------------------------


_settings = msgspec.json.Decoder(QueueSettings)
_info = msgspec.json.Decoder(WorkerInfo)


class Snapshot(Protocol):
    """One transaction on one connection, all of which sees the store at one instant."""

    @property
    def now(self) -> float:
        """The store's instant."""

    async def rows(
        self, sql: str, values: Mapping[str, object] | Sequence[object] = ()
    ) -> list[Row]:
        """Run one statement; return what it gives."""


class PostgresViews:
    """One store, seen in one transaction."""

    def __init__(self, turn: Snapshot) -> None:
        self.turn = turn
        self._sql = statements("postgres/views.sql")

    async def held(self, worker: str) -> list[Job]:
        """See the contract."""
        if not await self._rows("worker", worker=text(worker)):
            raise LeaseLost(worker)
        return to_jobs(await self._rows("held_by", worker=worker))

    async def look(self, ask: Ask, ranges: Ranges | None = None) -> float | None:
        """See the contract. With ``ranges`` only these parts of the lines are looked at."""
        queues = texts(ask.queues) if ask.want > 0 else []
        ((due_in,),) = await self._rows(
            "look",
            **dict(zip(RANGES, (ranges or whole(queues)).arrays, strict=True)),
            worker=text(ask.worker),
            told=texts(ask.told),
            queues=queues,
            avoid=texts(ask.avoid),
            lowered=None if ranges is None else ranges.lowered,
            has_slot=ask.slots > 0,
            least_urgent=ANY_PRIORITY if ask.least_urgent is None else ask.least_urgent,
        )
        return None if due_in is None else float(due_in)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See the contract."""
        jobs = {job.id: job for job in to_jobs(await self._rows("get", ids=texts(ids)))}
        return [jobs.get(id) for id in ids]

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        """See the contract."""
        before = entry_before(cursor)
        if limit <= 0:
            return Page((), cursor)
        statement = "find_ids" if which.ids else "find"
        rows = await self._matching(statement, which, before=before, limit=limit + 1)
        page = rows[:limit]
        return Page(tuple(to_jobs(page)), str(page[-1][0]) if len(rows) > limit else None)

    async def count(self, which: Filter) -> int:
        """See the contract."""
        ((jobs,),) = await self._matching("count", which)
        return int(jobs)

    async def counts(self) -> list[Count]:
        """See the contract."""
        return [to_count(*row) for row in await self._rows("counts")]

    async def hands(self) -> list[Hand]:
        """See the contract."""
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
            for worker, queue, task, priority, jobs, started, first, since_at in await self._rows(
                "hands"
            )
        ]

    async def standing(self, id: str) -> Standing:
        """See the contract."""
        now = self.turn.now
        (job,) = await self.get([id])
        ledger = await self._rows("remembered", id=text(id), now=now)
        stands = Standing(now=now, job=job, remembered_until=ledger[0][0] if ledger else None)
        if job is None:
            return stands
        settings = (await self.settings()).get(job.queue, QueueSettings())
        stands = replace(stands, settings=settings)
        if not job.state.is_waiting:
            return stands
        ticket = {"priority": job.priority, "place": job.place, "seq": job.seq}
        line = {**ticket, "queue": job.queue, "now": now, "some": SOME}
        if job.state is State.READY and job.hold is None:
            before = await self._rows("ahead", **line, most=LINE_LIMIT + 1)
            stands = replace(
                stands,
                ahead=before[0][2] if before else 0,
                more_urgent=before[0][3] if before else 0,
                keys=tuple((key, jobs) for key, jobs, *_ in before),
            )
        if settings.ordered:
            blockers = await self._rows("blockers", **line, id=id, is_open=job.is_open)
            stands = replace(stands, blockers=tuple(id for (id,) in blockers))
        return stands

    async def queues(self) -> dict[str, QueueSettings]:
        """See the contract."""
        settings = await self.settings()
        found = {queue for (queue,) in await self._rows("queue_names")} | settings.keys()
        return {queue: settings.get(queue, QueueSettings()) for queue in sorted(found)}

    async def leader(self) -> Term | None:
        """See the contract."""
        ((holder, epoch, until, ttl),) = await self._rows("term")
        left = min(until - self.turn.now, ttl)
        return Term(holder=holder, epoch=epoch, left=left) if holder and left > 0 else None

    async def cell(self, name: str) -> Cell:
        """See the contract."""
        rows = await self._rows("cell", name=text(name))
        return Cell(*rows[0]) if rows else Cell(None, 0)

    # --- what all steps share ------------------------------------------------------------------

    async def settings(self) -> dict[str, QueueSettings]:
        """What was decided about queues; those without a decision are not in it."""
        return {queue: _settings.decode(text) for queue, text in await self._rows("settings")}

    async def workers(self) -> list[WorkerInfo]:
        """Every worker that has a lease."""
        return [
            replace(_info.decode(info), beat=beat, joined_at=joined_at)
            for beat, joined_at, info in await self._rows("workers")
        ]

    async def _matching(self, statement: str, which: Filter, **values: Any) -> list[Row]:
        fitting = conditions(which)
        return await self.turn.rows(
            fitting.put_in(self._sql[statement]), {**fitting.values, **values}
        )

    async def _rows(self, statement: str, **values: Any) -> list[Row]:
        return await self.turn.rows(self._sql[statement], values)


def to_count(queue: str, state: str, hold: str | None, jobs: int) -> Count:
    """Read a row that says how many jobs of a queue are in a state, under a hold."""
    return Count(queue=queue, state=State(state), hold=Hold(hold) if hold else None, jobs=jobs)


# --- glance -------------------------------------------------------------------------------------
#
# How a PostgreSQL store does at one instant: what ``glance`` counts, and what it picks out.


async def glance(views: PostgresViews, window: float, limit: int) -> Glance:
    """See the contract."""
    return await _Look(views).glance(window, max(0, limit))


class _Look:
    """One look at one snapshot."""

    def __init__(self, views: PostgresViews) -> None:
        self._views = views
        self._sql = statements("postgres/glance.sql")

    async def glance(self, window: float, limit: int) -> Glance:
        """See the contract."""
        busy: Counter[str] = Counter()
        running: Counter[str] = Counter()
        for worker, queue, jobs in await self._rows("busy"):
            busy[worker] += jobs
            running[queue] += jobs
        counts = [to_count(*row) for row in await self._rows("counts")]
        counts += [to_count(queue, State.RUNNING, None, jobs) for queue, jobs in running.items()]
        failing = [count.queue for count in counts if count.state is State.FAILED]
        now = self._views.turn.now
        return Glance(
            now=now,
            counts=tuple(counts),
            traffic=await self._traffic(now - window),
            settings=await self._views.settings(),
            workers=tuple(await self._views.workers()),
            busy=busy,
            running=tuple(to_jobs(await self._rows("running", limit=limit))),
            failed=tuple(to_jobs(await self._rows("failed", queues=failing, limit=limit))),
        )

    async def _traffic(self, since: float) -> tuple[Traffic, ...]:
        entered: Counter[str] = Counter(dict(await self._rows("entered", since=since)))
        rows = await self._rows("ended", since=since)
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

    async def _rows(self, statement: str, **values: Any) -> list[Row]:
        return await self._views.turn.rows(self._sql[statement], values)
