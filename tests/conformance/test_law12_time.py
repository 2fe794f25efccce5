"""Law 12: time is read in one place, which tests can shift; durations are measured apart."""

from __future__ import annotations

from conformance.steps import about, ask, claim, claim_one, joined, put, running, settle, stored
from conformance.waiting import LONG, asleep, awake_after, sleeps_through, work
from penstock.core.job import ErrorRecord, State
from penstock.engines import reads
from penstock.engines.records import News
from penstock.engines.waiting import wait_for_results


async def test_the_stores_instant_moves_with_the_clock(engine, store):
    before = await reads.now(engine)
    store.clock.advance(3600)
    assert await reads.now(engine) == about(before + 3600)
    store.clock.jump(86400)
    assert await reads.now(engine) == about(before + 3600 + 86400)


async def test_all_handles_agree_on_the_time(store):
    first, second = await store.open(), await store.open()
    store.clock.advance(3600)
    assert await reads.now(first) == about(await reads.now(second))


async def test_every_instant_of_a_job_is_the_stores(engine, store):
    start = await reads.now(engine)
    id = await put(engine, delay=60, expires_in=86400)
    store.clock.advance(100)
    job = await claim_one(engine)
    store.clock.advance(100)
    await settle(engine, job, "failed")
    job = await stored(engine, id)
    assert job.enqueued_at == about(start)
    assert job.run_at == about(start + 60)
    assert job.expires_at == about(start + 86400)
    assert job.claimed_at == about(start + 100)
    assert job.finished_at == about(start + 200)


async def test_a_clock_that_jumps_forward_makes_jobs_due(engine, store):
    id = await put(engine, delay=3600)
    store.clock.jump(3601)
    assert (await claim_one(engine)).id == id


async def test_a_clock_that_jumps_back_delays_what_is_scheduled_only(engine, store):
    scheduled, ready = await put(engine, delay=60), await put(engine)
    store.clock.jump(-86400)
    (job,) = await claim(engine, want=5)
    assert job.id == ready
    assert (await stored(engine, scheduled)).state is State.SCHEDULED


async def test_a_clock_that_jumps_back_does_not_change_the_order(engine, store):
    first = await put(engine)
    store.clock.jump(-86400)
    second = await put(engine)
    assert [job.id for job in await claim(engine, want=5)] == [first, second]


async def test_a_clock_that_jumps_does_not_end_a_sleep(engine, store):
    async with asleep(work(engine, ask(await joined(engine)), 60)) as nap:
        store.clock.jump(LONG)
        await sleeps_through(engine, nap, put(engine, queue="elsewhere"))
        await awake_after(store, nap, 60)


async def test_a_clock_that_jumps_back_makes_no_sleep_longer(engine, store):
    seen = await engine.version(News.WORK)
    async with asleep(engine.listen(News.WORK, seen, 60)) as nap:
        store.clock.jump(-LONG)
        await awake_after(store, nap, 60)


async def test_a_clock_that_jumps_does_not_end_a_wait_for_results(engine, store):
    job = await running(engine)
    async with asleep(wait_for_results(engine, [job.id], 60)) as nap:
        store.clock.jump(LONG)
        await sleeps_through(engine, nap, put(engine))
        await awake_after(store, nap, 60)
    assert nap.result() == {}


async def test_the_instant_of_an_error_is_the_one_its_worker_noted(engine):
    job = await running(engine)
    error = ErrorRecord(attempt=1, at=1234.5, kind="E", message="m")
    await settle(engine, job, "failed", error=error)
    assert (await stored(engine, job.id)).errors == (error,)
