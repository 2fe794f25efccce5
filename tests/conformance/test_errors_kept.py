"""Errors: what went wrong is kept for every attempt, whatever comes after."""

from __future__ import annotations

import pytest

from conformance.steps import bury, claim_one, running, settle, stored
from penstock.core.job import ErrorRecord, State
from penstock.engines import changes


def error(attempt, message="boom"):
    return ErrorRecord(
        attempt=attempt,
        at=1000.25 + attempt,
        kind="builtins.ValueError",
        message=message,
        traceback='Traceback …\n  File "x.py"\nValueError: boom',
        worker="w-1",
    )


@pytest.mark.parametrize("kind", ["failed", "retry", "cancelled", "crashed"])
async def test_the_error_of_an_attempt_is_kept(engine, kind):
    job = await running(engine)
    await settle(engine, job, kind, error=error(1))
    assert (await stored(engine, job.id)).errors == (error(1),)


async def test_the_errors_of_all_attempts_are_kept_in_order(engine):
    job = await running(engine)
    for attempt in (1, 2, 3):
        await settle(engine, job, "retry", error=error(attempt))
        job = await claim_one(engine, job.queue)
    assert job.errors == (error(1), error(2), error(3))


async def test_errors_are_kept_after_a_success(engine):
    job = await running(engine)
    await settle(engine, job, "retry", error=error(1))
    job = await claim_one(engine, job.queue)
    await settle(engine, job, "succeeded", result=b"1")
    after = await stored(engine, job.id)
    assert (after.state, after.errors) == (State.SUCCEEDED, (error(1),))


async def test_a_crash_stands_among_the_errors(engine):
    job = await running(engine)
    await settle(engine, job, "retry", error=error(1))
    job = await claim_one(engine, job.queue)
    await bury(engine, job.worker)
    job = await claim_one(engine, job.queue)
    await settle(engine, job, "failed", error=error(3))
    kinds = [record.kind for record in (await stored(engine, job.id)).errors]
    assert kinds == ["builtins.ValueError", "crash", "builtins.ValueError"]


async def test_errors_are_kept_when_a_person_sends_the_job_back(engine):
    job = await running(engine)
    await settle(engine, job, "failed", error=error(1), reason="boom")
    await changes.retry(engine, [job.id])
    after = await stored(engine, job.id)
    assert (after.errors, after.failures, after.reason) == ((error(1),), 0, None)


async def test_the_reason_of_a_failure_is_kept(engine):
    job = await running(engine)
    await settle(engine, job, "failed", reason="gave up after 3 retries", error=error(1))
    after = await stored(engine, job.id)
    assert (after.state, after.reason) == (State.FAILED, "gave up after 3 retries")
    assert after.failures == 1


async def test_an_outcome_without_an_error_adds_none(engine):
    job = await running(engine)
    await settle(engine, job, "failed")
    assert (await stored(engine, job.id)).errors == ()


async def test_an_error_of_an_attempt_that_was_asked_to_end_is_kept(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    await settle(engine, job, "retry", error=error(1))
    after = await stored(engine, job.id)
    assert (after.state, after.errors, after.failures) == (State.CANCELLED, (error(1),), 1)


async def test_an_error_from_outside_the_fence_is_not_kept(engine):
    job, other = await running(engine), await running(engine)
    await settle(engine, job, "failed", by=other.worker, error=error(1))
    assert (await stored(engine, job.id)).errors == ()
