"""``repair``: on a healthy store it changes nothing, whatever happened to its jobs."""

from __future__ import annotations

import pytest

from conformance.steps import (
    bury,
    claim,
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
from penstock.engines.records import Filter, QueueSettings, Repaired, WorkerInfo

HEALTHY = (0, Repaired())


async def repaired(engine, limit=100):
    holds, _ = await changes.repair_holds(engine, limit)
    return holds, await engine.repair(limit)


async def test_an_empty_store_is_healthy(engine):
    assert await repaired(engine) == HEALTHY


async def test_a_store_with_jobs_in_every_state_is_healthy(engine):
    await put(engine)
    await put(engine, delay=60)
    for kind in ("succeeded", "failed", "cancelled", "retry", "snooze", "released", "expired"):
        await finished(engine, kind)
    await running(engine)
    before = await everything(engine)
    assert await repaired(engine) == HEALTHY
    assert await everything(engine) == before


async def test_holds_that_have_a_cause_are_left(engine):
    limited = await running(engine)
    await settle(engine, limited, "released", hold=Hold.RATE, hold_cause="api", delay=60)
    unknown = await running(engine, task="new")
    await settle(engine, unknown, "released", hold=Hold.UNKNOWN_TASK, hold_cause="new")
    before = await everything(engine)
    assert await repaired(engine) == HEALTHY
    assert await everything(engine) == before


async def test_a_hold_without_a_cause_is_lifted(engine):
    job = await running(engine, task="new")
    await settle(engine, job, "released", hold=Hold.UNKNOWN_TASK, hold_cause="new")
    await engine.join(WorkerInfo(id="knows", tasks=("new",)))
    assert (await repaired(engine))[0] == 1
    after = await stored(engine, job.id)
    assert (after.hold, after.seq > job.seq) == (None, True)
    assert ids(await claim(engine, job.queue)) == [job.id]
    assert await repaired(engine) == HEALTHY


@pytest.mark.parametrize("hold", sorted(set(Hold) - {Hold.UNKNOWN_TASK}))
async def test_a_hold_of_which_nothing_here_knows_the_cause_is_left(engine, hold):
    job = await put(engine)
    await changes.hold(engine, [job], hold, "another job")
    assert await repaired(engine) == HEALTHY
    assert (await stored(engine, job)).hold is hold


async def test_repair_may_be_rehearsed(engine):
    job = await running(engine, task="new")
    await settle(engine, job, "released", hold=Hold.UNKNOWN_TASK, hold_cause="new")
    await engine.join(WorkerInfo(id="knows", tasks=("new",)))
    assert await changes.repair_holds(engine, 10, rehearse=True) == (1, None)
    assert (await stored(engine, job.id)).hold is Hold.UNKNOWN_TASK
    assert await engine.repair(10, rehearse=True) == Repaired()


async def test_repair_looks_at_a_batch_at_a_time(engine):
    for number in range(5):
        await put(engine, unique=f"key-{number}")
    steps, cursor = 0, None
    while steps == 0 or cursor is not None:
        cursor = (await engine.repair(2, cursor)).cursor
        steps += 1
    assert steps == 3


@pytest.mark.parametrize("until", ["done", "start"])
async def test_unique_keys_in_use_are_left(engine, until):
    waiting = await put(engine, unique="a", unique_until=until)
    await running(engine, unique="b", unique_until=until)
    await finished(engine, "succeeded", unique="c", unique_until=until, unique_for=3600)
    assert await repaired(engine) == HEALTHY
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
    assert await repaired(engine) == HEALTHY


@pytest.mark.parametrize("settings", [{"fair": True}, {"max_running_per_key": 1}])
async def test_a_fair_queue_at_work_is_healthy(engine, settings):
    await engine.set_queue("default", QueueSettings(**settings))
    await enqueue_jobs(engine, 3, key="a")
    await put(engine, key="b")
    assert await repaired(engine) == HEALTHY
    await claim(engine, want=2)
    assert await repaired(engine) == HEALTHY
