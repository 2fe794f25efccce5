"""``claim`` counts every hand-out; ``attempt`` counts what was started."""

from __future__ import annotations

import pytest

from conformance.steps import bury, claim, claim_one, put, running, settle, stored
from penstock.core.job import State
from penstock.core.lifecycle import RESCUE_LIMIT
from penstock.engines import changes
from penstock.engines.records import Ask


async def test_a_claim_given_back_before_its_start_is_no_attempt(engine):
    job = await running(engine)
    assert (job.claim, job.attempt) == (1, 1)
    await settle(engine, job, "released", has_begun=False)
    after = await stored(engine, job.id)
    assert (after.claim, after.attempt) == (1, 0)
    again = await claim_one(engine, job.queue)
    assert (again.claim, again.attempt) == (2, 1)


@pytest.mark.parametrize("kind", ["released", "snooze", "cancelled", "expired"])
async def test_whatever_ends_it_before_its_start_it_was_no_attempt(engine, kind):
    job = await running(engine)
    await settle(engine, job, kind, has_begun=False)
    after = await stored(engine, job.id)
    assert (after.claim, after.attempt) == (1, 0)


async def test_an_attempt_that_began_and_was_given_back_counts(engine):
    job = await running(engine)
    await settle(engine, job, "released")
    assert (await stored(engine, job.id)).attempt == 1


async def test_a_job_rescued_before_its_start_had_no_attempt(engine):
    await put(engine)
    (job,) = await claim(engine, want=1, slots=0)
    await bury(engine, job.worker)
    after = await stored(engine, job.id)
    assert (after.claim, after.attempt, after.crashes) == (1, 0, 0)


async def test_nor_is_one_that_was_to_be_cancelled_meanwhile(engine):
    given_back = await running(engine)
    await put(engine)
    (lost,) = await claim(engine, want=1, slots=0)
    await changes.cancel(engine, [given_back.id, lost.id], "enough")
    await settle(engine, given_back, "released", has_begun=False)
    await bury(engine, lost.worker)
    for job in (given_back, lost):
        after = await stored(engine, job.id)
        assert (after.state, after.claim, after.attempt) == (State.CANCELLED, 1, 0)


async def test_a_job_that_is_given_up_before_its_start_had_no_attempt_more(engine):
    """One of its workers died of it, perhaps; all the others only had it."""
    job = await running(engine)
    await bury(engine, job.worker)
    while True:
        (job,) = await claim(engine, job.queue, slots=0)
        await bury(engine, job.worker)
        after = await stored(engine, job.id)
        assert (after.claim, after.attempt, after.crashes) == (after.rescues, 1, 1)
        if after.state.is_final:
            break
    assert after.reason == f"{RESCUE_LIMIT} workers died while they had it"


async def test_a_job_rescued_after_its_start_had_one(engine):
    await put(engine)
    (job,) = await claim(engine, want=1, slots=0)
    assert job.worker is not None
    await engine.exchange(Ask(worker=job.worker, begun=((job.id, job.claim),)))
    await bury(engine, job.worker)
    after = await stored(engine, job.id)
    assert (after.claim, after.attempt, after.crashes) == (1, 1, 1)
    assert [error.attempt for error in after.errors] == [1]


@pytest.mark.parametrize("kind", ["retry", "snooze", "crashed"])
async def test_every_attempt_that_ran_counts(engine, kind):
    job = await running(engine)
    await settle(engine, job, kind)
    again = await claim_one(engine, job.queue)
    assert (again.claim, again.attempt) == (2, 2)


async def test_a_retry_by_a_person_goes_on_counting(engine):
    job = await running(engine)
    await settle(engine, job, "failed")
    await changes.retry(engine, [job.id])
    again = await claim_one(engine, job.queue)
    assert (again.claim, again.attempt) == (2, 2)


async def test_the_job_that_is_handed_out_is_the_job_that_is_stored(engine):
    meta = b'{"tenant":"a"}'
    await put(engine, "whole", key="k", tags=("t",), name="n", meta=meta, keep=60.0)
    job = await claim_one(engine)
    assert (job.meta, job.keep) == (meta, 60.0)
    assert await stored(engine, "whole") == job
