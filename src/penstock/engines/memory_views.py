"""What the memory engine has and shows: the jobs in their lines, and the verbs that only look."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from penstock.core.job import Hold, Job, State
from penstock.engines.memory_keys import MemoryKeys
from penstock.engines.memory_lines import Line
from penstock.engines.memory_places import MemoryPlaces
from penstock.engines.records import (
    Ask,
    Count,
    Filter,
    Page,
    QueueSettings,
    WorkerInfo,
    entry_before,
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
        self._places = MemoryPlaces()
        self.changes = 0

    def held(self, worker: str) -> list[Job]:
        """See the contract."""
        self._leased(worker)
        return sorted((self.jobs[id] for id in self._held_by[worker]), key=lambda job: job.order)

    def look(self, ask: Ask, now: float) -> float | None:
        """See the contract."""
        if next(self._cancels(ask), None) is not None:
            return 0.0
        if ask.want <= 0:
            return None
        due_in: float | None = None
        for queue in ask.queues:
            if self._room(queue) <= 0:
                continue
            if self._is_fair(queue) and any(
                fits(ask, now, self.jobs[id]) for id in self._unplaced[queue]
            ):
                return 0.0
            if self._lines[queue].heads(1, partial(fits, ask, now)):
                return 0.0
            for job in self._due[queue].heads(1, partial(fits, ask, now)):
                due_in = earliest(due_in, max(0.0, due_at(job) - now))
        return due_in

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

    def loads(self, queues: Sequence[str]) -> dict[str, int]:
        """See the contract."""
        open_jobs = Counter(job.queue for job in self.jobs.values() if not job.state.is_final)
        return {queue: open_jobs[queue] for queue in queues}

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

    def _cancels(self, ask: Ask) -> Iterator[str]:
        for id in sorted(self._held_by.get(ask.worker, ())):
            if self.jobs[id].cancel_reason is not None and id not in ask.told:
                yield id

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
        if settings.max_running is None:
            return _NO_LIMIT
        return settings.max_running - len(self._running[queue])

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
    """This worker could run the job as soon as it is due, or let it wait in its hands."""
    has_time = job.expires_at is None or job.expires_at > max(now, due_at(job))
    return has_time and job.task not in ask.avoid and (ask.slots > 0 or not job.at_most_once)


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


def earliest(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
