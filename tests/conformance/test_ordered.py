"""``ordered``: the jobs of a queue run one after the other, and nobody passes one that is open."""

from __future__ import annotations

import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    claim_one,
    draft,
    enqueue_jobs,
    ids,
    joined,
    joined_and_lifted,
    outcome,
    put,
    rejoined,
    send,
    settle,
    stored,
)
from conformance.test_nothing_to_do import nothing_to_do
from conformance.waiting import gives_in
from penstock.core.job import Hold
from penstock.engines import changes
from penstock.engines.records import Filter, QueueSettings

FINAL = ["succeeded", "failed", "cancelled", "expired"]


async def ordered(engine, queue="default", **more):
    await engine.set_queue(queue, QueueSettings(ordered=True, **more))


async def opened(engine, kind="retry", *, count=3, delay=60.0, **fields):
    """The first of several jobs of an ordered queue, which has ended its attempt as ``kind``."""
    await ordered(engine)
    await enqueue_jobs(engine, count, **fields)
    job = await claim_one(engine)
    if kind == "rescued":
        await bury(engine, job.worker)
    else:
        await settle(engine, job, kind, delay=delay)
    return job


async def drained(engine, **more):
    """The ids of all jobs that can run now, one after the other."""
    worker, done = await joined(engine), []
    while jobs := await claim(engine, worker=worker, want=9, **more):
        await settle(engine, jobs[0], "succeeded")
        done += ids(jobs)
    return done


# --- one at a time --------------------------------------------------------------------------------


async def test_however_many_are_wanted_one_is_given(engine):
    await ordered(engine)
    jobs = await enqueue_jobs(engine, 5)
    assert ids(await claim(engine, want=5)) == jobs[:1]


async def test_while_one_runs_no_worker_gets_another(engine, store):
    await ordered(engine)
    await enqueue_jobs(engine, 3)
    await claim_one(engine)
    assert await claim(engine, want=5) == []
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_a_job_that_waits_in_a_workers_hands_counts_as_running(engine):
    await ordered(engine)
    await enqueue_jobs(engine, 3)
    await claim_one(engine, slots=0)
    assert await claim(engine) == []


async def test_the_smaller_limit_counts(engine, store):
    await ordered(engine, max_running=5)
    await enqueue_jobs(engine, 3)
    assert len(await claim(engine, want=5)) == 1
    assert await claim(engine) == []
    await ordered(engine, "closed", max_running=0)
    await put(engine, queue="closed")
    await nothing_to_do(store, engine, ask(await joined(engine), "closed"))


@pytest.mark.parametrize("kind", FINAL)
async def test_when_it_has_ended_the_next_one_is_given_in_the_same_exchange(engine, kind):
    await ordered(engine)
    jobs = await enqueue_jobs(engine, 3)
    job = await claim_one(engine)
    turn = ask(job.worker, want=5, outcomes=(outcome(job, kind),))
    assert ids((await engine.exchange(turn)).jobs) == [jobs[1]]


async def test_all_run_in_the_order_of_their_tickets(engine):
    await ordered(engine)
    jobs = await enqueue_jobs(engine, 6)
    assert await drained(engine) == jobs


async def test_the_next_one_is_the_most_urgent(engine):
    await ordered(engine)
    low, normal, high = [await put(engine, priority=p) for p in (10, 5, 0)]
    job = await claim_one(engine)
    assert job.id == high
    higher = await put(engine, priority=-1)
    await settle(engine, job, "succeeded")
    assert await drained(engine) == [higher, normal, low]


# --- an open job ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["retry", "snooze"])
async def test_while_a_job_waits_for_its_next_attempt_all_others_wait(engine, store, kind):
    job = await opened(engine, kind)
    await put(engine, priority=0)
    await nothing_to_do(store, engine, ask(await joined(engine), want=5))
    store.clock.advance(61)
    again = await claim_one(engine, want=5)
    assert (again.id, again.attempt) == (job.id, 2)


@pytest.mark.parametrize("kind", ["released", "crashed", "rescued", "retry", "snooze"])
async def test_an_open_job_that_is_ready_is_the_only_one_that_can_be_claimed(engine, kind):
    """Whatever ticket it has, and however urgent others are."""
    job = await opened(engine, kind, delay=0.0)
    await put(engine, priority=-5)
    assert ids(await claim(engine, want=5)) == [job.id]


async def test_one_that_was_rescued_before_it_began_is_open_too(engine):
    await ordered(engine)
    await enqueue_jobs(engine, 2)
    job = await claim_one(engine, slots=0)
    await bury(engine, job.worker)
    await put(engine, priority=0)
    assert ids(await claim(engine, want=5)) == [job.id]


async def test_a_held_job_that_is_open_blocks_until_its_hold_is_over(engine, store):
    await ordered(engine)
    await enqueue_jobs(engine, 2)
    job = await claim_one(engine)
    await settle(engine, job, "released", hold=Hold.RATE, delay=60)
    await nothing_to_do(store, engine, ask(await joined(engine)))
    store.clock.advance(61)
    assert ids(await claim(engine)) == [job.id]


async def test_a_job_held_for_an_unknown_task_blocks_until_somebody_knows_it(engine, store):
    await ordered(engine)
    await put(engine, task="new")
    await put(engine)
    job = await claim_one(engine)
    await settle(engine, job, "released", hold=Hold.UNKNOWN_TASK, hold_cause="new")
    await nothing_to_do(store, engine, ask(await joined(engine)))
    worker = await joined_and_lifted(engine, tasks=["new"])
    assert ids(await claim(engine, worker=worker)) == [job.id]


@pytest.mark.parametrize("kind", FINAL)
async def test_when_an_open_job_has_ended_the_queue_goes_on(engine, kind):
    job = await opened(engine, "released")
    again = await claim_one(engine)
    assert again.id == job.id
    await settle(engine, again, kind)
    assert len(await drained(engine)) == 2


async def test_an_open_job_that_is_cancelled_frees_the_queue(engine):
    job = await opened(engine)
    turn = ask(await joined(engine))
    assert await gives_in(engine, turn) > 0
    await changes.cancel(engine, [job.id], "enough")
    assert len((await engine.exchange(turn)).jobs) == 1


async def test_an_open_job_that_is_purged_frees_the_queue(engine):
    job = await opened(engine)
    await engine.purge(Filter(ids=(job.id,)), 10)
    assert len(await drained(engine)) == 2


async def test_an_open_job_that_is_superseded_frees_the_queue(engine):
    await ordered(engine)
    await put(engine, unique="u", unique_until="start")
    job = await claim_one(engine)
    other = await put(engine, unique="u", unique_until="start")
    turn = ask(job.worker, outcomes=(outcome(job, "retry", delay=60),))
    answer = await engine.exchange(turn)
    assert answer.overruled == {job.id: f"superseded by {other}"}
    assert ids(answer.jobs) == [other]


async def test_an_open_job_that_expires_frees_the_queue(engine, store):
    await opened(engine, count=1, expires_in=30)
    behind = await put(engine)
    turn = ask(await joined(engine))
    assert not (await engine.exchange(turn)).jobs
    store.clock.advance(31)
    assert ids((await engine.exchange(turn)).jobs) == [behind]


async def test_a_job_given_up_after_its_crashes_frees_the_queue(engine):
    await ordered(engine)
    first, second = await enqueue_jobs(engine, 2)
    for _ in range(3):
        job = await claim_one(engine)
        assert job.id == first
        await settle(engine, job, "crashed")
    assert ids(await claim(engine)) == [second]


async def test_an_attempt_that_is_asked_to_end_blocks_until_it_has(engine):
    await ordered(engine)
    _, second = await enqueue_jobs(engine, 2)
    job = await claim_one(engine)
    await changes.cancel(engine, [job.id], "enough")
    assert await claim(engine) == []
    await settle(engine, job, "retry", delay=60)
    assert ids(await claim(engine)) == [second]


# --- what is not open -----------------------------------------------------------------------------


async def test_jobs_scheduled_for_later_that_never_ran_block_nobody(engine, store):
    await ordered(engine)
    later = await put(engine, delay=60)
    now = await put(engine)
    assert await drained(engine) == [now]
    store.clock.advance(61)
    assert await drained(engine) == [later]


async def test_a_job_that_a_person_sent_back_enters_like_a_new_one(engine):
    await ordered(engine)
    first, second, third = await enqueue_jobs(engine, 3)
    await settle(engine, await claim_one(engine), "failed")
    await changes.retry(engine, [first])
    assert await drained(engine) == [second, third, first]


async def test_once_it_is_claimed_again_it_is_open_again(engine, store):
    await ordered(engine)
    await put(engine)
    job = await claim_one(engine)
    await settle(engine, job, "failed")
    await changes.retry(engine, [job.id])
    assert (await stored(engine, job.id)).claimed_at is None
    await settle(engine, await claim_one(engine), "retry", delay=60)
    await put(engine)
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_an_open_job_that_was_cancelled_and_sent_back_is_not_open(engine):
    job = await opened(engine, count=2)
    urgent = await put(engine, priority=0)
    await changes.cancel(engine, [job.id], "enough")
    await changes.retry(engine, [job.id])
    done = await drained(engine)
    assert (done[0], done[-1]) == (urgent, job.id)


# --- switching it on and off ----------------------------------------------------------------------


async def test_switched_on_while_several_run_nothing_new_starts_until_all_have_ended(engine):
    jobs = await enqueue_jobs(engine, 5)
    running = await claim(engine, want=3)
    await ordered(engine)
    for job in running:
        assert await claim(engine) == []
        await settle(engine, job, "succeeded")
    assert await drained(engine) == jobs[3:]


async def test_jobs_that_were_open_together_come_one_by_one_before_any_new_one(engine, store):
    jobs = await enqueue_jobs(engine, 4)
    first, second, third = await claim(engine, want=3)
    await ordered(engine)
    await settle(engine, first, "retry", delay=60)
    await settle(engine, second, "released")
    await settle(engine, third, "released")
    assert await drained(engine) == [second.id, third.id]
    store.clock.advance(61)
    assert await drained(engine) == [first.id, jobs[3]]


async def test_switched_off_the_queue_gives_all_again(engine):
    await opened(engine, count=4)
    await engine.set_queue("default", QueueSettings())
    assert len(await claim(engine, want=9)) == 3


async def test_the_setting_is_kept(engine):
    await ordered(engine, max_running=2)
    assert await engine.queues() == {"default": QueueSettings(ordered=True, max_running=2)}


async def test_a_queue_named_twice_gives_one_job(engine):
    await ordered(engine)
    await enqueue_jobs(engine, 3)
    assert len(await claim(engine, "default", "default", want=9)) == 1


async def test_a_dead_workers_job_comes_first_though_its_worker_is_back(engine):
    await ordered(engine)
    await enqueue_jobs(engine, 2)
    job = await claim_one(engine)
    await bury(engine, job.worker)
    await rejoined(engine, job.worker)
    stale = await send(engine, job.worker, outcome(job, "succeeded"))
    assert stale.verdicts == ("stale",)
    assert ids(await claim(engine, want=5)) == [job.id]


async def test_a_batch_enqueued_behind_an_open_job_keeps_its_order(engine, store):
    job = await opened(engine, count=1)
    batch = [draft() for _ in range(3)]
    await engine.enqueue(batch)
    store.clock.advance(61)
    assert await drained(engine) == [job.id, *(each.id for each in batch)]
