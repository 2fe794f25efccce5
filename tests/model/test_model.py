"""Two engines live the same life: after every step a store equals the one in memory.

A hypothesis machine makes up the life: callers, workers, operators and leaders act in any order,
time jumps, replies are lost, processes die. What both engines answer is compared verb by verb, and
the two stores job by job. Beside that the laws are checked that need no second engine: states go
only where ``TRANSITIONS`` leads, attempts only grow, no claim is given out twice, no job is lost,
nobody passes an open job of an ordered queue, no key runs more than its limit, and there is never
anything to repair but holds that a worker which died has left.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from msgspec.structs import replace

from conformance.stores import STORES, memory
from model.stories import (
    DRAFTS,
    ENDS,
    HOLDS,
    NUMBERS,
    QUEUES,
    SETTINGS,
    TASKS,
    TURNS,
    outcome,
)
from penstock.core.job import (
    TRANSITIONS,
    Draft,
    Hold,
    Job,
    State,
)
from penstock.engines import changes, reads
from penstock.engines.engine import Engine
from penstock.engines.records import (
    Ask,
    Count,
    Exchange,
    Filter,
    Pruned,
    QueueSettings,
    Receipt,
    Repaired,
    Report,
    Sighting,
    WorkerInfo,
)
from penstock.errors import LeaseLost
from penstock.testing.clock import FakeClock


class TwoEngines(RuleBasedStateMachine):
    """The same calls to a store in memory and to another."""

    store: ClassVar[str]
    """The other, by its name in the conformance suite."""

    workers = Bundle("workers")
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        place = Path(self.folder.name)
        made = [make(place, self.clock) for make in (memory, STORES[self.store])]
        # Two handles each: what one writes the other must see.
        self.pairs = [tuple(store.new_handle() for store in made) for _ in range(2)]
        for pair in self.pairs:
            for engine in pair:
                self.loop.run_until_complete(engine.open())
        self.names = 0
        self.known: dict[str, Job] = {}
        self.given: set[tuple[str, int]] = set()
        self.may_vanish = False

    def teardown(self) -> None:
        for pair in self.pairs:
            for engine in pair:
                self.loop.run_until_complete(engine.close())
        self.loop.close()
        self.folder.cleanup()

    def both(self, call: Callable[[Engine], Awaitable[Any]], handle: int = 0) -> Any:
        """Make one call to both engines; they must answer the same."""
        answers = [self.loop.run_until_complete(_answer(call, each)) for each in self.pairs[handle]]
        assert answers[0] == answers[1]
        return answers[0]

    def _exchange(self, ask: Ask) -> Any:
        return self.both(lambda engine: engine.exchange(ask))

    # --- callers -------------------------------------------------------------------------------

    @rule(batch=st.lists(DRAFTS, min_size=1, max_size=4), handle=st.integers(0, 1))
    def enqueue(self, batch: list[Draft], handle: int) -> None:
        self.both(lambda engine: _enqueue(engine, batch), handle)

    @rule(batch=st.lists(DRAFTS, min_size=1, max_size=3))
    def enqueue_whose_reply_is_lost(self, batch: list[Draft]) -> None:
        self.both(lambda engine: _enqueue(engine, batch))
        receipts = self.both(lambda engine: _enqueue(engine, batch), 1)
        assert not any(receipt.created for receipt in receipts)

    # --- workers -------------------------------------------------------------------------------

    @initialize(ordered=st.booleans())
    def one_fair_queue_and_perhaps_an_ordered_one(self, ordered: bool) -> None:
        fair = QueueSettings(fair=True, weights={"tenant-2": 2.0})
        self.both(lambda engine: engine.set_queue("fair", fair))
        self.both(lambda engine: engine.set_queue("mail", QueueSettings(ordered=ordered)))

    @initialize(target=workers, batch=st.lists(DRAFTS, min_size=4, max_size=8))
    def two_workers_and_something_to_do(self, batch: list[Draft]) -> Any:
        self.both(lambda engine: _enqueue(engine, batch))
        return multiple(self.join(TASKS[:2], 50), self.join(TASKS, 50))

    @rule(
        target=workers, knows=st.sampled_from((TASKS[:2], TASKS)), lifts=st.sampled_from((0, 1, 50))
    )
    def join(self, knows: tuple[str, ...], lifts: int) -> str:
        """It lifts the holds that wait for it, so many at a time; 0: it dies before it does."""
        self.names += 1
        info = WorkerInfo(id=f"worker-{self.names}", tasks=knows, queues=QUEUES)
        self.both(lambda engine: engine.join(info))
        if lifts:
            self.both(lambda engine: changes.lift_known(engine, knows, lifts), 1)
        return info.id

    @rule(worker=workers)
    def beat(self, worker: str) -> None:
        self.both(lambda engine: engine.beat(worker))

    @rule(worker=consumes(workers))
    def leave(self, worker: str) -> None:
        self.both(lambda engine: engine.leave(worker))

    @rule(
        target=attempts,
        worker=workers,
        queues=st.permutations(QUEUES),
        want=st.integers(1, 5),
        slots=st.integers(0, 5),
        avoids=st.booleans(),
        least_urgent=st.sampled_from((None, None, 0, 5)),
        handle=st.integers(0, 1),
        is_reply_lost=st.booleans(),
    )
    def claim(
        self,
        worker: str,
        queues: list[str],
        want: int,
        slots: int,
        avoids: bool,
        least_urgent: int | None,
        handle: int,
        is_reply_lost: bool,
    ) -> Any:
        ask = Ask(
            worker=worker,
            queues=tuple(queues),
            want=want,
            slots=min(slots, want),
            avoid=frozenset(TASKS[2:]) if avoids else frozenset(),
            least_urgent=least_urgent,
        )
        settings = self.both(lambda engine: engine.queues())
        answer = self.both(lambda engine: engine.exchange(ask), handle)
        if answer is LeaseLost:
            return multiple()
        for job in answer.jobs:
            assert (job.id, job.claim) not in self.given
            assert least_urgent is None or job.priority <= least_urgent
            self.given.add((job.id, job.claim))
        for queue in (name for name, each in settings.items() if each.ordered):
            self._check_order([job for job in answer.jobs if job.queue == queue], queue)
        self._check_keys(answer.jobs, settings)
        jobs = answer.jobs
        if is_reply_lost:
            jobs = self.both(lambda engine: engine.held(worker))
            assert {job.id for job in answer.jobs} <= {job.id for job in jobs}
        return multiple(*((worker, job.id, job.claim) for job in jobs))

    @rule(
        ended=st.lists(consumes(attempts), min_size=1, max_size=3),
        how=st.lists(ENDS, min_size=3, max_size=3),
        want=st.integers(0, 2),
    )
    def settle(self, ended: list[Any], how: list[dict[str, Any]], want: int) -> None:
        worker = ended[0][0]
        outcomes = tuple(
            outcome(job, claim, each, self.clock.now())
            for (_, job, claim), each in zip(ended, how, strict=False)
        )
        ask = Ask(worker=worker, outcomes=outcomes, queues=QUEUES, want=want, slots=want)
        answer = self.both(lambda engine: engine.exchange(ask))
        if answer is not LeaseLost:
            self.given |= {(job.id, job.claim) for job in answer.jobs}

    @rule(target=attempts, worker=workers, turns=st.lists(TURNS, min_size=1, max_size=5))
    def work(self, worker: str, turns: list[Any]) -> Any:
        """Settle some of what the worker has, and claim in the same exchange; several times."""
        claimed: list[Job] = []
        for how, queues, want, least_urgent in turns:
            held = self.both(lambda engine: engine.held(worker))
            ask = Ask(
                worker=worker,
                outcomes=tuple(
                    outcome(job.id, job.claim, each, self.clock.now())
                    for job, each in zip(held, how, strict=False)
                ),
                queues=tuple(queues),
                want=want,
                slots=want,
                least_urgent=least_urgent,
            )
            answer = self._exchange(ask)
            assert not self.given & {(job.id, job.claim) for job in answer.jobs}
            self.given |= {(job.id, job.claim) for job in answer.jobs}
            claimed += answer.jobs
        return multiple(*((worker, job.id, job.claim) for job in claimed))

    @rule(ended=attempts, how=ENDS)
    def settle_whose_reply_is_lost(self, ended: Any, how: dict[str, Any]) -> None:
        worker, job, claim = ended
        ask = Ask(worker=worker, outcomes=(outcome(job, claim, how, self.clock.now()),))
        first = self.both(lambda engine: engine.exchange(ask))
        again = self.both(lambda engine: engine.exchange(ask), 1)
        assert first is again is LeaseLost or first.verdicts == again.verdicts

    @rule(begun=attempts)
    def begin(self, begun: Any) -> None:
        worker, job, claim = begun
        ask = Ask(worker=worker, begun=((job, claim),))
        self.both(lambda engine: engine.exchange(ask))

    @rule(running=attempts, fraction=st.sampled_from((0.0, 0.5)))
    def progress(self, running: Any, fraction: float) -> None:
        worker, job, claim = running
        report = Report(job=job, claim=claim, fraction=fraction, note="so far")
        self.both(lambda engine: engine.exchange(Ask(worker=worker, reports=(report,))))

    # --- death ---------------------------------------------------------------------------------

    @rule(worker=consumes(workers), limit=st.sampled_from((1, 100)))
    def crash(self, worker: str, limit: int) -> None:
        seen = [info for info in self.both(lambda engine: engine.workers()) if info.id == worker]
        dead = [Sighting(info.id, info.beat) for info in seen]
        self.both(lambda engine: changes.rescue(engine, dead, limit))

    @rule(worker=workers)
    def rescue_a_worker_that_beats_again(self, worker: str) -> None:
        seen = [info for info in self.both(lambda engine: engine.workers()) if info.id == worker]
        self.both(lambda engine: engine.beat(worker))
        self.both(
            lambda engine: changes.rescue(engine, [Sighting(i.id, i.beat) for i in seen], 100)
        )
        after = self.both(lambda engine: engine.workers())
        assert {info.id for info in seen} <= {info.id for info in after}

    # --- operators -----------------------------------------------------------------------------

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=3), handle=st.integers(0, 1))
    def cancel(self, numbers: list[int], handle: int) -> None:
        ids = [f"job-{number}" for number in numbers]
        self.both(lambda engine: changes.cancel(engine, ids, "no longer needed"), handle)

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=3))
    def retry(self, numbers: list[int]) -> None:
        ids = [f"job-{number}" for number in numbers]
        self.both(lambda engine: changes.retry(engine, ids))

    @rule(
        numbers=st.lists(NUMBERS, min_size=1, max_size=4),
        kind=HOLDS,
        seconds=st.sampled_from((None, None, 15.0)),
    )
    def hold(self, numbers: list[int], kind: Hold, seconds: float | None) -> None:
        ids = [f"job-{number}" for number in numbers]
        until = None if seconds is None else self.clock.now() + seconds
        self.both(lambda engine: changes.hold(engine, ids, kind, "why", until))

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=6), kind=HOLDS)
    def lift(self, numbers: list[int], kind: Hold) -> None:
        ids = [f"job-{number}" for number in numbers]
        self.both(lambda engine: changes.lift(engine, ids, kind), 1)

    @rule(
        numbers=st.lists(NUMBERS, min_size=1, max_size=3),
        queue=st.sampled_from((None, *QUEUES)),
        priority=st.sampled_from((None, 0, 5)),
        run_in=st.sampled_from((None, 0.0, 30.0)),
    )
    def edit(
        self, numbers: list[int], queue: str | None, priority: int | None, run_in: float | None
    ) -> None:
        ids = [f"job-{number}" for number in numbers]
        to: dict[str, Any] = {"queue": queue, "priority": priority, "run_in": run_in}
        self.both(lambda engine: changes.edit(engine, ids, **to))

    @rule(queue=st.sampled_from(QUEUES), limit=st.integers(1, 3), calls=st.integers(1, 3))
    def purge(self, queue: str, limit: int, calls: int) -> None:
        self.may_vanish = True
        which = Filter(queues=(queue,), states=(State.SCHEDULED, State.FAILED))

        async def purge(engine: Engine) -> list[tuple[int, bool]]:
            # A cursor is the store's own: it is followed, not compared.
            gone, cursor = [], None
            for _ in range(calls):
                purged = await engine.purge(which, limit, cursor)
                gone.append((purged.jobs, purged.cursor is None))
                if (cursor := purged.cursor) is None:
                    break
            return gone

        self.both(purge)

    @rule(queue=st.sampled_from(QUEUES), chosen=SETTINGS)
    def set_queue(self, queue: str, chosen: QueueSettings) -> None:
        self.both(lambda engine: engine.set_queue(queue, chosen))

    # --- time and leaders ----------------------------------------------------------------------

    @rule(seconds=st.sampled_from((1.0, 10.0, 35.0, 120.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from((-20.0, 20.0)))
    def wall_clock_jumps(self, seconds: float) -> None:
        self.clock.jump(seconds)

    @rule(limit=st.sampled_from((1, 100)))
    def promote(self, limit: int) -> None:
        self.both(lambda engine: engine.promote(limit))

    @rule(limit=st.sampled_from((2, 100)))
    def prune(self, limit: int) -> None:
        """Which of the old jobs a limited call deletes first is left to the engine."""
        self.may_vanish = True

        async def prune(engine: Engine) -> tuple[int, int, int]:
            jobs = ids = keys = 0
            while (pruned := await _pruned(engine, limit)) != Pruned():
                jobs, ids, keys = jobs + pruned.jobs, ids + pruned.ids, keys + pruned.keys
            return jobs, ids, keys

        self.both(prune)

    @rule(limit=st.sampled_from((1, 100)), rehearse=st.booleans(), handle=st.integers(0, 1))
    def repair(self, limit: int, rehearse: bool, handle: int) -> None:
        self.both(lambda engine: _repair_holds(engine, limit, rehearse=rehearse), handle)
        found = self.both(lambda engine: _repair(engine, limit, rehearse=rehearse), handle)
        assert found == Repaired()
        if not rehearse:
            assert self.both(lambda engine: _repair_holds(engine, 100, rehearse=True)) == 0

    @rule(number=NUMBERS, handle=st.integers(0, 1))
    def line(self, number: int, handle: int) -> None:
        self.both(lambda engine: _line(engine, f"job-{number}"), handle)

    @rule(
        name=st.sampled_from(("breaker-1", "breaker-2")),
        value=st.one_of(st.none(), st.binary(max_size=3)),
        is_stale=st.booleans(),
        ttl=st.sampled_from((None, None, 10.0)),
    )
    def set_cell(self, name: str, value: bytes | None, is_stale: bool, ttl: float | None) -> None:
        self.both(lambda engine: _set_cell(engine, name, value, is_stale, ttl))
        self.both(lambda engine: _cells(engine), 1)

    # --- after every step ----------------------------------------------------------------------

    @invariant()
    def the_stores_are_equal(self) -> None:
        jobs = self.both(_all_jobs, 1)
        self.both(lambda engine: engine.queues())
        self.both(_sorted_counts)
        self.both(_glance)
        self.both(_hands)
        self._check_history({job.id: job for job in jobs})

    def _check_order(self, given: list[Job], queue: str) -> None:
        """One job at a time, and none before those that are open."""
        assert len(given) <= 1
        before = [job for job in self.known.values() if job.queue == queue and job.is_open]
        now = self.clock.now()
        blocking = [
            job.id
            for job in before
            if job.state is State.RUNNING or job.expires_at is None or job.expires_at > now
        ]
        for job in given:
            assert not [each for each in before if each.state is State.RUNNING]
            assert not blocking or job.id in blocking

    def _check_keys(self, given: tuple[Job, ...], settings: dict[str, QueueSettings]) -> None:
        """No key runs more than its limit after a claim of its jobs."""
        jobs = self.both(_all_jobs)
        running = Counter((job.queue, job.key) for job in jobs if job.state is State.RUNNING)
        for job in given:
            most = settings.get(job.queue, QueueSettings()).max_running_per_key
            assert most is None or job.key is None or running[job.queue, job.key] <= most

    def _check_history(self, jobs: dict[str, Job]) -> None:
        """What may change from one step to the next, whatever the engines agree on."""
        if not self.may_vanish:
            assert self.known.keys() <= jobs.keys()
        self.may_vanish = False
        for id, job in jobs.items():
            before = self.known.get(id)
            if before is None or before.enqueued_at != job.enqueued_at:
                continue
            assert job.claim >= before.claim
            assert job.state in _reachable(before.state)
        # An id that is gone and in no ledger may come again, with its first claim.
        self.given = {(id, claim) for id, claim in self.given if id in jobs}
        self.known = jobs


async def _answer(call: Callable[[Engine], Awaitable[Any]], engine: Engine) -> Any:
    try:
        answer = await call(engine)
    except LeaseLost:
        return LeaseLost
    return _without_seq(answer)


def _without_seq(answer: Any) -> Any:
    """Tickets need not be the same numbers, only stand in the same order."""
    if isinstance(answer, Job):
        return replace(answer, seq=0)
    if isinstance(answer, list):
        return [_without_seq(each) for each in answer]
    if isinstance(answer, Exchange):
        followers = tuple(replace(each, ticket=0) for each in answer.followers)
        answer = replace(answer, followers=followers)
    if hasattr(answer, "jobs") and isinstance(answer.jobs, tuple):
        return replace(answer, jobs=tuple(_without_seq(job) for job in answer.jobs))
    return answer


async def _all_jobs(engine: Engine) -> list[Job]:
    """Every job, in the order of its ticket."""
    page = await engine.find(Filter(), None, 1000)
    assert page.cursor is None
    return sorted(page.jobs, key=lambda job: (job.queue, job.priority, job.seq))


async def _hands(engine: Engine) -> list[Any]:
    """What workers have; which of several jobs was claimed first is not decided."""
    return [replace(hand, first="") for hand in await engine.running()]


async def _set_cell(
    engine: Engine, name: str, value: bytes | None, is_stale: bool, ttl: float | None
) -> Any:
    """Versions are each engine's own; all else must be the same."""
    before = await engine.cell(name)
    written = await engine.set_cell(name, value, before.version + is_stale, ttl)
    assert written is None or written.version > before.version
    return written is not None, before.value, before.left, written and (written.value, written.left)


async def _cells(engine: Engine) -> Any:
    page = await engine.cells("breaker", None, 5)
    return [(name, cell.value, cell.left) for name, cell in page.cells]


async def _enqueue(engine: Engine, batch: list[Draft]) -> list[Receipt]:
    """Which tickets are used is the business of each store."""
    return [replace(each, ticket=0) for each in await engine.enqueue(batch)]


async def _pruned(engine: Engine, limit: int) -> Pruned:
    """When a store wants it again is its own business."""
    return replace(await engine.prune(limit), again_in=None)


async def _repair(engine: Engine, limit: int, *, rehearse: bool) -> Repaired:
    """How a store cuts its own order into batches is its own business."""
    lines = keys = 0
    cursor = None
    while True:
        found = await engine.repair(limit, cursor, rehearse=rehearse)
        lines, keys, cursor = lines + found.lines, keys + found.keys, found.cursor
        if cursor is None:
            return Repaired(lines=lines, keys=keys)


async def _repair_holds(engine: Engine, limit: int, *, rehearse: bool) -> int:
    lifted, cursor = await changes.repair_holds(engine, limit, rehearse=rehearse)
    while cursor is not None:
        more, cursor = await changes.repair_holds(engine, limit, cursor, rehearse=rehearse)
        lifted += more
    return lifted


async def _line(engine: Engine, id: str) -> list[Any]:
    standing = await reads.standing(engine, id)
    return [standing.job, replace(standing, job=None)]


def _count_key(count: Count) -> tuple[str, int, str, str]:
    return count.queue, count.priority, count.state, count.hold or ""


async def _sorted_counts(engine: Engine) -> list[Any]:
    return sorted(
        await engine.counts(Filter()),
        key=_count_key,
    )


async def _glance(engine: Engine) -> list[Any]:
    """What is not told of every job anyway; and it counts as ``counts`` does."""
    glance = await reads.overview(engine, 60, 5)
    over = (State.SUCCEEDED, State.CANCELLED)
    counts = [count for count in await _sorted_counts(engine) if count.state not in over]
    seen = sorted(glance.counts, key=_count_key)
    assert seen == counts
    picked = [sorted(job.id for job in jobs) for jobs in (glance.running, glance.failed)]
    return [glance.traffic, dict(glance.busy), picked if len(counts) < 5 else None]


def _reachable(state: State) -> set[State]:
    """A step may change a job several times: a retry that is due at once is claimed at once."""
    reached = {state}
    while True:
        more = {to for (source, _), to in TRANSITIONS.items() if source in reached} - reached
        if not more:
            return reached
        reached |= more


class MemoryAndFile(TwoEngines):
    store = "sqlite"


class MemoryAndServer(TwoEngines):
    store = "postgres"


LIVES = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)

TestMemoryAndFile = MemoryAndFile.TestCase
TestMemoryAndFile.settings = LIVES
TestMemoryAndServer = MemoryAndServer.TestCase
TestMemoryAndServer.settings = LIVES
pytestmark = pytest.mark.timeout(600)
