"""How the memory engine does at one instant: what ``glance`` counts, and what it picks out."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

from penstock.core.job import Job, State
from penstock.engines.memory_views import MemoryViews
from penstock.engines.records import Glance, Traffic, WorkerInfo

_OVER = (State.SUCCEEDED, State.CANCELLED)


def glance(store: MemoryViews, now: float, window: float, limit: int) -> Glance:
    """See the contract."""
    running = [job for job in store.jobs.values() if job.state is State.RUNNING]
    failed = [job for job in store.jobs.values() if job.state is State.FAILED]
    running.sort(key=lambda job: (job.claimed_at or 0.0, job.seq))
    failed.sort(key=lambda job: (job.finished_at or 0.0, job.seq), reverse=True)
    return Glance(
        now=now,
        counts=tuple(count for count in store.counts() if count.state not in _OVER),
        traffic=tuple(_traffic(store, now - window)),
        settings=dict(store.settings),
        workers=tuple(by_age(store)),
        busy=Counter(job.worker for job in running if job.worker),
        running=tuple(running[: max(0, limit)]),
        failed=tuple(failed[: max(0, limit)]),
    )


def by_age(store: MemoryViews) -> list[WorkerInfo]:
    """Every worker, the one that joined first before the others."""
    return sorted(store.workers.values(), key=lambda info: (info.joined_at, info.id))


def _traffic(store: MemoryViews, since: float) -> list[Traffic]:
    jobs = store.jobs.values()
    newest = takewhile(lambda job: job.enqueued_at > since, reversed(jobs))
    entered = Counter(job.queue for job in newest)
    ended = Counter((job.queue, job.state) for job in jobs if _ended_after(job, since))
    return [
        Traffic(
            queue=queue,
            entered=entered[queue],
            succeeded=ended[queue, State.SUCCEEDED],
            failed=ended[queue, State.FAILED],
            cancelled=ended[queue, State.CANCELLED],
        )
        for queue in sorted(entered.keys() | {queue for queue, _ in ended})
    ]


def _ended_after(job: Job, since: float) -> bool:
    return job.finished_at is not None and job.finished_at > since
