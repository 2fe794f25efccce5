"""Law 4: death is proven, not guessed: only a beat that stood still costs a worker its lease."""

from __future__ import annotations

import pytest

from conformance.steps import ask, bury, claim, enqueue_jobs, joined, running, stored
from penstock.core.job import State
from penstock.engines import changes
from penstock.engines.records import Sighting
from penstock.errors import LeaseLost


async def seen(engine, worker):
    """What an observer notes of a worker."""
    (beat,) = [info.beat for info in await engine.workers() if info.id == worker]
    return Sighting(worker, beat)


async def test_a_worker_that_beat_since_it_was_seen_is_not_dead(engine):
    job = await running(engine)
    sighting = await seen(engine, job.worker)
    await engine.beat(job.worker)
    assert await changes.rescue(engine, [sighting], 10) == []
    assert await stored(engine, job.id) == job
    assert await engine.held(job.worker) == [job]


async def test_a_worker_whose_beat_stood_still_loses_its_lease_and_its_jobs(engine):
    job = await running(engine)
    (rescued,) = await changes.rescue(engine, [await seen(engine, job.worker)], 10)
    assert (rescued.id, rescued.state, rescued.worker) == (job.id, State.READY, None)
    assert await engine.workers() == []
    with pytest.raises(LeaseLost):
        await engine.exchange(ask(job.worker))


async def test_a_dead_worker_without_jobs_loses_its_lease_too(engine):
    worker = await joined(engine)
    assert await bury(engine, worker) == []
    with pytest.raises(LeaseLost):
        await engine.beat(worker)


async def test_no_clock_makes_a_worker_dead(engine, store):
    job = await running(engine)
    store.clock.advance(1e6)
    assert await changes.rescue(engine, [], 10) == []
    store.clock.jump(1e6)
    assert await changes.rescue(engine, [], 10) == []
    assert await stored(engine, job.id) == job


async def test_a_beat_grows_by_one(engine):
    worker = await joined(engine)
    before = await seen(engine, worker)
    await engine.beat(worker)
    await engine.beat(worker)
    assert (await seen(engine, worker)).beat == before.beat + 2


async def test_a_beat_counts_for_its_own_worker_only(engine):
    mine, other = await joined(engine), await joined(engine)
    before = await seen(engine, other)
    await engine.beat(mine)
    assert await seen(engine, other) == before


async def test_a_live_workers_jobs_are_not_taken_with_a_dead_ones(engine):
    dead, live = await running(engine), await running(engine)
    (rescued,) = await bury(engine, dead.worker)
    assert rescued.id == dead.id
    assert await stored(engine, live.id) == live


async def test_jobs_of_a_worker_that_nobody_knows_are_rescued_without_a_sighting(engine):
    job = await running(engine)
    await engine.leave(job.worker)
    (rescued,) = await changes.rescue(engine, [], 10)
    assert rescued.id == job.id


async def test_a_sighting_of_an_unknown_worker_is_no_error(engine):
    assert await changes.rescue(engine, [Sighting("stranger", 0)], 10) == []


async def test_a_rescue_of_part_of_the_jobs_ends_the_lease_at_once(engine):
    await enqueue_jobs(engine, 5)
    jobs = await claim(engine, want=5)
    assert len(await bury(engine, jobs[0].worker, limit=2)) == 2
    with pytest.raises(LeaseLost):
        await engine.beat(jobs[0].worker)
