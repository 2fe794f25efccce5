"""What the SQLite engine reads: the steps that change nothing, on one snapshot."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock.core.job import Hold, Job, State
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
    most_common,
)
from penstock.engines.sql_files import statements
from penstock.engines.sqlite.queues import SqliteOrder
from penstock.engines.sqlite.rows import Row, json_names, json_text, to_job, to_jobs
from penstock.errors import LeaseLost

_NO_LIMIT: Final = 1 << 31
_settings = msgspec.json.Decoder(QueueSettings)
_info = msgspec.json.Decoder(WorkerInfo)


class SqliteViews:
    """One store, seen through one connection at one instant."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.now = now
        self._run = connection.execute
        self._run_many = connection.executemany
        self._sql = statements("sqlite/steps.sql")

    @cached_property
    def _order(self) -> SqliteOrder:
        return SqliteOrder(self._run, self._sql)

    def held(self, worker: str) -> list[Job]:
        """See the contract."""
        self._check_lease(worker)
        jobs = to_jobs(self._run(self._sql["held_by"], (worker,)).fetchall())
        return sorted(jobs, key=lambda job: job.order)

    def look(self, ask: Ask) -> float | None:
        """See the contract."""
        if self._cancels(ask):
            return 0.0
        if ask.want <= 0:
            return None
        settings = self.settings()
        earliest: float | None = None
        for queue in ask.queues:
            if self._room(queue, settings) <= 0:
                continue
            line = self._head(ask, queue, 1, settings)
            find = self._order.gives_at if is_ordered(settings, queue) else self._gives_at
            instant = find(line)
            if instant is not None and instant <= self.now:
                return 0.0
            if instant is not None and (earliest is None or instant < earliest):
                earliest = instant
        return None if earliest is None else earliest - self.now

    def _gives_at(self, line: dict[str, Any]) -> float | None:
        """When a queue that has room could give or place a job; None: nobody knows."""
        if self._run(self._sql["head_of_many"], line).fetchone():
            return self.now
        # What waits unplaced in a queue that is not fair is for ``mend``, not for a claimer.
        if line["is_fair"] and self._run(self._sql["unplaced_fits"], line).fetchone():
            return self.now
        (instant,) = self._run(self._sql["next_due_fits"], line).fetchone()
        return None if instant is None else float(instant)

    # --- see -----------------------------------------------------------------------------------

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See the contract."""
        rows = self._run(self._sql["jobs"], (json_names(ids),)).fetchall()
        jobs = {job.id: job for job in to_jobs(rows)}
        return [jobs.get(id) for id in ids]

    def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        """See the contract."""
        before = entry_before(cursor)
        if limit <= 0:
            return Page((), cursor)
        conditions = {**where(which), "before": before, "limit": limit + 1}
        rows = self._run(self._sql["find"], conditions).fetchall()
        page = rows[:limit]
        return Page(tuple(to_jobs(page)), str(page[-1][0]) if len(rows) > limit else None)

    def count(self, which: Filter) -> int:
        """See the contract."""
        (jobs,) = self._run(self._sql["count"], where(which)).fetchone()
        return int(jobs)

    def counts(self) -> list[Count]:
        """See the contract."""
        return [
            Count(queue=queue, state=State(state), hold=Hold(hold) if hold else None, jobs=jobs)
            for queue, state, hold, jobs in self._run(self._sql["counts"])
        ]

    def hands(self) -> list[Hand]:
        """See the contract."""
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
            for worker, queue, task, priority, jobs, started, first, since_at in self._run(
                self._sql["hands"]
            )
        ]

    def standing(self, id: str) -> Standing:
        """See the contract."""
        job = self._job(id)
        row = self._run(self._sql["remembered"], (id, self.now)).fetchone()
        stands = Standing(now=self.now, job=job, remembered_until=None if row is None else row[0])
        if job is None:
            return stands
        settings = self.settings().get(job.queue, QueueSettings())
        stands = replace(stands, settings=settings)
        if not job.state.is_waiting:
            return stands
        ticket = {"priority": job.priority, "place": job.place, "seq": job.seq}
        line = {**ticket, "queue": job.queue, "now": self.now, "limit": LINE_LIMIT + 1}
        before: list[tuple[int, str | None]] = []
        if job.state is State.READY and job.hold is None:
            before = self._run(self._sql["ahead"], line).fetchall()
        blockers: list[tuple[str]] = []
        if settings.ordered:
            line = {**line, "id": id, "is_open": job.is_open, "limit": SOME}
            blockers = self._run(self._sql["blockers"], line).fetchall()
        return replace(
            stands,
            ahead=len(before),
            more_urgent=sum(priority < job.priority for priority, _ in before),
            keys=most_common(key for _, key in before),
            blockers=tuple(id for (id,) in blockers),
        )

    def queues(self) -> dict[str, QueueSettings]:
        """See the contract."""
        settings = self.settings()
        names = {name for (name,) in self._run(self._sql["queue_names"])} | settings.keys()
        return {name: settings.get(name, QueueSettings()) for name in sorted(names)}

    def leader(self) -> Term | None:
        """See the contract."""
        holder, epoch, until, ttl = self._run(self._sql["term"]).fetchone()
        left = min(until - self.now, ttl)
        return Term(holder=holder, epoch=epoch, left=left) if holder and left > 0 else None

    def cell(self, name: str) -> Cell:
        """See the contract."""
        row = self._run(self._sql["cell"], (name,)).fetchone()
        return Cell(None, 0) if row is None else Cell(*row)

    # --- what all steps share ------------------------------------------------------------------

    def settings(self) -> dict[str, QueueSettings]:
        """What was decided about queues; those without a decision are not in it."""
        return {name: _settings.decode(text) for name, text in self._run(self._sql["settings"])}

    def workers(self) -> list[WorkerInfo]:
        """Every worker that has a lease."""
        return [
            replace(_info.decode(info), beat=beat, joined_at=joined_at)
            for _, beat, joined_at, info in self._run(self._sql["workers"])
        ]

    def query(self, sql: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """Read something else, on the same snapshot."""
        return self._run(sql, values)

    def _job(self, id: str) -> Job | None:
        row = self._run(self._sql["job"], (id,)).fetchone()
        return None if row is None else to_job(row)

    def _has_lease(self, worker: str) -> bool:
        return self._run(self._sql["worker"], (worker,)).fetchone() is not None

    def _check_lease(self, worker: str) -> None:
        if not self._has_lease(worker):
            raise LeaseLost(worker)

    def _cancels(self, ask: Ask) -> list[str]:
        rows = self._run(self._sql["cancels"], (ask.worker,)).fetchall()
        return [id for (id,) in rows if id not in ask.told]

    def _due_in(self, statement: str, asked: Sequence[dict[str, Any]]) -> float | None:
        instants = [self._run(self._sql[statement], each).fetchone()[0] for each in asked]
        known = [instant for instant in instants if instant is not None]
        return max(0.0, min(known) - self.now) if known else None

    def _head(
        self, ask: Ask, queue: str, room: int, settings: dict[str, QueueSettings]
    ) -> dict[str, Any]:
        """The parameters of a look at one queue's line."""
        return {
            "queue": queue,
            "want": min(ask.want, room),
            "slots": ask.slots,
            "avoid": json_text(sorted(task for task in ask.avoid if "\0" not in task)),
            "least_urgent": ANY_PRIORITY if ask.least_urgent is None else ask.least_urgent,
            "is_fair": is_fair(settings, queue),
            "now": self.now,
        }

    def _room(self, queue: str, settings: dict[str, QueueSettings]) -> int:
        chosen = settings.get(queue)
        if chosen is None:
            return _NO_LIMIT
        if chosen.paused:
            return 0
        if chosen.most is None:
            return _NO_LIMIT
        (running,) = self._run(self._sql["running_in"], (queue,)).fetchone()
        return chosen.most - int(running)

    @cached_property
    def _known_tasks(self) -> frozenset[str]:
        """The tasks of all workers that have a lease: read once, however many jobs ask."""
        return frozenset(task for worker in self.workers() for task in worker.tasks)


def is_fair(settings: dict[str, QueueSettings], queue: str) -> bool:
    return queue in settings and settings[queue].fair


def is_ordered(settings: dict[str, QueueSettings], queue: str) -> bool:
    return queue in settings and settings[queue].ordered


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


# --- sqlite glance ------------------------------------------------------------------------------
#
# How an embedded store does at one instant: what ``glance`` counts, and what it picks out.


def glance(store: SqliteViews, window: float, limit: int) -> Glance:
    """See the contract."""
    return _Look(store).glance(window, max(0, limit))


class _Look:
    """One look at one snapshot."""

    def __init__(self, store: SqliteViews) -> None:
        self._store = store
        self._sql = statements("sqlite/glance.sql")

    def glance(self, window: float, limit: int) -> Glance:
        """See the contract."""
        running = list(self._rows("busy"))
        busy: Counter[str] = Counter()
        counts: Counter[tuple[str, str, str | None]] = Counter()
        for worker, queue, jobs in running:
            busy[worker] += jobs
            counts[queue, State.RUNNING, None] += jobs
        for queue, state, hold, jobs in self._rows("counts"):
            counts[queue, state, hold] = jobs
        return Glance(
            now=self._store.now,
            counts=tuple(
                Count(queue=queue, state=State(state), hold=Hold(hold) if hold else None, jobs=jobs)
                for (queue, state, hold), jobs in counts.items()
            ),
            traffic=tuple(self._traffic(self._store.now - window)),
            settings=self._store.settings(),
            workers=tuple(self._store.workers()),
            busy=busy,
            running=self._running(limit),
            failed=self._failed([queue for queue, state, _ in counts if state == "failed"], limit),
        )

    def _traffic(self, since: float) -> Iterator[Traffic]:
        entered: Counter[str] = Counter()
        for queue, at in self._rows("newest"):
            if at <= since:
                break
            entered[queue] += 1
        ended: Counter[tuple[str, str]] = Counter()
        for queue, state, jobs in self._rows("ended", since):
            ended[queue, state] = jobs
        for queue in sorted(entered.keys() | {queue for queue, _ in ended}):
            yield Traffic(
                queue=queue,
                entered=entered[queue],
                succeeded=ended[queue, State.SUCCEEDED],
                failed=ended[queue, State.FAILED],
                cancelled=ended[queue, State.CANCELLED],
            )

    def _running(self, limit: int) -> tuple[Job, ...]:
        jobs = self._jobs([entry for (entry,) in self._rows("running", limit)])
        return tuple(sorted(jobs, key=lambda job: (job.claimed_at or 0.0, job.seq)))

    def _failed(self, queues: Sequence[str], limit: int) -> tuple[Job, ...]:
        heads = [head for queue in queues for head in self._rows("failed", queue, limit)]
        jobs = self._jobs([entry for _, _, entry in sorted(heads, reverse=True)[:limit]])
        return tuple(sorted(jobs, key=lambda job: (job.finished_at or 0.0, job.seq), reverse=True))

    def _jobs(self, entries: Sequence[int]) -> list[Job]:
        return to_jobs(list(self._rows("jobs", json_text(entries))))

    def _rows(self, name: str, *values: object) -> Iterator[Row]:
        return self._store.query(self._sql[name], values)
