"""Law 5: a crash is not a failure, and only attempts that had started are charged."""

from __future__ import annotations

import pytest

from conformance.steps import (
    ask,
    bury,
    claim_one,
    finished,
    put,
    running,
    settle,
    standing_still,
    stored,
)
from penstock.core.job import CRASH_LIMIT, State
from penstock.core.lifecycle import RESCUE_LIMIT
from penstock.engines import changes


async def test_a_crash_is_counted_apart_from_failures(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    after = await stored(engine, job.id)
    assert (after.state, after.crashes, after.failures) == (State.READY, 1, 0)


async def test_a_crash_is_kept_among_the_errors(engine):
    job = await running(engine)
    (rescued,) = await bury(engine, job.worker)
    (error,) = (await stored(engine, job.id)).errors
    assert (error.kind, error.attempt, error.worker) == ("crash", 1, job.worker)
    assert rescued.errors == (error,)


async def test_an_attempt_that_had_not_started_is_not_charged(engine):
    await put(engine)
    job = await claim_one(engine, slots=0)
    await bury(engine, job.worker)
    after = await stored(engine, job.id)
    assert (after.state, after.crashes, after.errors) == (State.READY, 0, ())
    assert (after.attempt, after.rescues) == (0, 1)


async def test_an_attempt_that_had_begun_since_its_claim_is_charged(engine):
    await put(engine)
    job = await claim_one(engine, slots=0)
    await engine.exchange(ask(job.worker, want=0, begun=((job.id, 1),)))
    await bury(engine, job.worker)
    assert (await stored(engine, job.id)).crashes == 1


async def test_a_job_that_was_rescued_counts_as_started_from_its_next_claim_on(engine):
    """What kills its workers before they can say that it began is found out all the same."""
    await put(engine)
    first = await claim_one(engine, slots=0)
    await bury(engine, first.worker)
    second = await claim_one(engine, slots=0)
    assert second.started
    await bury(engine, second.worker)
    assert (await stored(engine, first.id)).crashes == 1


async def test_the_last_crash_allowed_fails_the_job(engine):
    id = await put(engine)
    for crash in range(1, CRASH_LIMIT + 1):
        job = await claim_one(engine)
        await engine.exchange(ask(job.worker, want=0, begun=((job.id, job.claim),)))
        (rescued,) = await bury(engine, job.worker)
        assert rescued.crashes == crash
        assert rescued.state is (State.READY if crash < CRASH_LIMIT else State.FAILED)
    after = await stored(engine, id)
    assert after == rescued
    assert (after.state, after.failures) == (State.FAILED, 0)
    assert after.reason == "crashed its worker 3 times"
    assert [error.attempt for error in after.errors] == [1, 2, 3]


async def test_a_rescue_may_be_told_how_many_crashes_end_the_job(engine):
    await put(engine)
    job = await claim_one(engine)
    (rescued,) = await changes.rescue(engine, [standing_still(job)], 10, 1)
    assert (rescued.state, rescued.reason) == (State.FAILED, "crashed its worker 1 times")


async def test_a_suspect_is_charged_only_if_its_worker_said_that_it_began(engine):
    """It runs in a process of its own: what else its workers die of is not its doing."""
    id = await put(engine)
    first = await claim_one(engine)
    await bury(engine, first.worker)
    second = await claim_one(engine)
    assert not second.started
    await bury(engine, second.worker)
    after = await stored(engine, id)
    assert (after.state, after.crashes, after.rescues) == (State.READY, 1, 2)


async def test_a_suspect_that_outlives_too_many_workers_is_given_up(engine):
    id = await put(engine)
    for _ in range(RESCUE_LIMIT):
        job = await claim_one(engine)
        await bury(engine, job.worker)
    after = await stored(engine, id)
    assert (after.state, after.crashes) == (State.FAILED, 1)
    assert after.reason == f"{RESCUE_LIMIT} workers died while they had it"


async def test_failures_do_not_count_as_crashes(engine):
    job = await running(engine)
    for _ in range(5):
        await settle(engine, job, "retry")
        job = await claim_one(engine, job.queue)
    (rescued,) = await bury(engine, job.worker)
    assert (rescued.state, rescued.failures, rescued.crashes) == (State.READY, 5, 1)


async def test_crashes_are_remembered_over_a_retry(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    job = await claim_one(engine, job.queue)
    await settle(engine, job, "retry")
    after = await stored(engine, job.id)
    assert (after.crashes, after.failures) == (1, 1)


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled"])
async def test_a_job_that_has_ended_is_not_rescued(engine, kind):
    job = await finished(engine, kind)
    assert await bury(engine, job.worker) == []
    assert await stored(engine, job.id) == job


async def test_a_job_that_waits_again_is_not_rescued_with_its_last_worker(engine):
    job = await running(engine)
    await settle(engine, job, "retry", delay=60)
    after = await stored(engine, job.id)
    assert await bury(engine, job.worker) == []
    assert await stored(engine, job.id) == after
