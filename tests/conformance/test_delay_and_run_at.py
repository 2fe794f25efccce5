"""Delays and instants: a job is scheduled until its time comes."""

from __future__ import annotations

import pytest

from conformance.steps import about, claim, claim_one, ids, put, running, settle, stored
from penstock.core.job import State
from penstock.engines import reads


async def test_a_delayed_job_is_scheduled(engine):
    now = await reads.now(engine)
    job = await stored(engine, await put(engine, delay=60))
    assert (job.state, job.run_at) == (State.SCHEDULED, about(now + 60))


async def test_a_delayed_job_is_not_claimed_before_its_time(engine, store):
    id = await put(engine, delay=60)
    store.clock.advance(55)
    assert await claim(engine) == []
    store.clock.advance(10)
    assert (await claim_one(engine)).id == id


async def test_a_job_with_an_instant_to_come_is_scheduled(engine):
    at = await reads.now(engine) + 3600
    job = await stored(engine, await put(engine, run_at=at))
    assert (job.state, job.run_at) == (State.SCHEDULED, at)


@pytest.mark.parametrize("ago", [0, 3600])
async def test_a_job_with_an_instant_that_is_past_is_ready(engine, ago):
    at = await reads.now(engine) - ago
    job = await stored(engine, await put(engine, run_at=at))
    assert (job.state, job.run_at) == (State.READY, at)


async def test_an_instant_counts_before_a_delay(engine):
    at = await reads.now(engine) - 60
    assert (await stored(engine, await put(engine, run_at=at, delay=600))).state is State.READY


@pytest.mark.parametrize("delay", [0, -5])
async def test_no_delay_means_ready(engine, delay):
    assert (await stored(engine, await put(engine, delay=delay))).state is State.READY


async def test_jobs_enter_ready_in_the_order_of_their_instants(engine, store):
    delays = [50, 10, 40, 20, 30]
    jobs = {delay: await put(engine, delay=delay) for delay in delays}
    store.clock.advance(61)
    assert (await engine.promote(100)).ready == 5
    assert ids(await claim(engine, want=9)) == [jobs[delay] for delay in sorted(delays)]


async def test_jobs_of_one_instant_enter_ready_in_the_order_of_their_tickets(engine, store):
    at = await reads.now(engine) + 60
    jobs = [await put(engine, run_at=at) for _ in range(5)]
    store.clock.advance(61)
    assert ids(await claim(engine, want=9)) == jobs


async def test_promote_takes_the_earliest_first_up_to_its_limit(engine, store):
    late, early, middle = [await put(engine, delay=delay) for delay in (50, 10, 30)]
    store.clock.advance(61)
    assert (await engine.promote(2)).ready == 2
    states = [(await stored(engine, id)).state for id in (early, middle, late)]
    assert states == [State.READY, State.READY, State.SCHEDULED]
    assert (await engine.promote(2)).ready == 1
    assert (await engine.promote(2)).ready == 0


async def test_the_earliest_of_several_queues_are_promoted_first(engine, store):
    late = await put(engine, queue="a", delay=50)
    early = await put(engine, queue="b", delay=10)
    store.clock.advance(61)
    assert (await engine.promote(1)).ready == 1
    assert (await stored(engine, early)).state is State.READY
    assert (await stored(engine, late)).state is State.SCHEDULED


async def test_promote_leaves_what_is_not_due(engine):
    id = await put(engine, delay=60)
    assert (await engine.promote(10)).ready == 0
    assert (await stored(engine, id)).state is State.SCHEDULED


async def test_promote_says_when_the_next_job_falls_due(engine):
    assert (await engine.promote(10)).due_in is None
    await put(engine, delay=600, queue="a")
    await put(engine, delay=60, queue="b")
    due_in = (await engine.promote(10)).due_in
    assert 50 < due_in <= 60


async def test_promote_says_at_once_when_its_limit_left_something_due(engine, store):
    await put(engine, delay=10)
    await put(engine, delay=20)
    store.clock.advance(61)
    assert (await engine.promote(1)).due_in == 0


@pytest.mark.parametrize("kind", ["retry", "snooze"])
async def test_a_job_that_tries_again_later_is_scheduled(engine, store, kind):
    job = await running(engine)
    now = await reads.now(engine)
    await settle(engine, job, kind, delay=60)
    after = await stored(engine, job.id)
    assert (after.state, after.run_at, after.started) == (State.SCHEDULED, about(now + 60), False)
    assert await claim(engine, job.queue) == []
    store.clock.advance(61)
    assert (await claim_one(engine, job.queue)).attempt == 2


async def test_a_retry_is_a_failure_and_a_snooze_is_not(engine):
    retried, snoozed = await running(engine), await running(engine)
    await settle(engine, retried, "retry", reason="timeout")
    await settle(engine, snoozed, "snooze", reason="not yet")
    retried, snoozed = await stored(engine, retried.id), await stored(engine, snoozed.id)
    assert (retried.failures, retried.reason) == (1, "timeout")
    assert (snoozed.failures, snoozed.reason) == (0, "not yet")


async def test_a_scheduled_job_can_be_far_away(engine):
    at = await reads.now(engine) + 50 * 365 * 86400
    assert (await stored(engine, await put(engine, run_at=at))).run_at == at
