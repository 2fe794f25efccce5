"""The queues of a memory store: which job stands where, and which one a worker could have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from penstock.core.job import Job, State
from penstock.engines.memory.key_lines import KeyLines, line_key
from penstock.engines.memory.lines import JobLine
from penstock.engines.records import Ask, QueueSettings

_NO_LIMIT = 1 << 31


class MemoryQueues:
    """All jobs of a store in their lines, and what was decided about queues."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.settings: dict[str, QueueSettings] = {}
        self.running: dict[str, set[str]] = defaultdict(set)
        self.held_by: dict[str, set[str]] = defaultdict(set)
        get = self.jobs.get
        self.ready: dict[str, JobLine[tuple[int, int]]]
        self.ready = defaultdict(partial(JobLine, claim_key, get))
        self.key_lines: dict[str, KeyLines]
        self.key_lines = defaultdict(lambda: KeyLines(lambda: JobLine(_ticket, get)))
        self.running_keys: Counter[tuple[str, str]] = Counter()
        """How many jobs of a queue and key run."""
        self.due: dict[str, JobLine[tuple[float, int, str]]]
        self.due = defaultdict(partial(JobLine, _due_key, get))
        self.expiring: JobLine[tuple[float, int]] = JobLine(_expiry_key, get)
        self._open: dict[str, set[str]] = defaultdict(set)

    def put(self, job: Job) -> None:
        """Store a job and stand it in the lines it belongs to. The only way in."""
        old = self.jobs.get(job.id)
        if old is not None:
            self._unlist(old)
        self.jobs[job.id] = job
        if job.state is State.RUNNING:
            self.running[job.queue].add(job.id)
            self.held_by[job.worker or ""].add(job.id)
            self.running_keys[job.queue, job.key or ""] += 1
        if claim_key(job) is not None:
            self.ready[job.queue].add(job)
            self.key_lines[job.queue].enter(job)
        if job.state.is_waiting:
            self.due[job.queue].add(job)
            self.expiring.add(job)
            if job.claimed_at is not None:
                self._open[job.queue].add(job.id)

    def drop(self, job: Job) -> None:
        """Delete a job."""
        self._unlist(job)
        del self.jobs[job.id]

    def _unlist(self, job: Job) -> None:
        if job.state is State.RUNNING:
            self.running[job.queue].discard(job.id)
            self.held_by[job.worker or ""].discard(job.id)
            self.running_keys[job.queue, job.key or ""] -= 1
            self.key_lines[job.queue].note_key(job.key or "")
            return
        if claim_key(job) is not None:
            self.key_lines[job.queue].note(line_key(job))
        if job.claimed_at is not None:
            self._open[job.queue].discard(job.id)

    # --- what a worker could have --------------------------------------------------------------

    def is_ordered(self, queue: str) -> bool:
        """The queue runs one job at a time, in order."""
        return queue in self.settings and self.settings[queue].ordered

    def shares(self, queue: str) -> KeyShares | None:
        """What the keys of a queue may have, if they take turns; None: they do not."""
        settings = self.settings.get(queue)
        if settings is None or not settings.is_keyed:
            return None
        return KeyShares(settings, partial(self._running_of, queue))

    def _running_of(self, queue: str, key: str) -> int:
        return self.running_keys[queue, key]

    def room(self, queue: str) -> int:
        """How many more jobs of a queue may run now."""
        settings = self.settings.get(queue)
        if settings is None:
            return _NO_LIMIT
        if settings.paused:
            return 0
        if settings.most is None:
            return _NO_LIMIT
        return settings.most - len(self.running[queue])

    def first(self, ask: Ask, queue: str, count: int, now: float) -> list[Job]:
        """The first jobs of a queue that this worker could have now, at most ``count``."""
        if self.is_ordered(queue):
            return self.next_in_order(ask, queue, now)
        return self._heads(queue, count, partial(fits, ask, now), ask.least_urgent)

    def _heads(
        self, queue: str, count: int, fits: Callable[[Job], bool], least_urgent: int | None = None
    ) -> list[Job]:
        """The first jobs of a queue that fit, by their tickets or by their key lines."""
        is_within = None if least_urgent is None else lambda job: job.priority <= least_urgent
        shares = self.shares(queue)
        if shares is None:
            return self.ready[queue].heads(count, fits, is_within)
        lines = self.key_lines[queue]
        return lines.next_jobs(count, lambda line, most: line.heads(most, fits, is_within), shares)

    def next_in_order(self, ask: Ask, queue: str, now: float) -> list[Job]:
        """The next job of an ordered queue, if this worker could have it: no job is passed over
        but by those that are open already.
        """
        if blockers := self.blockers(queue, now):
            ready = [job for job in blockers if claim_key(job) and fits(ask, now, job)]
            return sorted(ready, key=lambda job: job.order)[:1]
        first = self._heads(queue, 1, partial(has_time, now))
        return [job for job in first if fits(ask, now, job)]

    def blockers(self, queue: str, now: float) -> list[Job]:
        """Jobs of an ordered queue that are open and wait: until they have ended no other starts.

        One that has expired runs no more and blocks no other, even before that is written down.
        """
        if not self.is_ordered(queue):
            return []
        waiting = (self.jobs[id] for id in self._open[queue])
        return [job for job in waiting if job.expires_at is None or job.expires_at > now]

    # --- when ----------------------------------------------------------------------------------

    def due_in(self, queues: Iterable[str], now: float) -> float | None:
        """Seconds until something in these queues falls due."""
        firsts = (self.due[queue].first() for queue in queues)
        return earliest(due_at(job) - now for job in firsts if job is not None)


def fits(ask: Ask, now: float, job: Job) -> bool:
    """This worker could run the job as soon as it is due, or let it wait inside.

    What is less urgent than it wants and falls due later fits as well: to leave it out, the search
    for the next instant would have to read all of it.
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


def due_at(job: Job) -> float:
    """When a waiting job falls due; 0: it is due."""
    at = job.run_at if job.state is State.SCHEDULED else job.hold_until
    return at if at is not None else 0.0


def earliest(waits: Iterable[float]) -> float | None:
    """The shortest of some waits in seconds, at least 0; None: there is none."""
    return min((max(0.0, wait) for wait in waits), default=None)


@dataclass(frozen=True, slots=True)
class KeyShares:
    """What the keys of one queue may have."""

    settings: QueueSettings
    running: Callable[[str], int]

    def stride(self, key: str) -> int:
        """How far the line of a key moves on with each job."""
        return self.settings.stride(key)

    def room(self, key: str) -> int:
        """How many more jobs of a key may run; those without a key are not counted."""
        most = self.settings.max_running_per_key
        return _NO_LIMIT if most is None or not key else most - self.running(key)


def _ticket(job: Job) -> tuple[int] | None:
    return None if claim_key(job) is None else (job.seq,)


def claim_key(job: Job) -> tuple[int, int] | None:
    """Its place in the line of jobs that could start now, if it stands there (law 7)."""
    return job.order if job.state is State.READY and job.hold is None else None


def _due_key(job: Job) -> tuple[float, int, str] | None:
    """With its queue: one that waits for the same instant in another queue has left this line."""
    if job.state is State.SCHEDULED or (job.state is State.READY and job.hold_until is not None):
        return due_at(job), job.seq, job.queue
    return None


def _expiry_key(job: Job) -> tuple[float, int] | None:
    if job.expires_at is None or not job.state.is_waiting:
        return None
    return job.expires_at, job.seq
