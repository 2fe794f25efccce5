"""What the memory engine reads: verbs that change nothing, each inside one step of the store.

A function with the name of a verb is that verb, and the contract says what it promises.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from penstock.core.job import Job
from penstock.engines.memory.store import NO_CELL, MemoryStore
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
    entry_before,
)


def held(store: MemoryStore, worker: str) -> list[Job]:
    store.leased(worker)
    jobs = (store.jobs[id] for id in store.queues.held_by[worker])
    return sorted(jobs, key=lambda job: job.order)


def get(store: MemoryStore, ids: Sequence[str]) -> list[Job | None]:
    return [store.jobs.get(id) for id in ids]


def find(store: MemoryStore, which: Filter, cursor: str | None, limit: int) -> Page:
    before = entry_before(cursor)
    if limit <= 0:
        return Page((), cursor)
    fitting = [job for job in store.matching(which) if store.entered[job.id] < before]
    page = fitting[::-1][:limit]
    is_last = len(fitting) <= limit
    return Page(tuple(page), None if is_last else str(store.entered[page[-1].id]))


def counts(store: MemoryStore, which: Filter) -> list[Count]:
    fitting = store.matching(which)
    numbers = Counter((job.queue, job.priority, job.state, job.hold) for job in fitting)
    return [
        Count(queue=queue, priority=priority, state=state, hold=hold, jobs=jobs)
        for (queue, priority, state, hold), jobs in numbers.items()
    ]


def running(store: MemoryStore) -> list[Running]:
    found: dict[tuple[str, str, str, int], list[Job]] = defaultdict(list)
    for job in (store.jobs[id] for ids in store.queues.running.values() for id in ids):
        found[job.worker or "", job.queue, job.task, job.priority].append(job)
    return [_running(what, jobs) for what, jobs in sorted(found.items())]


def _running(what: tuple[str, str, str, int], jobs: Sequence[Job]) -> Running:
    worker, queue, task, priority = what
    first = min(jobs, key=lambda job: (job.claimed_at or 0.0, job.seq))
    return Running(
        worker=worker,
        queue=queue,
        task=task,
        priority=priority,
        jobs=len(jobs),
        started=sum(job.started for job in jobs),
        first=first.id,
        since_at=first.claimed_at or 0.0,
    )


def queues(store: MemoryStore) -> dict[str, QueueSettings]:
    return dict(sorted(store.settings.items()))


def workers(store: MemoryStore) -> list[WorkerInfo]:
    return sorted(store.workers.values(), key=lambda info: (info.joined_at, info.id))


def cell(store: MemoryStore, name: str, now: float) -> Cell:
    return cell_at(now, *store.cells.get(name, NO_CELL))


def cells(store: MemoryStore, prefix: str, cursor: str | None, limit: int, now: float) -> CellPage:
    found = [
        (name, each)
        for name, stored in sorted(store.cells.items())
        if name.startswith(prefix) and (cursor is None or name > cursor)
        if (each := cell_at(now, *stored)).value is not None
    ]
    page = tuple(found[: max(0, limit)])
    return CellPage(page, page[-1][0] if page and len(found) > limit else None)
