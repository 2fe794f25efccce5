"""``counts``: how many jobs there are, read from the jobs themselves."""

from __future__ import annotations

from conformance.steps import claim, enqueue_jobs, put, running, settle
from penstock.core.job import Hold, State
from penstock.engines.records import Filter, QueueSettings


async def counted(engine):
    return {(count.queue, count.state, count.hold): count.jobs for count in await engine.counts()}


async def test_an_empty_store_counts_nothing(engine):
    assert await engine.counts() == []


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
    await engine.set_queue("fair", QueueSettings(fair=True))
    await enqueue_jobs(engine, 2, queue="fair", key="a")
    await put(engine, queue="mail")
    assert await counted(engine) == {
        ("fair", State.READY, Hold.UNPLACED): 2,
        ("mail", State.READY, Hold.RATE): 1,
        ("mail", State.READY, None): 1,
    }


async def test_deleted_jobs_are_not_counted(engine):
    await enqueue_jobs(engine, 3)
    await engine.purge(Filter(), 2)
    assert await counted(engine) == {("default", State.READY, None): 1}
