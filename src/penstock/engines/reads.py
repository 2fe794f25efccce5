"""What people and programs ask of a store, made of the contract's few reads.

Nothing here is of one instant: each function makes several calls, and a busy store moves on between
them. It is written once for all engines, so it may only sum and sort what they return.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.core.job import FINAL, WAITING, Job, State
from penstock.engines.engine import Engine
from penstock.engines.records import Count, Filter, QueueSettings, Running, WorkerInfo

SOME: Final = 5
"""How many keys and ids are named where there may be any number."""
SAMPLE: Final = 1000
"""Jobs of a queue that are read to tell which keys they have."""
CLOCK: Final = "penstock.clock"
"""A cell that is never written: it is read for the instant that comes with it."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs came into a queue, and how many left it, within a while."""

    queue: str
    entered: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """How a store does now, as far as it can be told without reading what is long over."""

    now: float
    """The store's instant."""
    counts: tuple[Count, ...] = ()
    """Of jobs that wait, run or have failed."""
    traffic: tuple[Traffic, ...] = ()
    """Of every queue where something came or ended."""
    settings: Mapping[str, QueueSettings] = msgspec.field(default_factory=dict)
    """Of every queue about which something was decided."""
    workers: tuple[WorkerInfo, ...] = ()
    busy: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Jobs that each worker has, if any, by its id."""
    running: tuple[Job, ...] = ()
    """Some of those that run, the longest first."""
    failed: tuple[Job, ...] = ()
    """Those of the newest that have failed, the latest first."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where one job stands."""

    now: float
    """The store's instant."""
    job: Job | None = None
    settings: QueueSettings = msgspec.field(default_factory=QueueSettings)
    """What was decided about its queue."""
    ahead: int = 0
    """Jobs of its queue that come before it; 0 if it is not in line."""
    more_urgent: int = 0
    """Those of them with a more urgent priority."""
    keys: tuple[tuple[str, int], ...] = ()
    """In a fair queue, the keys that most of the waiting jobs have; "" is no key."""
    blockers: tuple[str, ...] = ()
    """Open jobs that wait and have to end first, in an ordered queue: some of them."""


async def now(engine: Engine) -> float:
    """The store's instant: the one that decides what is due."""
    return (await engine.cell(CLOCK)).now


async def count(engine: Engine, which: Filter) -> int:
    """How many jobs fit."""
    return sum(each.jobs for each in await engine.counts(which))


async def queues(engine: Engine) -> dict[str, QueueSettings]:
    """Every queue that has a setting or a job, with its settings. Reads every job."""
    decided = await engine.queues()
    names = {each.queue for each in await engine.counts(Filter())} | decided.keys()
    return {name: decided.get(name, QueueSettings()) for name in sorted(names)}


async def overview(engine: Engine, window: float, limit: int) -> Overview:
    """How the store does now, for a screen that asks again and again, with up to ``limit`` jobs
    that run and as many that have failed; rates are of the last ``window`` seconds.

    It costs by what waits, runs or has failed, and by what came or ended within the window; jobs
    that ended well before cost nothing.
    """
    instant = await now(engine)
    open_states = (*WAITING, State.RUNNING, State.FAILED)
    running = await engine.running()
    busy: Counter[str] = Counter()
    for each in running:
        busy[each.worker] += each.jobs
    failed = await engine.find(Filter(states=(State.FAILED,)), None, limit)
    return Overview(
        now=instant,
        counts=tuple(await engine.counts(Filter(states=open_states))),
        traffic=await _traffic(engine, instant - window),
        settings=await engine.queues(),
        workers=tuple(await engine.workers()),
        busy=busy,
        running=await _longest_running(engine, running, limit),
        failed=tuple(sorted(failed.jobs, key=lambda job: -(job.finished_at or 0.0))),
    )


async def _longest_running(
    engine: Engine, running: Iterable[Running], limit: int
) -> tuple[Job, ...]:
    """The first of each worker, queue, task and priority, filled up with the newest."""
    first = sorted(running, key=lambda each: each.since_at)[: max(0, limit)]
    jobs = [job for job in await engine.get([each.first for each in first]) if job is not None]
    page = await engine.find(Filter(states=(State.RUNNING,)), None, limit)
    found = {job.id: job for job in (*page.jobs, *jobs) if job.state is State.RUNNING}
    longest = sorted(found.values(), key=lambda job: (job.claimed_at or 0.0, job.seq))
    return tuple(longest[: max(0, limit)])


async def _traffic(engine: Engine, since: float) -> tuple[Traffic, ...]:
    entered: Counter[str] = Counter()
    still_open = Filter(states=(*WAITING, State.RUNNING), since=since)
    ended_since = Filter(states=tuple(FINAL), since=since, finished_since=since)
    for which in (still_open, ended_since):
        for each in await engine.counts(which):
            entered[each.queue] += each.jobs
    ended: Counter[tuple[str, State]] = Counter()
    for each in await engine.counts(Filter(states=tuple(FINAL), finished_since=since)):
        ended[each.queue, each.state] += each.jobs
    return tuple(
        Traffic(
            queue=queue,
            entered=entered[queue],
            succeeded=ended[queue, State.SUCCEEDED],
            failed=ended[queue, State.FAILED],
            cancelled=ended[queue, State.CANCELLED],
        )
        for queue in sorted(entered.keys() | {queue for queue, _ in ended})
    )


async def standing(engine: Engine, id: str) -> Standing:
    """Where a job stands: how many come before it, and which jobs block it."""
    instant = await now(engine)
    (job,) = await engine.get([id])
    if job is None:
        return Standing(now=instant)
    settings = (await engine.queues()).get(job.queue, QueueSettings())
    found = Standing(now=instant, job=job, settings=settings)
    if not job.state.is_waiting:
        return found
    ahead, more_urgent = 0, 0
    if job.state is State.READY and job.hold is None:
        ahead, more_urgent = await _ahead(engine, job, settings)
    return msgspec.structs.replace(
        found,
        ahead=ahead,
        more_urgent=more_urgent,
        keys=await _keys(engine, job.queue) if settings.is_keyed else (),
        blockers=await _blockers(engine, job, instant) if settings.ordered else (),
    )


async def _ahead(engine: Engine, job: Job, settings: QueueSettings) -> tuple[int, int]:
    """How many jobs come before a ready one, and how many of those are more urgent.

    In a fair queue keys take turns, so only jobs of its own key are surely before it.
    """
    keys = (job.key,) if settings.is_keyed and job.key is not None else ()
    line = Filter(queues=(job.queue,), states=(State.READY,), keys=keys)
    ready = [each for each in await engine.counts(line) if each.hold is None]
    more_urgent = sum(each.jobs for each in ready if each.priority < job.priority)
    before = await engine.counts(msgspec.structs.replace(line, tickets_below=job.seq))
    beside = (each.jobs for each in before if each.hold is None and each.priority == job.priority)
    return more_urgent + sum(beside), more_urgent


async def _keys(engine: Engine, queue: str) -> tuple[tuple[str, int], ...]:
    page = await engine.find(Filter(queues=(queue,), states=(State.READY,)), None, SAMPLE)
    return most_common(job.key for job in page.jobs)


async def _blockers(engine: Engine, job: Job, instant: float) -> tuple[str, ...]:
    """Open jobs of an ordered queue; only those before it block one that is open itself."""
    which = Filter(queues=(job.queue,), states=tuple(WAITING), is_open=True)
    found = [each for each in (await engine.find(which, None, SAMPLE)).jobs if each.id != job.id]
    found = [each for each in found if each.expires_at is None or each.expires_at > instant]
    found.sort(key=lambda each: each.order)
    if job.is_open:
        found = [each for each in found if each.state is State.READY and each.hold is None]
        found = [each for each in found if each.order < job.order]
    return tuple(each.id for each in found[:SOME])


def most_common(keys: Iterable[str | None]) -> tuple[tuple[str, int], ...]:
    """The keys that occur most often, and how often; of equals the first by name."""
    counted = Counter(key or "" for key in keys).items()
    return tuple(sorted(counted, key=lambda each: (-each[1], each[0]))[:SOME])
