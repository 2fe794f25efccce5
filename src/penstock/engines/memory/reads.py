"""What the memory engine has and shows: the jobs in their lines, and the verbs that only look."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from penstock.core.job import Hold, Job, State
from penstock.engines.memory.lines import Line, MemoryKeys, MemoryPlaces
from penstock.engines.records import (
    ANY_PRIORITY,
    LINE_LIMIT,
    SOME,
    Ask,
    Count,
    Filter,
    Hand,
    Page,
    QueueSettings,
    Standing,
    WorkerInfo,
    entry_before,
    least_before,
    most_common,
)
from penstock.errors import LeaseLost

_NO_LIMIT = 1 << 31


class MemoryViews:
    """All jobs and what belongs to them."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.settings: dict[str, QueueSettings] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.ledger: dict[str, float] = {}
        self.keys = MemoryKeys()
        self.entered: dict[str, int] = {}
        self._signed: dict[str, tuple[int, str]] = {}
        self._tickets = 0
        self._entries = 0
        get = self.jobs.get
        self._lines: dict[str, Line[tuple[int, float, int]]] = defaultdict(
            partial(Line, _claim_key, get)
        )
        self._due: dict[str, Line[tuple[float, int]]] = defaultdict(partial(Line, _due_key, get))
        self._expiring: Line[tuple[float, int]] = Line(_expiry_key, get)
        self._unplaced: dict[str, dict[str, None]] = defaultdict(dict)
        self._running: dict[str, set[str]] = defaultdict(set)
        self._held_by: dict[str, set[str]] = defaultdict(set)
        self._open: dict[str, set[str]] = defaultdict(set)
        self._places = MemoryPlaces()
        self.changes = 0

    def held(self, worker: str) -> list[Job]:
        """See the contract."""
        self._leased(worker)
        return sorted((self.jobs[id] for id in self._held_by[worker]), key=lambda job: job.order)

    def look(self, ask: Ask, now: float) -> float | None:
        """See the contract."""
        if self._cancels(ask):
            return 0.0
        if ask.want <= 0:
            return None
        due_in: float | None = None
        for queue in ask.queues:
            if self._room(queue) <= 0:
                continue
            if self._line(ask, queue, 1, now) or self._could_place(ask, queue, now):
                return 0.0
            for instant in self._instants(ask, queue, now):
                due_in = earliest(due_in, max(0.0, instant - now))
        return due_in

    def _could_place(self, ask: Ask, queue: str, now: float) -> bool:
        """A job of this fair queue could be placed now, and would then be in line."""
        if not self._is_fair(queue):
            return False
        blockers = {job.id for job in self._blockers(queue, now)}
        return any(
            fits(ask, now, self.jobs[id])
            for id in self._unplaced[queue]
            if not blockers or id in blockers
        )

    def _instants(self, ask: Ask, queue: str, now: float) -> Iterator[float]:
        """When this queue, which has nothing to give, may have something."""
        blockers = self._blockers(queue, now)
        for job in blockers:
            if _due_key(job) is not None and fits(ask, now, job):
                yield due_at(job)
            if job.expires_at is not None:
                yield job.expires_at
        if not blockers:
            ask = self._before_the_next(ask, queue, now)
            yield from (due_at(job) for job in self._due[queue].heads(1, partial(fits, ask, now)))

    def _before_the_next(self, ask: Ask, queue: str, now: float) -> Ask:
        """Ask only for what would come before the job that is next in an ordered queue."""
        if not self._is_ordered(queue):
            return ask
        wanted = ANY_PRIORITY if ask.least_urgent is None else ask.least_urgent
        for job in self._lines[queue].heads(1, partial(has_time, now)):
            least = least_before(job.priority, is_fair=self._is_fair(queue))
            return replace(ask, least_urgent=min(least, wanted))
        return ask

    # --- see -----------------------------------------------------------------------------------

    def matching(self, which: Filter) -> Iterator[Job]:
        """Every job that fits, in the order of entry."""
        return (job for job in self.jobs.values() if which.fits(job))

    def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        """See the contract."""
        before = entry_before(cursor)
        if limit <= 0:
            return Page((), cursor)
        fitting = [job for job in self.matching(which) if self.entered[job.id] < before]
        page = fitting[::-1][:limit]
        is_last = len(fitting) <= limit
        return Page(tuple(page), None if is_last else str(self.entered[page[-1].id]))

    def counts(self) -> list[Count]:
        """See the contract."""
        numbers = Counter((job.queue, job.state, job.hold) for job in self.jobs.values())
        return [
            Count(queue=queue, state=state, hold=hold, jobs=jobs)
            for (queue, state, hold), jobs in numbers.items()
        ]

    def hands(self) -> list[Hand]:
        """See the contract."""
        found: dict[tuple[str, str, str, int], list[Job]] = defaultdict(list)
        for job in (self.jobs[id] for ids in self._running.values() for id in ids):
            found[job.worker or "", job.queue, job.task, job.priority].append(job)
        return [to_hand(what, jobs) for what, jobs in sorted(found.items())]

    def standing(self, id: str, now: float) -> Standing:
        """See the contract."""
        job = self.jobs.get(id)
        until = self.ledger.get(id)
        before: list[Job] = []
        blockers: list[Job] = []
        if job is not None and job.state.is_waiting:
            if _claim_key(job) is not None:
                before = self._lines[job.queue].heads(
                    LINE_LIMIT + 1,
                    partial(has_time, now),
                    lambda each: each.order < job.order,
                )
            others = [each for each in self._blockers(job.queue, now) if each.id != id]
            others.sort(key=lambda each: each.order)
            if job.is_open:
                others = [each for each in others if _claim_key(each) and each.order < job.order]
            blockers = others[:SOME]
        return Standing(
            now=now,
            job=job,
            settings=self.settings.get(job.queue, QueueSettings()) if job else QueueSettings(),
            remembered_until=until if until is not None and until > now else None,
            ahead=len(before),
            more_urgent=sum(job is not None and each.priority < job.priority for each in before),
            keys=most_common(each.key for each in before),
            blockers=tuple(each.id for each in blockers),
        )

    def queues(self) -> dict[str, QueueSettings]:
        """See the contract."""
        names = {job.queue for job in self.jobs.values()} | self.settings.keys()
        return {name: self.settings.get(name, QueueSettings()) for name in sorted(names)}

    # --- what all steps share ------------------------------------------------------------------

    def _leased(self, worker: str) -> WorkerInfo:
        try:
            return self.workers[worker]
        except KeyError:
            raise LeaseLost(worker) from None

    def _cancels(self, ask: Ask) -> list[str]:
        held = self._held_by.get(ask.worker, ())
        asked = (id for id in held if self.jobs[id].cancel_reason is not None)
        return sorted(id for id in asked if id not in ask.told)

    def _due_in(self, queues: Iterable[str], now: float) -> float | None:
        due_in: float | None = None
        for queue in queues:
            job = self._due[queue].first()
            if job is not None:
                due_in = earliest(due_in, max(0.0, due_at(job) - now))
        return due_in

    def _room(self, queue: str) -> int:
        settings = self.settings.get(queue)
        if settings is None:
            return _NO_LIMIT
        if settings.paused:
            return 0
        if settings.most is None:
            return _NO_LIMIT
        return settings.most - len(self._running[queue])

    def _line(self, ask: Ask, queue: str, count: int, now: float) -> list[Job]:
        """The first jobs of a queue that this worker could have now, at most ``count``."""
        if self._is_ordered(queue):
            return self._next(ask, queue, now)
        least = ask.least_urgent
        is_within = None if least is None else lambda job: job.priority <= least
        return self._lines[queue].heads(count, partial(fits, ask, now), is_within)

    def _next(self, ask: Ask, queue: str, now: float) -> list[Job]:
        """The next job of an ordered queue, if this worker could have it: nobody is passed over
        but by those that are open already.
        """
        if blockers := self._blockers(queue, now):
            ready = [job for job in blockers if _claim_key(job) and fits(ask, now, job)]
            return sorted(ready, key=lambda job: job.order)[:1]
        first = self._lines[queue].heads(1, partial(has_time, now))
        return [job for job in first if fits(ask, now, job)]

    def _blockers(self, queue: str, now: float) -> list[Job]:
        """Jobs of an ordered queue that are open and wait: until they have ended no other starts.

        One that has expired runs no more and blocks nobody, whoever writes that down.
        """
        if not self._is_ordered(queue):
            return []
        waiting = (self.jobs[id] for id in self._open[queue])
        return [job for job in waiting if job.expires_at is None or job.expires_at > now]

    def _is_ordered(self, queue: str) -> bool:
        return queue in self.settings and self.settings[queue].ordered

    def _is_fair(self, queue: str) -> bool:
        return queue in self.settings and self.settings[queue].fair

    def _is_known(self, task: str) -> bool:
        return any(task in worker.tasks for worker in self.workers.values())

    def _has_cause(self, job: Job) -> bool:
        """A hold is justified while its instant is to come or its cause still stands."""
        if job.hold_until is not None:
            return True
        match job.hold:
            case Hold.UNPLACED:
                return self._is_fair(job.queue)
            case Hold.UNKNOWN_TASK:
                return not self._is_known(job.task)
            case _:
                return False

    def _needs_key(self, id: str, key: str) -> bool:
        job = self.jobs.get(id)
        if job is None or job.unique != key:
            return False
        if job.unique_until == "start":
            return job.state.is_waiting
        return not job.state.is_final


def fits(ask: Ask, now: float, job: Job) -> bool:
    """This worker could run the job as soon as it is due, or let it wait in its hands.

    What is less urgent than it wants and falls due later fits as well: who looks for the next
    instant would have to read all of it, and only looks once more.
    """
    return (
        (job.expires_at is None or has_time(now, job))
        and job.task not in ask.avoid
        and (ask.slots > 0 or not job.at_most_once)
        and (ask.least_urgent is None or job.priority <= ask.least_urgent or due_at(job) > now)
    )


def has_time(now: float, job: Job) -> bool:
    """The job does not expire before it could start."""
    return job.expires_at is None or job.expires_at > max(now, due_at(job))


def _claim_key(job: Job) -> tuple[int, float, int] | None:
    return job.order if job.state is State.READY and job.hold is None else None


def _due_key(job: Job) -> tuple[float, int] | None:
    if job.state is State.SCHEDULED or (job.state is State.READY and job.hold_until is not None):
        return due_at(job), job.seq
    return None


def due_at(job: Job) -> float:
    at = job.run_at if job.state is State.SCHEDULED else job.hold_until
    return at if at is not None else 0.0


def _expiry_key(job: Job) -> tuple[float, int] | None:
    if job.expires_at is None or not job.state.is_waiting:
        return None
    return job.expires_at, job.seq


def to_hand(what: tuple[str, str, str, int], jobs: Sequence[Job]) -> Hand:
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


def earliest(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
