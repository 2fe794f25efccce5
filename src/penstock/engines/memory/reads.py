"""What the memory engine reads: verbs that change nothing, each inside one step of the store.

A function with the name of a verb is that verb, and the contract says what it promises.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile

from penstock.core.job import Job, State
from penstock.engines.memory.queues import claim_key, earliest, has_time
from penstock.engines.memory.store import MemoryStore
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


def held(store: MemoryStore, worker: str) -> list[Job]:
    store.leased(worker)
    jobs = (store.jobs[id] for id in store.queues.held_by[worker])
    return sorted(jobs, key=lambda job: job.order)


def look(store: MemoryStore, ask: Ask, now: float) -> float | None:
    if store.cancels(ask):
        return 0.0
    if ask.want <= 0:
        return None
    queues = store.queues
    instants: list[float] = []
    for queue in ask.queues:
        if queues.room(queue) > 0:
            if queues.first(ask, queue, 1, now) or queues.could_place(ask, queue, now):
                return 0.0
            instants += queues.instants(ask, queue, now)
    return earliest(instant - now for instant in instants)


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


def count(store: MemoryStore, which: Filter) -> int:
    return sum(1 for _ in store.matching(which))


def counts(store: MemoryStore) -> list[Count]:
    numbers = Counter((job.queue, job.state, job.hold) for job in store.jobs.values())
    return [
        Count(queue=queue, state=state, hold=hold, jobs=jobs)
        for (queue, state, hold), jobs in numbers.items()
    ]


def hands(store: MemoryStore) -> list[Hand]:
    found: dict[tuple[str, str, str, int], list[Job]] = defaultdict(list)
    for job in (store.jobs[id] for ids in store.queues.running.values() for id in ids):
        found[job.worker or "", job.queue, job.task, job.priority].append(job)
    return [_hand(what, jobs) for what, jobs in sorted(found.items())]


def _hand(what: tuple[str, str, str, int], jobs: Sequence[Job]) -> Hand:
    worker, queue, task, priority = what
    first = min(jobs, key=lambda job: (job.claimed_at or 0.0, job.seq))
    return Hand(
        worker=worker,
        queue=queue,
        task=task,
        priority=priority,
        jobs=len(jobs),
        started=sum(job.started for job in jobs),
        first=first.id,
        since_at=first.claimed_at or 0.0,
    )


def line(store: MemoryStore, id: str, now: float) -> Standing:
    job = store.jobs.get(id)
    until = store.ledger.get(id)
    before: list[Job] = []
    blockers: list[Job] = []
    if job is not None and job.state.is_waiting:
        if claim_key(job) is not None:
            before = store.queues.ready[job.queue].heads(
                LINE_LIMIT + 1,
                partial(has_time, now),
                lambda each: each.order < job.order,
            )
        blockers = [each for each in store.queues.blockers(job.queue, now) if each.id != id]
        blockers.sort(key=lambda each: each.order)
        if job.is_open:
            blockers = [each for each in blockers if claim_key(each) and each.order < job.order]
    return Standing(
        now=now,
        job=job,
        settings=store.settings.get(job.queue, QueueSettings()) if job else QueueSettings(),
        remembered_until=until if until is not None and until > now else None,
        ahead=len(before),
        more_urgent=sum(job is not None and each.priority < job.priority for each in before),
        keys=most_common(each.key for each in before),
        blockers=tuple(each.id for each in blockers[:SOME]),
    )


def queues(store: MemoryStore) -> dict[str, QueueSettings]:
    names = {job.queue for job in store.jobs.values()} | store.settings.keys()
    return {name: store.settings.get(name, QueueSettings()) for name in sorted(names)}


def workers(store: MemoryStore) -> list[WorkerInfo]:
    return sorted(store.workers.values(), key=lambda info: (info.joined_at, info.id))


def leader(store: MemoryStore, now: float) -> Term | None:
    holder, epoch, until, given = store.term
    left = min(until - now, given)
    return Term(holder=holder, epoch=epoch, left=left) if holder and left > 0 else None


def cell(store: MemoryStore, name: str) -> Cell:
    return store.cells.get(name, Cell(None, 0))


# --- glance -------------------------------------------------------------------------------------


def glance(store: MemoryStore, window: float, limit: int, now: float) -> Glance:
    running = [job for job in store.jobs.values() if job.state is State.RUNNING]
    failed = [job for job in store.jobs.values() if job.state is State.FAILED]
    running.sort(key=lambda job: (job.claimed_at or 0.0, job.seq))
    failed.sort(key=lambda job: (job.finished_at or 0.0, job.seq), reverse=True)
    over = (State.SUCCEEDED, State.CANCELLED)
    return Glance(
        now=now,
        counts=tuple(count for count in counts(store) if count.state not in over),
        traffic=tuple(_traffic(store, now - window)),
        settings=dict(store.settings),
        workers=tuple(workers(store)),
        busy=Counter(job.worker for job in running if job.worker),
        running=tuple(running[: max(0, limit)]),
        failed=tuple(failed[: max(0, limit)]),
    )


def _traffic(store: MemoryStore, since: float) -> Iterator[Traffic]:
    jobs = store.jobs.values()
    newest = takewhile(lambda job: job.enqueued_at > since, reversed(jobs))
    entered = Counter(job.queue for job in newest)
    ended = Counter(
        (job.queue, job.state)
        for job in jobs
        if job.finished_at is not None and job.finished_at > since
    )
    for queue in sorted(entered.keys() | {queue for queue, _ in ended}):
        yield Traffic(
            queue=queue,
            entered=entered[queue],
            succeeded=ended[queue, State.SUCCEEDED],
            failed=ended[queue, State.FAILED],
            cancelled=ended[queue, State.CANCELLED],
        )
