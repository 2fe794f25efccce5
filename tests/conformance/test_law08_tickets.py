"""Law 8: every entry into ready takes a new ticket; only release, crash and rescue keep theirs."""

from __future__ import annotations

import pytest

from conformance.steps import (
    bury,
    claim,
    claim_one,
    enqueue_jobs,
    ids,
    joined_and_lifted,
    put,
    settle,
    stored,
)
from penstock.core.job import Hold, State
from penstock.engines import changes
from penstock.engines.records import QueueSettings


async def first_of_three(engine):
    """The first of three jobs, claimed, and the two behind it."""
    first, *behind = await enqueue_jobs(engine, 3)
    job = await claim_one(engine)
    assert job.id == first
    return job, behind


async def line(engine):
    """The ids of all waiting jobs in the order they are handed out."""
    return ids(await claim(engine, want=100))


async def test_tickets_are_given_in_the_order_of_the_drafts(engine):
    jobs = [await stored(engine, id) for id in await enqueue_jobs(engine, 20)]
    tickets = [job.seq for job in jobs]
    assert tickets == sorted(set(tickets))


async def test_a_later_batch_has_later_tickets(engine):
    first, second = await enqueue_jobs(engine, 2), await enqueue_jobs(engine, 2)
    assert await line(engine) == first + second


@pytest.mark.parametrize("kind", ["released", "crashed"])
async def test_a_job_that_is_given_back_keeps_its_ticket(engine, kind):
    job, behind = await first_of_three(engine)
    await settle(engine, job, kind)
    assert (await stored(engine, job.id)).seq == job.seq
    assert await line(engine) == [job.id, *behind]


async def test_a_rescued_job_keeps_its_ticket(engine):
    job, behind = await first_of_three(engine)
    await bury(engine, job.worker)
    assert (await stored(engine, job.id)).seq == job.seq
    assert await line(engine) == [job.id, *behind]


async def test_a_rescued_job_that_had_not_started_keeps_its_ticket(engine):
    first, second = await enqueue_jobs(engine, 2)
    job = await claim_one(engine, slots=0)
    await bury(engine, job.worker)
    assert (await stored(engine, first)).seq == job.seq
    assert await line(engine) == [first, second]


@pytest.mark.parametrize("kind", ["retry", "snooze"])
async def test_a_job_that_tries_again_goes_to_the_end_of_the_line(engine, kind):
    job, behind = await first_of_three(engine)
    await settle(engine, job, kind, delay=0)
    assert await line(engine) == [*behind, job.id]
    assert (await stored(engine, job.id)).seq > (await stored(engine, behind[-1])).seq


@pytest.mark.parametrize("kind", ["retry", "snooze"])
async def test_a_retry_takes_its_ticket_when_it_falls_due(engine, store, kind):
    """A job that came while it waited stands before it."""
    job, behind = await first_of_three(engine)
    await settle(engine, job, kind, delay=60)
    meanwhile = await put(engine)
    store.clock.advance(61)
    assert await line(engine) == [*behind, meanwhile, job.id]


async def test_a_promoted_job_takes_a_new_ticket(engine, store):
    delayed = await put(engine, delay=60)
    before = (await stored(engine, delayed)).seq
    meanwhile = await put(engine)
    store.clock.advance(61)
    await engine.promote(10)
    assert (await stored(engine, delayed)).seq > before
    assert await line(engine) == [meanwhile, delayed]


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
async def test_a_job_that_a_person_sends_back_goes_to_the_end_of_the_line(engine, kind):
    job, behind = await first_of_three(engine)
    await settle(engine, job, kind)
    await changes.retry(engine, [job.id])
    assert await line(engine) == [*behind, job.id]


async def test_a_job_whose_hold_is_lifted_goes_to_the_end_of_the_line(engine):
    first, second = await enqueue_jobs(engine, 2, task="new")
    job = await claim_one(engine)
    await settle(engine, job, "released", hold=Hold.UNKNOWN_TASK, hold_cause="new")
    assert (await stored(engine, first)).seq == job.seq
    await joined_and_lifted(engine, tasks=["new"])
    assert (await stored(engine, first)).seq > (await stored(engine, second)).seq
    assert await line(engine) == [second, first]


async def test_a_job_whose_hold_is_over_goes_to_the_end_of_the_line(engine, store):
    job, behind = await first_of_three(engine)
    await settle(engine, job, "released", hold=Hold.RATE, hold_cause="api", delay=60)
    meanwhile = await put(engine)
    store.clock.advance(61)
    await engine.promote(10)
    assert (await stored(engine, job.id)).seq > (await stored(engine, meanwhile)).seq
    assert await line(engine) == [*behind, meanwhile, job.id]


# --- fair queues: keys take turns, and the tickets are as in any other ----------------------------


@pytest.mark.parametrize("key", ["a", None])
async def test_a_job_enters_a_fair_queue_ready_and_with_a_ticket(engine, key):
    await engine.set_queue("default", QueueSettings(fair=True))
    first, second = [await stored(engine, await put(engine, key=key)) for _ in range(2)]
    assert [(job.state, job.hold) for job in (first, second)] == [(State.READY, None)] * 2
    assert first.seq < second.seq


async def test_a_scheduled_job_of_a_fair_queue_takes_a_new_ticket_when_it_is_due(engine, store):
    await engine.set_queue("default", QueueSettings(fair=True))
    delayed = await put(engine, key="a", delay=60)
    meanwhile = await put(engine, key="a")
    store.clock.advance(61)
    await engine.promote(10)
    job = await stored(engine, delayed)
    assert (job.state, job.hold) == (State.READY, None)
    assert job.seq > (await stored(engine, meanwhile)).seq
    assert await line(engine) == [meanwhile, delayed]


async def test_a_job_that_a_person_sends_back_to_a_fair_queue_goes_to_the_end_of_its_key(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    first, *behind = await enqueue_jobs(engine, 3, key="a")
    job = await claim_one(engine)
    await settle(engine, job, "failed")
    await changes.retry(engine, [job.id])
    assert (await stored(engine, first)).hold is None
    assert await line(engine) == [*behind, first]


async def test_a_released_job_of_a_fair_queue_keeps_its_ticket(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await enqueue_jobs(engine, 3, key="a")
    *_, last = await claim(engine, want=3)
    await settle(engine, last, "released")
    after = await stored(engine, last.id)
    assert (after.seq, after.hold) == (last.seq, None)


async def test_a_rescued_job_of_a_fair_queue_keeps_its_ticket(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await enqueue_jobs(engine, 3, key="a")
    jobs = await claim(engine, want=3)
    await bury(engine, jobs[0].worker)
    after = [await stored(engine, job.id) for job in jobs]
    assert [(job.seq, job.hold) for job in after] == [(job.seq, None) for job in jobs]
