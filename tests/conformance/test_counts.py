"""``counts``: how many jobs there are, read from the jobs themselves."""

from __future__ import annotations

from conformance.steps import claim, enqueue_jobs, finished, put, running, settle, stored
from penstock.core.job import Hold, State
from penstock.engines import changes, reads
from penstock.engines.records import Filter


async def counted(engine):
    return {
        (count.queue, count.state, count.hold): count.jobs
        for count in await engine.counts(Filter())
    }


async def test_an_empty_store_counts_nothing(engine):
    assert await engine.counts(Filter()) == []


async def test_jobs_are_counted_per_queue_and_state(engine):
    await enqueue_jobs(engine, 3, queue="a")
    await enqueue_jobs(engine, 2, queue="a", delay=60)
    await enqueue_jobs(engine, 4, queue="b")
    jobs = await claim(engine, "b", want=3)
    await settle(engine, jobs[0], "succeeded")
    await settle(engine, jobs[1], "failed")
    assert await counted(engine) == {
        ("a", State.READY, None): 3,
        ("a", State.SCHEDULED, None): 2,
        ("b", State.READY, None): 1,
        ("b", State.RUNNING, None): 1,
        ("b", State.SUCCEEDED, None): 1,
        ("b", State.FAILED, None): 1,
    }


async def test_jobs_are_counted_per_hold(engine):
    job = await running(engine, queue="mail")
    await settle(engine, job, "released", hold=Hold.RATE, hold_cause="api", delay=60)
    await changes.hold(engine, await enqueue_jobs(engine, 2, queue="news"), Hold.BREAKER, "api")
    await put(engine, queue="mail")
    assert await counted(engine) == {
        ("mail", State.READY, Hold.RATE): 1,
        ("mail", State.READY, None): 1,
        ("news", State.READY, Hold.BREAKER): 2,
    }


async def test_deleted_jobs_are_not_counted(engine):
    await enqueue_jobs(engine, 3)
    await engine.purge(Filter(), 2)
    assert await counted(engine) == {("default", State.READY, None): 1}


async def test_jobs_are_counted_per_priority(engine):
    await enqueue_jobs(engine, 2, priority=0)
    await enqueue_jobs(engine, 3, priority=10)
    found = {count.priority: count.jobs for count in await engine.counts(Filter())}
    assert found == {0: 2, 10: 3}


async def test_jobs_are_counted_by_when_they_ended(engine, store):
    await finished(engine, "succeeded")
    store.clock.advance(100)
    await finished(engine, "failed")
    await finished(engine, "cancelled")
    await put(engine)
    since = Filter(finished_since=await reads.now(engine) - 50)
    found = {count.state: count.jobs for count in await engine.counts(since)}
    assert found == {State.FAILED: 1, State.CANCELLED: 1}


async def test_jobs_are_counted_by_their_tickets(engine):
    first, second, third = [await stored(engine, id) for id in await enqueue_jobs(engine, 3)]
    assert first.seq < second.seq < third.seq
    (count,) = await engine.counts(Filter(tickets_below=third.seq))
    assert count.jobs == 2


async def test_open_jobs_are_those_that_were_claimed_and_have_not_ended(engine):
    await put(engine)
    job = await running(engine, queue="default")
    await finished(engine, "succeeded", queue="other")
    (count,) = await engine.counts(Filter(is_open=True))
    assert (count.state, count.jobs) == (State.RUNNING, 1)
    await settle(engine, job, "retry", delay=60)
    (count,) = await engine.counts(Filter(is_open=True))
    assert (count.state, count.jobs) == (State.SCHEDULED, 1)
    assert [each.id for each in (await engine.find(Filter(is_open=True), None, 9)).jobs] == [job.id]
