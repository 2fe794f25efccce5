"""``retry``: a person sends failed or cancelled jobs back to the line."""

from __future__ import annotations

import pytest

from conformance.steps import (
    bury,
    claim,
    claim_one,
    finished,
    ids,
    put,
    running,
    settle,
    stored,
)
from penstock.core.job import State
from penstock.engines import changes
from penstock.engines.records import Control


@pytest.mark.parametrize("kind", ["failed", "cancelled", "expired"])
async def test_a_failed_or_cancelled_job_is_ready_again(engine, kind):
    job = await finished(engine, kind)
    assert await changes.retry(engine, [job.id]) == [Control(job.id, True, State.READY)]
    assert ids(await claim(engine, job.queue)) == [job.id]


async def test_it_starts_anew_with_its_attempts_remembered(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    job = await claim_one(engine, job.queue)
    await settle(engine, job, "failed", reason="boom")
    await changes.retry(engine, [job.id])
    job = await stored(engine, job.id)
    assert (job.failures, job.crashes, job.rescues, job.attempt) == (0, 0, 0, 2)
    assert (job.reason, job.finished_at, job.worker) == (None, None, None)
    assert [error.kind for error in job.errors] == ["crash"]
    assert (await claim_one(engine, job.queue)).attempt == 3


async def test_a_job_that_crashed_too_often_may_crash_as_often_again(engine):
    await put(engine)
    for _ in range(3):
        job = await claim_one(engine)
        await bury(engine, job.worker)
    await changes.retry(engine, [job.id])
    job = await claim_one(engine)
    (rescued,) = await bury(engine, job.worker)
    assert (rescued.state, rescued.crashes) == (State.READY, 1)


async def test_a_cancelled_scheduled_job_is_ready_at_once(engine):
    id = await put(engine, delay=3600)
    await changes.cancel(engine, [id], "enough")
    await changes.retry(engine, [id])
    job = await claim_one(engine)
    assert (job.id, job.run_at) == (id, None)


async def test_jobs_in_any_other_state_are_not_changed(engine):
    ready, scheduled = await put(engine), await put(engine, delay=60)
    runs, succeeded = await running(engine), await finished(engine, "succeeded")
    for id in (ready, scheduled, runs.id, succeeded.id):
        before = await stored(engine, id)
        assert await changes.retry(engine, [id]) == [Control(id, False, before.state)]
        assert await stored(engine, id) == before


async def test_an_unknown_id_is_no_error(engine):
    assert await changes.retry(engine, ["nothing"]) == [Control("nothing", False, None)]


async def test_each_id_has_its_own_answer_in_order(engine):
    failed, done = await finished(engine, "failed"), await finished(engine, "succeeded")
    assert await changes.retry(engine, [done.id, "nothing", failed.id, failed.id]) == [
        Control(done.id, False, State.SUCCEEDED),
        Control("nothing", False, None),
        Control(failed.id, True, State.READY),
        Control(failed.id, False, State.READY),
    ]


async def test_several_jobs_stand_in_line_as_they_were_named(engine):
    first, second = await put(engine), await put(engine)
    await changes.cancel(engine, [first, second], "enough")
    await changes.retry(engine, [second, first])
    assert ids(await claim(engine, want=5)) == [second, first]


async def test_it_can_end_again(engine):
    job = await finished(engine, "failed")
    await changes.retry(engine, [job.id])
    await settle(engine, await claim_one(engine, job.queue), "succeeded", result=b"2")
    after = await stored(engine, job.id)
    assert (after.state, after.result) == (State.SUCCEEDED, b"2")
