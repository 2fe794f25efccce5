"""How an embedded store does at one instant: what ``glance`` counts, and what it picks out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from penstock.core.job import Hold, Job, State
from penstock.engines.queries import statements
from penstock.engines.records import Count, Glance, Traffic
from penstock.engines.sqlite_rows import Row, json_text, to_jobs
from penstock.engines.sqlite_views import SqliteViews


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
