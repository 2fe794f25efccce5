"""Law 8: every entry into ready takes a new ticket; only release, crash and rescue keep theirs."""

from __future__ import annotations

import pytest

from conformance.steps import bury, claim, claim_one, enqueue_jobs, ids, joined, put, settle, stored
from penstock.core.job import Hold, State
from penstock.engines import changes
from penstock.engines.records import QueueSettings


def ticket(job):
    return job.place, job.seq


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
    tickets = [ticket(job) for job in jobs]
    assert tickets == sorted(set(tickets))


async def test_a_later_batch_has_later_tickets(engine):
    first, second = await enqueue_jobs(engine, 2), await enqueue_jobs(engine, 2)
    assert await line(engine) == first + second


@pytest.mark.parametrize("kind", ["released", "crashed"])
async def test_a_job_that_is_given_back_keeps_its_ticket(engine, kind):
    job, behind = await first_of_three(engine)
    await settle(engine, job, kind)
    assert ticket(await stored(engine, job.id)) == ticket(job)
    assert await line(engine) == [job.id, *behind]


async def test_a_rescued_job_keeps_its_ticket(engine):
    job, behind = await first_of_three(engine)
    await bury(engine, job.worker)
    assert ticket(await stored(engine, job.id)) == ticket(job)
    assert await line(engine) == [job.id, *behind]


async def test_a_rescued_job_that_had_not_started_keeps_its_ticket(engine):
    first, second = await enqueue_jobs(engine, 2)
    job = await claim_one(engine, slots=0)
    await bury(engine, job.worker)
    assert ticket(await stored(engine, first)) == ticket(job)
    assert await line(engine) == [first, second]


@pytest.mark.parametrize("kind", ["retry", "snooze"])
async def test_a_job_that_tries_again_goes_to_the_end_of_the_line(engine, kind):
    job, behind = await first_of_three(engine)
    await settle(engine, job, kind, delay=0)
    assert await line(engine) == [*behind, job.id]
    assert ticket(await stored(engine, job.id)) > ticket(await stored(engine, behind[-1]))


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
    before = ticket(await stored(engine, delayed))
    meanwhile = await put(engine)
    store.clock.advance(61)
    await engine.promote(10)
    assert ticket(await stored(engine, delayed)) > before
    assert await line(engine) == [meanwhile, delayed]


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
async def test_a_job_that_a_person_sends_back_goes_to_the_end_of_the_line(engine, kind):
    job, behind = await first_of_three(engine)
    await settle(engine, job, kind)
    await changes.retry(engine, [job.id])
    assert await line(engine) == [*behind, job.id]


async def test_a_hold_that_is_lifted_by_a_joining_worker_keeps_the_ticket(engine):
    first, second = await enqueue_jobs(engine, 2, task="new")
    job = await claim_one(engine)
    await settle(engine, job, "released", hold=Hold.UNKNOWN_TASK, hold_cause="new")
    await joined(engine, tasks=["new"])
    assert ticket(await stored(engine, first)) == ticket(job)
    assert await line(engine) == [first, second]


async def test_jobs_of_a_fair_queue_enter_unplaced(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    job = await stored(engine, await put(engine, key="a"))
    assert (job.state, job.hold) == (State.READY, Hold.UNPLACED)


async def test_a_job_without_a_key_enters_a_fair_queue_unplaced_too(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    assert (await stored(engine, await put(engine))).hold is Hold.UNPLACED


async def test_a_scheduled_job_of_a_fair_queue_is_unplaced_only_when_it_is_due(engine, store):
    await engine.set_queue("default", QueueSettings(fair=True))
    id = await put(engine, key="a", delay=60)
    assert (await stored(engine, id)).hold is None
    store.clock.advance(61)
    await engine.promote(10)
    job = await stored(engine, id)
    assert (job.state, job.hold) == (State.READY, Hold.UNPLACED)


async def test_a_job_that_a_person_sends_back_enters_a_fair_queue_unplaced(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await put(engine, key="a")
    job = await claim_one(engine)
    await settle(engine, job, "failed")
    await changes.retry(engine, [job.id])
    assert (await stored(engine, job.id)).hold is Hold.UNPLACED
    assert await line(engine) == [job.id]


async def test_a_released_job_of_a_fair_queue_keeps_its_place(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await enqueue_jobs(engine, 3, key="a")
    *_, last = await claim(engine, want=3)
    await settle(engine, last, "released")
    after = await stored(engine, last.id)
    assert (ticket(after), after.hold) == (ticket(last), None)


async def test_a_rescued_job_of_a_fair_queue_keeps_its_place(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await enqueue_jobs(engine, 3, key="a")
    jobs = await claim(engine, want=3)
    await bury(engine, jobs[0].worker)
    after = [await stored(engine, job.id) for job in jobs]
    assert [(ticket(job), job.hold) for job in after] == [(ticket(job), None) for job in jobs]
