"""``mend`` and ``tidy``: on a healthy store they change nothing, whatever happened to its jobs."""

from __future__ import annotations

import pytest

from conformance.steps import (
    bury,
    claim,
    claim_one,
    draft,
    enqueue_jobs,
    everything,
    finished,
    ids,
    put,
    running,
    settle,
    stored,
)
from penstock.core.job import Hold
from penstock.engines import changes
from penstock.engines.records import Filter, Mended, QueueSettings

HEALTHY = Mended()


async def test_an_empty_store_is_healthy(engine):
    assert await engine.mend() == HEALTHY


async def test_a_store_with_jobs_in_every_state_is_healthy(engine):
    await put(engine)
    await put(engine, delay=60)
    for kind in ("succeeded", "failed", "cancelled", "retry", "snooze", "released", "expired"):
        await finished(engine, kind)
    await running(engine)
    before = await everything(engine)
    assert await engine.mend() == HEALTHY
    assert await everything(engine) == before


async def test_holds_that_have_a_cause_are_left(engine):
    limited = await running(engine)
    await settle(engine, limited, "released", hold=Hold.RATE, hold_cause="api", delay=60)
    unknown = await running(engine, task="new")
    await settle(engine, unknown, "released", hold=Hold.UNKNOWN_TASK, hold_cause="new")
    before = await everything(engine)
    assert await engine.mend() == HEALTHY
    assert await everything(engine) == before


async def test_a_hold_without_a_cause_is_lifted(engine):
    job = await running(engine)
    await settle(engine, job, "released", hold=Hold.LIMIT)
    assert (await engine.mend()).unheld == 1
    assert (await stored(engine, job.id)).hold is None
    assert ids(await claim(engine, job.queue)) == [job.id]
    assert await engine.mend() == HEALTHY


@pytest.mark.parametrize("until", ["done", "start"])
async def test_unique_keys_in_use_are_left(engine, until):
    waiting = await put(engine, unique="a", unique_until=until)
    await running(engine, unique="b", unique_until=until)
    await finished(engine, "succeeded", unique="c", unique_until=until, unique_for=3600)
    assert await engine.mend() == HEALTHY
    taken = await engine.enqueue([draft(unique="a"), draft(unique="c")])
    assert [receipt.created for receipt in taken] == [False, False]
    assert taken[0].id == waiting


async def test_keys_are_healthy_after_every_way_to_end(engine, store):
    for kind in ("succeeded", "failed", "cancelled", "expired"):
        await finished(engine, kind, unique=kind)
    await changes.cancel(engine, [await put(engine, unique="cancel")], "enough")
    await put(engine, unique="expiry", expires_in=60)
    store.clock.advance(61)
    await engine.promote(10)
    await put(engine, unique="purge")
    await engine.purge(Filter(), 100)
    job = await running(engine, unique="rescue", at_most_once=True)
    await bury(engine, job.worker)
    job = await running(engine, unique="supersede", unique_until="start")
    await put(engine, unique="supersede")
    await settle(engine, job, "retry")
    assert await engine.mend() == HEALTHY


async def test_jobs_that_wait_unplaced_are_placed_or_left_but_never_lost(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    jobs = await enqueue_jobs(engine, 3, key="a")
    assert (await engine.mend()).placed in (0, 3)
    assert ids(await claim(engine, want=9)) == jobs


async def test_mending_again_finds_nothing(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await enqueue_jobs(engine, 3, key="a")
    await claim_one(engine)
    await engine.mend()
    assert await engine.mend() == HEALTHY


async def test_what_was_placed_by_a_mend_is_in_order(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    a = await enqueue_jobs(engine, 3, key="a")
    b = await enqueue_jobs(engine, 1, key="b")
    await engine.mend()
    assert ids(await claim(engine, want=9)) == [a[0], b[0], a[1], a[2]]
