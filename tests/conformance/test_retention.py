"""How long what has ended is kept: a failed job for longer, and each as its draft says."""

from __future__ import annotations

import pytest

from conformance.steps import claim_one, created, draft, finished, known, put, settle, stored
from penstock.core.job import State
from penstock.engines import changes

DAY = 86400.0
MONTH = 30 * DAY


async def is_pruned(engine, id):
    """Nothing is left of the job after a round of pruning."""
    await engine.prune(100)
    return await engine.get([id]) == [None]


async def test_a_failed_job_is_kept_for_thirty_days(engine, store):
    job = await finished(engine, "failed")
    store.clock.advance(MONTH - 60)
    assert not await is_pruned(engine, job.id)
    assert await stored(engine, job.id) == job
    store.clock.advance(120)
    assert await is_pruned(engine, job.id)


@pytest.mark.parametrize("kind", ["succeeded", "cancelled", "expired"])
async def test_what_has_not_failed_is_kept_as_long_as_its_draft_says(engine, store, kind):
    job = await finished(engine, kind, keep=DAY)
    store.clock.advance(DAY - 60)
    assert not await is_pruned(engine, job.id)
    store.clock.advance(120)
    assert await is_pruned(engine, job.id)


async def test_a_failed_job_is_kept_as_long_as_its_draft_says(engine, store):
    job = await finished(engine, "failed", keep=MONTH, keep_failed=DAY)
    store.clock.advance(DAY - 60)
    assert not await is_pruned(engine, job.id)
    store.clock.advance(120)
    assert await is_pruned(engine, job.id)


async def test_jobs_that_end_together_go_each_in_its_time(engine, store):
    short = await finished(engine, "succeeded", keep=DAY)
    dead = await finished(engine, "failed", keep=DAY, keep_failed=3 * DAY)
    usual = await finished(engine, "succeeded")
    store.clock.advance(2 * DAY)
    assert [await is_pruned(engine, job.id) for job in (short, dead, usual)] == [True, False, False]
    store.clock.advance(2 * DAY)
    assert [await is_pruned(engine, job.id) for job in (dead, usual)] == [True, False]
    store.clock.advance(4 * DAY)
    assert await is_pruned(engine, usual.id)


async def test_a_job_that_is_sent_back_and_succeeds_is_kept_as_one_that_has_not_failed(
    engine, store
):
    id = (await finished(engine, "failed", keep=DAY, queue="default")).id
    store.clock.advance(10 * DAY)
    await changes.retry(engine, [id])
    await settle(engine, await claim_one(engine), "succeeded")
    job = await stored(engine, id)
    assert (job.state, job.keep, job.keep_failed) == (State.SUCCEEDED, DAY, MONTH)
    store.clock.advance(DAY + 60)
    assert await is_pruned(engine, id)


async def test_a_failed_job_can_be_sent_back_as_long_as_it_is_kept(engine, store):
    id = (await finished(engine, "failed", keep=60.0)).id
    store.clock.advance(MONTH - 60)
    await engine.prune(100)
    (control,) = await changes.retry(engine, [id])
    assert (control.changed, control.state) == (True, State.READY)


async def test_the_id_of_a_kept_job_stays_taken_though_the_ledger_has_forgotten_it(engine, store):
    await finished(engine, "failed", id="order-7", remember=60.0)
    store.clock.advance(MONTH - 60)
    assert (await engine.prune(100)).ids == 1
    assert await engine.enqueue([draft("order-7", remember=60.0)]) == [known("order-7")]
    store.clock.advance(120)
    assert await is_pruned(engine, "order-7")
    assert await engine.enqueue([draft("order-7", remember=60.0)]) == [created("order-7")]


async def test_a_worker_and_a_reader_see_how_long_a_job_is_kept(engine):
    id = await put(engine, keep=60.0, keep_failed=90.0)
    assert ((await stored(engine, id)).keep, (await stored(engine, id)).keep_failed) == (60.0, 90.0)
    job = await claim_one(engine)
    assert (job.keep, job.keep_failed) == (60.0, 90.0)


async def test_a_job_that_crashed_too_often_is_kept_as_a_failed_one(engine, store):
    job = await finished(engine, "failed", keep=60.0, at_most_once=True)
    store.clock.advance(DAY)
    assert not await is_pruned(engine, job.id)
