"""``rescue``: jobs of workers without a lease go back in line, or end."""

from __future__ import annotations

from conformance.steps import (
    bury,
    claim,
    claim_one,
    enqueue_jobs,
    ids,
    joined,
    put,
    running,
    stored,
)
from penstock.core.job import State
from penstock.engines import changes


async def test_rescued_jobs_are_returned_as_they_are_now(engine):
    await enqueue_jobs(engine, 3)
    jobs = await claim(engine, want=3, slots=2)
    rescued = await bury(engine, jobs[0].worker)
    assert sorted(ids(rescued)) == sorted(ids(jobs))
    for job in rescued:
        assert job == await stored(engine, job.id)


async def test_a_rescued_job_can_be_claimed_by_another(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    again = await claim_one(engine, job.queue)
    assert (again.id, again.attempt, again.rescues) == (job.id, 2, 1)
    assert again.worker != job.worker


async def test_a_rescued_job_has_no_worker(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    after = await stored(engine, job.id)
    assert (after.state, after.worker, after.started) == (State.READY, None, False)


async def test_no_more_than_the_limit_is_rescued_at_once(engine):
    await enqueue_jobs(engine, 5)
    jobs = await claim(engine, want=5)
    batches = [await bury(engine, jobs[0].worker, limit=2)]
    while batches[-1]:
        batches.append(await changes.rescue(engine, [], 2))
    assert [len(batch) for batch in batches] == [2, 2, 1, 0]
    assert sorted(id for batch in batches for id in ids(batch)) == sorted(ids(jobs))


async def test_rescuing_again_finds_nothing(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    after = await stored(engine, job.id)
    assert await changes.rescue(engine, [], 10) == []
    assert await stored(engine, job.id) == after


async def test_several_dead_workers_are_buried_at_once(engine):
    dead, live = [await running(engine) for _ in range(3)], await running(engine)
    rescued = await bury(engine, *(job.worker for job in dead))
    assert sorted(ids(rescued)) == sorted(ids(dead))
    assert [info.id for info in await engine.workers()] == [live.worker]


async def test_waiting_jobs_are_not_touched(engine):
    waiting = [await stored(engine, await put(engine, delay=delay)) for delay in (0, 60)]
    assert await changes.rescue(engine, [], 10) == []
    assert [await stored(engine, job.id) for job in waiting] == waiting


async def test_a_rescued_job_stands_where_it_stood(engine):
    jobs = await enqueue_jobs(engine, 4)
    claimed = await claim(engine, want=3)
    await bury(engine, claimed[0].worker)
    assert ids(await claim(engine, want=9)) == jobs


async def test_a_rescue_on_one_handle_is_seen_by_another(store):
    first, second = await store.open(), await store.open()
    job = await running(first)
    await bury(second, job.worker)
    assert (await claim_one(first, job.queue)).id == job.id


async def test_an_idle_worker_is_not_touched_by_anothers_death(engine):
    idle, job = await joined(engine), await running(engine)
    await bury(engine, job.worker)
    await engine.beat(idle)
