"""Expiry: a job that waited past its time is cancelled instead of run."""

from __future__ import annotations

import pytest

from conformance.steps import claim, claim_one, enqueue_jobs, ids, put, running, settle, stored
from penstock.core.job import Hold, State
from penstock.engines import changes
from penstock.engines.records import QueueSettings


async def has_expired(engine, id):
    job = await stored(engine, id)
    return (job.state, job.reason) == (State.CANCELLED, "expired") and job.finished_at is not None


async def test_an_expired_job_is_not_claimed(engine, store):
    id = await put(engine, expires_in=60)
    store.clock.advance(61)
    assert await claim(engine) == []
    assert await has_expired(engine, id)


async def test_a_job_is_claimed_before_it_expires(engine, store):
    id = await put(engine, expires_in=60)
    store.clock.advance(55)
    assert (await claim_one(engine)).id == id


async def test_promote_expires_what_waited_too_long(engine, store):
    ready, scheduled = await put(engine, expires_in=60), await put(engine, expires_in=60, delay=600)
    store.clock.advance(61)
    assert (await engine.promote(10)).expired == 2
    assert await has_expired(engine, ready)
    assert await has_expired(engine, scheduled)


async def test_expiry_counts_before_promotion(engine, store):
    id = await put(engine, delay=30, expires_in=60)
    store.clock.advance(61)
    promoted = await engine.promote(10)
    assert (promoted.ready, promoted.expired) == (0, 1)
    assert await has_expired(engine, id)


async def test_at_most_the_limit_expires_the_earliest_first(engine, store):
    late, early = await put(engine, expires_in=50), await put(engine, expires_in=10)
    store.clock.advance(61)
    assert (await engine.promote(1)).expired == 1
    assert await has_expired(engine, early)
    assert not await has_expired(engine, late)
    assert (await engine.promote(1)).expired == 1
    assert (await engine.promote(1)).expired == 0


async def test_a_job_that_runs_does_not_expire(engine, store):
    job = await running(engine, expires_in=60)
    store.clock.advance(61)
    assert (await engine.promote(10)).expired == 0
    assert await stored(engine, job.id) == job


@pytest.mark.parametrize("kind", ["retry", "released", "crashed"])
async def test_a_job_that_waits_again_expires(engine, store, kind):
    job = await running(engine, expires_in=60)
    store.clock.advance(61)
    await settle(engine, job, kind)
    assert await claim(engine, job.queue) == []
    assert await has_expired(engine, job.id)


async def test_a_held_job_expires(engine, store):
    job = await running(engine, expires_in=60)
    await settle(engine, job, "released", hold=Hold.BREAKER, hold_cause="api")
    store.clock.advance(61)
    assert (await engine.promote(10)).expired == 1
    assert await has_expired(engine, job.id)
    assert (await stored(engine, job.id)).hold is None


async def test_a_job_of_a_fair_queue_expires(engine, store):
    await engine.set_queue("default", QueueSettings(fair=True))
    id = await put(engine, key="a", expires_in=60)
    store.clock.advance(61)
    assert await claim(engine) == []
    assert await has_expired(engine, id)


async def test_a_job_of_a_paused_queue_expires(engine, store):
    await engine.set_queue("default", QueueSettings(paused=True))
    id = await put(engine, expires_in=60)
    store.clock.advance(61)
    await engine.promote(10)
    assert await has_expired(engine, id)


async def test_an_expired_job_does_not_stand_in_the_way(engine, store):
    await enqueue_jobs(engine, 5, expires_in=60)
    behind = await put(engine)
    store.clock.advance(61)
    assert ids(await claim(engine)) == [behind]


async def test_a_worker_may_say_that_a_job_expired_in_its_hands(engine):
    job = await running(engine)
    await settle(engine, job, "expired")
    assert await has_expired(engine, job.id)


async def test_an_expired_job_that_a_person_sends_back_does_not_expire_again(engine, store):
    id = await put(engine, expires_in=60)
    store.clock.advance(61)
    await engine.promote(10)
    await changes.retry(engine, [id])
    assert (await stored(engine, id)).expires_at is None
    store.clock.advance(1e6)
    assert (await claim_one(engine)).id == id
