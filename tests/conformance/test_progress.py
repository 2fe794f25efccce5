"""``progress``: how far an attempt has come, from inside the fence only."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conformance.steps import bury, claim_one, joined, put, running, settle, stored
from penstock.core.job import Verdict
from penstock.engines.records import Report
from penstock.errors import LeaseLost


def report(job, fraction=0.5, note="halfway", attempt=None):
    attempt = job.attempt if attempt is None else attempt
    return Report(job=job.id, attempt=attempt, fraction=fraction, note=note)


async def test_a_report_is_stored(engine):
    job = await running(engine)
    assert await engine.progress(job.worker, [report(job)]) == [Verdict.DONE]
    assert await stored(engine, job.id) == replace(job, progress=0.5, note="halfway")


async def test_a_report_repeated_is_done(engine):
    job = await running(engine)
    for _ in range(2):
        assert await engine.progress(job.worker, [report(job)]) == [Verdict.DONE]


async def test_the_last_report_counts(engine):
    job = await running(engine)
    reports = [report(job, 0.1, "a"), report(job, 0.9, "b")]
    assert await engine.progress(job.worker, reports) == [Verdict.DONE] * 2
    after = await stored(engine, job.id)
    assert (after.progress, after.note) == (0.9, "b")


async def test_each_report_has_its_own_verdict(engine):
    mine, other = await running(engine), await running(engine)
    reports = [report(other), report(mine), Report(job="nothing", attempt=1)]
    verdicts = await engine.progress(mine.worker, reports)
    assert verdicts == [Verdict.STALE, Verdict.DONE, Verdict.STALE]
    assert await stored(engine, other.id) == other


@pytest.mark.parametrize("attempt", [0, 2])
async def test_a_report_of_another_attempt_is_stale(engine, attempt):
    job = await running(engine)
    assert await engine.progress(job.worker, [report(job, attempt=attempt)]) == [Verdict.STALE]
    assert await stored(engine, job.id) == job


async def test_a_report_of_a_job_that_waits_is_stale(engine):
    id = await put(engine)
    waiting = await stored(engine, id)
    assert await engine.progress(await joined(engine), [report(waiting)]) == [Verdict.STALE]
    assert await stored(engine, id) == waiting


@pytest.mark.parametrize("kind", ["succeeded", "failed", "retry", "released", "crashed"])
async def test_a_report_after_the_attempt_ended_changes_nothing(engine, kind):
    job = await running(engine)
    await settle(engine, job, kind, delay=60)
    after = await stored(engine, job.id)
    await engine.progress(job.worker, [report(job)])
    assert await stored(engine, job.id) == after


@pytest.mark.parametrize("left", [True, False], ids=["left", "buried"])
async def test_a_worker_without_a_lease_cannot_report(engine, left):
    job = await running(engine)
    await engine.leave(job.worker) if left else await bury(engine, job.worker)
    after = await stored(engine, job.id)
    try:
        assert await engine.progress(job.worker, [report(job)]) == [Verdict.STALE]
    except LeaseLost:
        pass  # as good an answer
    assert await stored(engine, job.id) == after


async def test_a_new_attempt_begins_without_progress(engine):
    job = await running(engine)
    await engine.progress(job.worker, [report(job)])
    await settle(engine, job, "retry")
    job = await claim_one(engine, job.queue)
    assert (job.progress, job.note) == (None, None)


async def test_the_progress_of_a_job_that_has_ended_is_kept(engine):
    job = await running(engine)
    await engine.progress(job.worker, [report(job, 1.0, "sent 10 of 10")])
    await settle(engine, job, "succeeded")
    after = await stored(engine, job.id)
    assert (after.progress, after.note) == (1.0, "sent 10 of 10")


async def test_no_reports_have_no_verdicts(engine):
    assert await engine.progress(await joined(engine), []) == []
