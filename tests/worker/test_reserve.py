"""Slots that are kept for urgent jobs: the others never have them, and urgent ones never wait."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import Job, State
from penstock.core.spec import Kind, Spec
from penstock.worker.reserve import ANY, Reserve, free_for, levels
from worker.rig import Rig, soon, spec, specs
from worker.victims import SHOWS_LIFE

URGENT, HIGH, NORMAL, LOW = -5, 0, 5, 10

SIZES = {"async": "concurrency", "sync": "threads", "process": "children"}

# --- the arithmetic -----------------------------------------------------------------------------


def test_what_is_less_urgent_has_the_rest_and_at_least_one():
    assert levels(8, {}) == []
    assert levels(8, {HIGH: 2}) == [(HIGH, 6)]
    assert levels(8, {HIGH: 2, URGENT: 1}) == [(URGENT, 7), (HIGH, 5)]
    assert levels(2, {HIGH: 5, URGENT: 5}) == [(URGENT, 1), (HIGH, 1)]


def test_a_job_starts_if_every_level_above_it_keeps_its_slots():
    reserve = Reserve(4, {HIGH: 1, URGENT: 1})
    reserve.count(NORMAL, 1)
    assert reserve.admits(LOW)
    reserve.count(LOW, 1)
    assert [reserve.admits(each) for each in (URGENT, HIGH, NORMAL)] == [True, True, False]
    reserve.count(HIGH, 1)
    assert [reserve.admits(each) for each in (URGENT, HIGH, NORMAL)] == [True, False, False]
    reserve.count(LOW, -1)
    assert [reserve.admits(each) for each in (URGENT, HIGH, NORMAL)] == [True, True, True]


def test_what_is_free_counts_what_is_there_and_what_is_too_much():
    kept = {HIGH: 2}
    assert free_for(ANY, 8, kept, []) == 6
    assert free_for(HIGH, 8, kept, []) == 8
    assert free_for(ANY, 8, kept, [NORMAL] * 6) == 0
    assert free_for(HIGH, 8, kept, [NORMAL] * 6) == 2
    assert free_for(ANY, 8, kept, [HIGH] * 4) == 4
    assert free_for(ANY, 8, kept, [NORMAL] * 9) == -3


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_to_count_agree(seed):
    chance = random.Random(seed)
    size = chance.randint(1, 6)
    kept = {level: chance.randint(1, 4) for level in chance.sample((URGENT, HIGH, NORMAL), 2)}
    reserve, there = Reserve(size, kept), list[int]()
    for _ in range(200):
        priority = chance.choice((URGENT, HIGH, NORMAL, LOW))
        may_start = len(there) < size and reserve.admits(priority)
        assert may_start == (free_for(priority, size, kept, there) > 0)
        if may_start:
            there.append(priority)
            reserve.count(priority, 1)
        elif there:
            reserve.count(there.pop(chance.randrange(len(there))), -1)


# --- whole workers ------------------------------------------------------------------------------


class Way:
    """A task of one kind that blocks until it is let go, all attempts at once."""

    def __init__(self, kind: Kind, rig: Rig, path: Path) -> None:
        self.kind = kind
        self._rig = rig
        self._go = threading.Event()
        self._go_on = asyncio.Event()
        self._path = path / f"go-{kind}"

    @property
    def spec(self) -> Spec:
        match self.kind:
            case "async":

                async def blocks_loop() -> None:
                    await self._go_on.wait()

                return spec(blocks_loop)
            case "sync":

                def blocks_thread() -> None:
                    assert self._go.wait(60)

                return spec(blocks_thread)
            case "process":
                return SHOWS_LIFE.spec

    async def put(self, priority: int, jobs: int = 1) -> list[str]:
        payload = b"{}" if self.kind != "process" else f'{{"to":"{self._path}"}}'.encode()
        task = self.spec.name
        return [await self._rig.put(task, payload, priority=priority) for _ in range(jobs)]

    def go(self) -> None:
        self._go.set()
        self._go_on.set()
        self._path.touch()


@pytest.fixture(params=["async", "sync", "process"])
async def way(request, rig, tmp_path):
    """One kind of slots."""
    way = Way(request.param, rig, tmp_path)
    yield way
    way.go()


def started(worker: Any) -> Counter[int]:
    """How many attempts of each priority have been started and not ended, as the worker sees it."""
    inflight = worker._dispatcher.inflight
    return Counter(each.job.priority for each in inflight if not each.is_waiting)


async def until_started(rig: Rig, worker: Any, wanted: dict[int, int]) -> None:
    """Wait until exactly so many attempts run, by priority; the slots are polled, no time passes
    on the worker's clock unless it waits for some.
    """

    async def wait() -> None:
        while started(worker) != wanted:  # noqa: ASYNC110  (threads and children make it so)
            await asyncio.sleep(0.001)

    await rig.meanwhile(soon(wait()))


async def until_claimed(rig: Rig, ids: list[str], count: int) -> None:
    """Wait until the worker has so many of these in its inflight."""

    async def is_so() -> bool:
        jobs = await rig.engine.get(ids)
        return sum(job is not None and job.state is State.RUNNING for job in jobs) == count

    await rig.meanwhile(rig.until(is_so))


async def test_less_urgent_jobs_never_have_the_slots_that_are_kept(rig, way):
    """Of four slots two are kept: two normal jobs run, then two high ones beside them."""
    async with rig.working(specs(way.spec), reserve={HIGH: 2}, **{SIZES[way.kind]: 4}) as worker:
        normal = await way.put(NORMAL, 6)
        await until_started(rig, worker, {NORMAL: 2})
        high = await way.put(HIGH, 3)
        await until_started(rig, worker, {NORMAL: 2, HIGH: 2})
        way.go()
        jobs = await rig.meanwhile(rig.ended(*normal, *high))

    assert {job.state for job in jobs} == {State.SUCCEEDED}


async def test_an_urgent_job_starts_although_less_urgent_ones_wait_in_the_workers_hands(rig, way):
    """What was fetched ahead takes no slot that is kept, and nothing is fetched only to go back."""
    settings = {SIZES[way.kind]: 4, "patience": 1e9}
    async with rig.working(specs(way.spec), reserve={HIGH: 2}, **settings) as worker:
        normal = await way.put(NORMAL, 20)
        await until_started(rig, worker, {NORMAL: 2})
        rig.claim_ahead(worker, 5)
        await until_claimed(rig, normal, 7)
        high = await way.put(HIGH, 2)
        await until_started(rig, worker, {NORMAL: 2, HIGH: 2})
        assert (worker.stats.claimed, worker.stats.released) == (9, 0)
        way.go()
        jobs = await rig.meanwhile(rig.ended(*high, *normal))

    assert {(job.state, job.attempt) for job in jobs} == {(State.SUCCEEDED, 1)}


async def test_each_level_keeps_its_own_slots(rig, way):
    kept = {HIGH: 1, URGENT: 1}
    async with rig.working(specs(way.spec), reserve=kept, **{SIZES[way.kind]: 4}) as worker:
        await way.put(LOW, 4)
        await until_started(rig, worker, {LOW: 2})
        await way.put(HIGH, 3)
        await until_started(rig, worker, {LOW: 2, HIGH: 1})
        await way.put(URGENT, 3)
        await until_started(rig, worker, {LOW: 2, HIGH: 1, URGENT: 1})


async def test_one_slot_stays_for_all(rig, way):
    """A reserve of all there is would keep everything else from ever running."""
    async with rig.working(specs(way.spec), reserve={HIGH: 9}, **{SIZES[way.kind]: 1}) as worker:
        (normal,) = await way.put(NORMAL)
        await until_started(rig, worker, {NORMAL: 1})
        way.go()
        (job,) = await rig.meanwhile(rig.ended(normal))

    assert job.state is State.SUCCEEDED


async def test_a_kind_that_is_full_of_urgent_jobs_keeps_no_other_from_its_slots(rig, tmp_path):
    """Threads have no slot for anybody; the loop still has the one that it keeps."""
    loop, threads = Way("async", rig, tmp_path), Way("sync", rig, tmp_path)
    tasks = {each.name: each for each in (loop.spec, threads.spec)}
    try:
        async with rig.working(tasks, reserve={HIGH: 1}, concurrency=2, threads=2) as worker:
            await threads.put(NORMAL)
            await loop.put(NORMAL)
            await until_started(rig, worker, {NORMAL: 2})
            await threads.put(HIGH)
            await until_started(rig, worker, {NORMAL: 2, HIGH: 1})
            await threads.put(HIGH, 5)
            await loop.put(HIGH)
            await until_started(rig, worker, {NORMAL: 2, HIGH: 2})
            loop.go()
            threads.go()
    finally:
        loop.go()
        threads.go()


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_jobs_of_all_priorities_end_and_none_has_more_than_its_share(rig, kind):
    running, most, lock = Counter[int](), Counter[int](), threading.Lock()

    def note(priority: int, change: int) -> None:
        with lock:
            running[priority] += change
            for level in (HIGH, NORMAL, LOW):
                count = sum(each for key, each in running.items() if key >= level)
                most[level] = max(most[level], count)

    async def coroutine(priority: int) -> None:
        note(priority, 1)
        await asyncio.sleep(0.0005)
        note(priority, -1)

    def threaded(priority: int) -> None:
        note(priority, 1)
        threading.Event().wait(0.0005)
        note(priority, -1)

    chance = random.Random(7)
    task = coroutine if kind == "async" else threaded
    sizes = {SIZES[kind]: 5, "patience": 1000.0}
    async with rig.working(specs(task), reserve={HIGH: 2, URGENT: 1}, **sizes) as worker:
        ids = []
        for _ in range(400):
            priority = chance.choice((URGENT, HIGH, NORMAL, LOW))
            payload = f'{{"priority":{priority}}}'.encode()
            ids.append(await rig.put(task.__name__, payload, priority=priority))
        jobs: list[Job] = await rig.meanwhile(rig.ended(*ids))

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert most[NORMAL] <= 2
    assert most[HIGH] <= 4
    assert worker.stats.succeeded == 400
