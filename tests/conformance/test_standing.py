"""Where a job stands, and what the workers have."""

from __future__ import annotations

import pytest

from conformance.steps import (
    bury,
    claim,
    claim_one,
    enqueue_jobs,
    joined,
    put,
    running,
    settle,
    stored,
)
from penstock.core.job import Hold, State
from penstock.engines import reads
from penstock.engines.reads import Standing
from penstock.engines.records import QueueSettings, Running


async def test_those_before_a_job_are_counted_by_priority_and_ticket(engine):
    await enqueue_jobs(engine, 3)
    id = await put(engine)
    await enqueue_jobs(engine, 2, priority=0)
    await enqueue_jobs(engine, 4)
    await enqueue_jobs(engine, 4, priority=10)
    await enqueue_jobs(engine, 4, queue="other", priority=0)
    found = await reads.standing(engine, id)
    assert (found.ahead, found.more_urgent, found.keys) == (5, 2, ())
    assert found.job == await stored(engine, id)


async def test_what_is_not_in_line_has_nobody_before_it(engine):
    await put(engine)
    later = await put(engine, delay=60)
    assert (await reads.standing(engine, later)).ahead == 0
    job = await claim_one(engine)
    assert (await reads.standing(engine, job.id)).ahead == 0


async def test_what_cannot_start_now_is_not_before_a_job(engine):
    await put(engine, delay=60)
    await settle(engine, await running(engine, queue="default"), "released", hold=Hold.BREAKER)
    id = await put(engine)
    assert (await reads.standing(engine, id)).ahead == 0


@pytest.mark.parametrize(
    "settings", [QueueSettings(fair=True), QueueSettings(max_running_per_key=2)]
)
async def test_only_jobs_of_its_own_key_are_surely_before_a_job_of_a_fair_queue(engine, settings):
    await engine.set_queue("fair", settings)
    await enqueue_jobs(engine, 3, queue="fair", key="big")
    await enqueue_jobs(engine, 2, queue="fair", key="small")
    last = await put(engine, queue="fair", key="big")
    found = await reads.standing(engine, last)
    assert (found.ahead, found.keys) == (3, (("big", 4), ("small", 2)))


async def test_an_open_job_blocks_the_others_of_an_ordered_queue(engine):
    await engine.set_queue("default", QueueSettings(ordered=True))
    first, second = await enqueue_jobs(engine, 2)
    job = await claim_one(engine)
    assert job.id == first
    assert (await reads.standing(engine, second)).blockers == ()
    await settle(engine, job, "retry", delay=60)
    assert (await reads.standing(engine, second)).blockers == (first,)
    assert (await reads.standing(engine, first)).blockers == ()
    await engine.set_queue("default", QueueSettings())
    assert (await reads.standing(engine, second)).blockers == ()


async def test_an_open_job_is_blocked_by_the_open_ones_that_are_ready_before_it(engine):
    first, second, third = await enqueue_jobs(engine, 3)
    for job in await claim(engine, want=3):
        delay = 60 if job.id == first else 0
        await settle(engine, job, "retry" if delay else "released", delay=delay)
    await engine.set_queue("default", QueueSettings(ordered=True))
    assert (await reads.standing(engine, third)).blockers == (second,)
    assert (await reads.standing(engine, second)).blockers == ()


async def test_an_open_job_that_has_expired_blocks_nobody(engine, store):
    await engine.set_queue("default", QueueSettings(ordered=True))
    await put(engine, expires_in=30)
    id = await put(engine)
    await settle(engine, await claim_one(engine), "retry", delay=60)
    store.clock.advance(31)
    assert (await reads.standing(engine, id)).blockers == ()


async def test_what_was_decided_about_the_queue_comes_along(engine):
    id = await put(engine, queue="mail")
    assert (await reads.standing(engine, id)).settings == QueueSettings()
    decided = QueueSettings(paused=True, note="later", fair=True)
    await engine.set_queue("mail", decided)
    assert (await reads.standing(engine, id)).settings == decided


async def test_an_unknown_id_stands_nowhere(engine, store):
    assert await reads.standing(engine, "nobody") == Standing(now=store.clock.now())


async def test_running_tells_what_each_worker_has(engine, store):
    now = store.clock.now()
    one, two = sorted([await joined(engine), await joined(engine)])
    first = await put(engine, task="a")
    await claim(engine, worker=one)
    store.clock.advance(5)
    await put(engine, task="a")
    await claim(engine, worker=one, slots=0)
    store.clock.advance(5)
    urgent = await put(engine, task="b", queue="mail", priority=0)
    await claim_one(engine, "mail", worker=two)
    assert await engine.running() == [
        Running(
            worker=one,
            queue="default",
            task="a",
            priority=5,
            jobs=2,
            started=1,
            first=first,
            since_at=now,
        ),
        Running(
            worker=two,
            queue="mail",
            task="b",
            priority=0,
            jobs=1,
            started=1,
            first=urgent,
            since_at=now + 10,
        ),
    ]


async def test_running_tells_of_workers_without_a_lease_until_their_jobs_are_rescued(engine):
    await put(engine)
    job = await claim_one(engine)
    await engine.leave(job.worker)
    assert [each.worker for each in await engine.running()] == [job.worker]
    assert [each.state for each in await bury(engine)] == [State.READY]
    assert await engine.running() == []
