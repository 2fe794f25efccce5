"""What a live screen shows of a store: one glance, put in rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.core.job import Job, State
from penstock.engines.records import Glance, QueueSettings, Traffic, WorkerInfo


@dataclass(frozen=True, slots=True)
class View:
    """A store as it was seen at one moment."""

    store: str
    """Its URL without secrets."""
    glance: Glance
    window: float
    """Seconds that the rates are taken over."""
    leader: str | None = None
    stillness: Mapping[str, float | None] = field(default_factory=dict)
    """Seconds since each worker's beat was seen to grow; None: it is not known yet."""
    known: tuple[str, ...] = ()
    """Queues that were seen before, and may have nothing now."""

    @property
    def queues(self) -> list[QueueRow]:
        """Every queue that has something, or is served, or was seen before."""
        counts: Counter[tuple[str, str]] = Counter()
        for count in self.glance.counts:
            counts[count.queue, "held" if count.hold else count.state] += count.jobs
        served = (queue for worker in self.glance.workers for queue in worker.queues)
        traffic = {each.queue: each for each in self.glance.traffic}
        names = {*self.known, *self.glance.settings, *served, *traffic}
        return [
            QueueRow(
                name=name,
                settings=self.glance.settings.get(name, QueueSettings()),
                ready=counts[name, State.READY],
                scheduled=counts[name, State.SCHEDULED],
                running=counts[name, State.RUNNING],
                held=counts[name, "held"],
                failed=counts[name, State.FAILED],
                traffic=traffic.get(name, Traffic(queue=name)),
            )
            for name in sorted(names | {queue for queue, _ in counts})
        ]

    @property
    def workers(self) -> list[WorkerRow]:
        """Every worker that has a lease."""
        return [
            WorkerRow(info, self.glance.busy.get(info.id, 0), self.stillness.get(info.id))
            for info in self.glance.workers
        ]

    def rate(self, jobs: int) -> float:
        """So many within the window, per second."""
        return jobs / self.window

    @property
    def total(self) -> Traffic:
        """What came and ended, over all queues."""
        each = self.glance.traffic
        return Traffic(
            queue="",
            entered=sum(traffic.entered for traffic in each),
            succeeded=sum(traffic.succeeded for traffic in each),
            failed=sum(traffic.failed for traffic in each),
            cancelled=sum(traffic.cancelled for traffic in each),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue: how many jobs it has, and what was decided about it."""

    name: str
    settings: QueueSettings
    ready: int
    scheduled: int
    running: int
    held: int
    failed: int
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker: how much of it is taken, and whether it is seen to live."""

    info: WorkerInfo
    busy: int
    still: float | None

    @property
    def is_silent(self) -> bool:
        """Its beat stood still for its whole lease."""
        return self.still is not None and self.still > (self.info.lease or USUAL_LEASE)


USUAL_LEASE = 15.0


def why_failed(job: Job) -> str:
    """Why a job has failed, on one line."""
    last = job.errors[-1] if job.errors else None
    text = job.reason or (f"{last.kind}: {last.message}" if last else "no reason is known")
    lines = text.strip().splitlines()
    return lines[0] if lines else ""


def seen(known: Iterable[str], view: View) -> tuple[str, ...]:
    """The queues that were seen by now."""
    return tuple(sorted({*known, *(row.name for row in view.queues)}))
