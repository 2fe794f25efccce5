"""What the doctor reads of a store: once before beats are watched, and once after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.core.job import WAITING, Hold, Job, State
from penstock.engines import changes, reads
from penstock.engines.engine import Engine
from penstock.engines.records import (
    Count,
    Filter,
    QueueSettings,
    Repaired,
    Running,
    WorkerInfo,
)
from penstock.leader.election import Term, present_term

SAMPLE: Final = 1000
"""Jobs of a kind that are read at most, the newest first."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the store said at one moment."""

    now: float
    """The store's instant."""
    workers: tuple[WorkerInfo, ...] = ()
    running: tuple[Running, ...] = ()
    leader: Term | None = None

    @property
    def beats(self) -> dict[str, int]:
        """The beat of each worker."""
        return {worker.id: worker.beat for worker in self.workers}


@dataclass(frozen=True, slots=True)
class Expected:
    """The settings of this application, and its tasks if its code was given."""

    lease: float
    keep_finished: float
    tasks: Mapping[str, str] = field(default_factory=dict)
    """The queue of each task."""


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Everything that the checks look at."""

    before: Reading
    after: Reading
    watched: float
    """Seconds between the two."""
    skew: float
    """How far the store's clock is ahead of this process's."""
    expected: Expected
    queues: Mapping[str, QueueSettings]
    counts: tuple[Count, ...]
    waiting: tuple[Job, ...]
    """A sample."""
    scheduled: tuple[Job, ...]
    """A sample."""
    unknown: tuple[Job, ...]
    """A sample of those that are held for their task."""
    old: tuple[Job, ...]
    """A sample of those that were enqueued longer ago than finished jobs are kept, and ended."""
    newest: Job | None
    lost_holds: int
    """Holds of which the cause is gone, of a sample."""
    lost: Repaired
    """What else a lost step has left, likewise."""
    is_repaired: bool
    """It was repaired, not only looked at."""

    @property
    def now(self) -> float:
        return self.after.now

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        return self.after.workers

    @property
    def silent(self) -> list[WorkerInfo]:
        """Workers whose beat stood still."""
        before = self.before.beats
        return [worker for worker in self.workers if before.get(worker.id) == worker.beat]

    def total(self, *states: State, hold: Hold | None = None) -> Counter[str]:
        """How many jobs of each queue are in these states, under this hold if one is named."""
        found = Counter[str]()
        for count in self.counts:
            if count.state in states and (hold is None or count.hold is hold):
                found[count.queue] += count.jobs
        return found


async def read(engine: Engine) -> Reading:
    """Read what may change while beats are watched."""
    return Reading(
        await reads.now(engine),
        tuple(await engine.workers()),
        tuple(await engine.running()),
        await present_term(engine),
    )


async def take(
    engine: Engine, before: Reading, watched: float, expected: Expected, *, repair: bool
) -> StoreSnapshot:
    """Read it again, and the rest, after beats were watched."""
    skew = await _skew(engine)
    after = await read(engine)

    async def some(which: Filter) -> tuple[Job, ...]:
        return (await engine.find(which, None, SAMPLE)).jobs

    kept_since = after.now - expected.keep_finished
    newest = await engine.find(Filter(), None, 1)
    return StoreSnapshot(
        before=before,
        after=after,
        watched=watched,
        skew=skew,
        expected=expected,
        queues=await reads.queues(engine),
        counts=tuple(await engine.counts(Filter())),
        waiting=await some(Filter(states=tuple(WAITING))),
        scheduled=await some(Filter(states=(State.SCHEDULED,))),
        unknown=await some(Filter(holds=(Hold.UNKNOWN_TASK,))),
        old=(
            *await some(Filter(states=(State.SUCCEEDED, State.CANCELLED), until=kept_since)),
            *await some(Filter(states=(State.FAILED,), until=kept_since)),
        ),
        newest=newest.jobs[0] if newest.jobs else None,
        lost_holds=(await changes.repair_holds(engine, SAMPLE, rehearse=not repair))[0],
        lost=await engine.repair(SAMPLE, rehearse=not repair),
        is_repaired=repair,
    )


async def _skew(engine: Engine) -> float:
    """How far the store's clock is ahead: it was read half way between question and answer."""
    asked = engine.clock.now()
    now = await reads.now(engine)
    return now - (asked + engine.clock.now()) / 2
