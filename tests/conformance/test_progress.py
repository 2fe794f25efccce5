"""Reports in an exchange: how far an attempt has come, from inside the fence only."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conformance.steps import bury, claim_one, joined, outcome, put, running, settle, stored
from penstock.core.job import Verdict
from penstock.engines.records import Ask, Report
from penstock.errors import LeaseLost

NOBODYS = ["nothing", "", "a\0b"]
"""Ids that no job has, or can have."""


def report(job, fraction=0.5, note="halfway", **more):
    return Report(**{"job": job.id, "claim": job.claim, "fraction": fraction, "note": note, **more})


async def tell(engine, worker, *reports):
    return await engine.exchange(Ask(worker=worker, reports=reports))


async def test_a_report_is_stored(engine):
    job = await running(engine)
    for _ in range(2):
        await tell(engine, job.worker, report(job))
        assert await stored(engine, job.id) == replace(job, progress=0.5, note="halfway")


@pytest.mark.parametrize("kind", ["", "succeeded", "failed"])
async def test_the_last_report_counts(engine, kind):
    """Also of several in one exchange; what an earlier one saved stays."""
    job = await running(engine)
    await tell(engine, job.worker, report(job, 0.1, "a"))
    more = report(job, 0.5, "b", checkpoint=b"1"), report(job, 0.9, "c")
    outcomes = (outcome(job, kind),) if kind else ()
    assert job.worker is not None
    await engine.exchange(Ask(worker=job.worker, reports=more, outcomes=outcomes))
    after = await stored(engine, job.id)
    assert (after.progress, after.note, after.checkpoint) == (0.9, "c", b"1")


async def test_reports_from_outside_the_fence_change_nothing(engine):
    mine, other = await running(engine), await running(engine)
    waiting = await stored(engine, await put(engine))
    outside = [report(other), report(mine, claim=0), report(mine, claim=2), report(waiting)]
    await tell(engine, mine.worker, *outside, *(Report(job=id, claim=1) for id in NOBODYS))
    for job in (mine, other, waiting):
        assert await stored(engine, job.id) == job


@pytest.mark.parametrize("kind", ["succeeded", "failed", "retry", "released", "crashed"])
async def test_a_report_after_the_attempt_ended_changes_nothing(engine, kind):
    job = await running(engine)
    await settle(engine, job, kind, delay=60)
    after = await stored(engine, job.id)
    await tell(engine, job.worker, report(job))
    assert await stored(engine, job.id) == after


@pytest.mark.parametrize("left", [True, False], ids=["left", "buried"])
async def test_a_worker_without_a_lease_cannot_report(engine, left):
    job = await running(engine)
    await engine.leave(job.worker) if left else await bury(engine, job.worker)
    after = await stored(engine, job.id)
    with pytest.raises(LeaseLost):
        await tell(engine, job.worker, report(job))
    assert await stored(engine, job.id) == after


async def test_a_new_attempt_begins_without_progress(engine):
    job = await running(engine)
    await tell(engine, job.worker, report(job))
    await settle(engine, job, "retry")
    job = await claim_one(engine, job.queue)
    assert (job.progress, job.note) == (None, None)


@pytest.mark.parametrize("kind", ["succeeded", "failed"])
async def test_the_last_report_may_come_with_the_outcome(engine, kind):
    job = await running(engine)
    assert job.worker is not None
    last = report(job, 1.0, "sent 10 of 10")
    answer = await engine.exchange(
        Ask(worker=job.worker, reports=(last,), outcomes=(outcome(job, kind),))
    )
    assert answer.verdicts == (Verdict.DONE,)
    after = await stored(engine, job.id)
    assert (after.state, after.progress, after.note) == (kind, 1.0, "sent 10 of 10")


async def test_what_an_attempt_saved_is_there_for_the_next_one(engine):
    job = await running(engine)
    await tell(engine, job.worker, report(job, checkpoint=b'{"page":3}'))
    await tell(engine, job.worker, report(job, 0.6))
    await settle(engine, job, "retry")
    again = await claim_one(engine, job.queue)
    assert again.checkpoint == b'{"page":3}'
    assert await stored(engine, again.id) == again


async def test_what_was_saved_survives_the_death_of_the_worker(engine):
    job = await running(engine)
    await tell(engine, job.worker, report(job, checkpoint=bytes(range(256)) * 10))
    await bury(engine, job.worker)
    assert (await claim_one(engine, job.queue)).checkpoint == bytes(range(256)) * 10


async def test_no_reports_are_no_change(engine):
    await tell(engine, await joined(engine))
