"""``prune``: what ended long enough ago goes, and nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conformance.steps import (
    bury,
    claim_one,
    everything,
    finished,
    ids,
    put,
    running,
    settle,
    stored,
)
from penstock.engines import changes
from penstock.engines.records import Pruned

DAY = 86400.0
WEEK = 7 * DAY


@pytest.mark.parametrize("kind", ["succeeded", "cancelled"])
async def test_history_is_kept_for_seven_days(engine, store, kind):
    job = await finished(engine, kind)
    store.clock.advance(WEEK - 60)
    assert (await engine.prune(100)).jobs == 0
    assert await stored(engine, job.id) == job
    store.clock.advance(120)
    assert (await engine.prune(100)).jobs == 1
    assert await engine.get([job.id]) == [None]


async def test_a_job_that_has_not_ended_is_never_pruned(engine, store):
    waiting = [await put(engine), await put(engine, delay=100 * DAY)]
    runs = await running(engine)
    again = await running(engine)
    await settle(engine, again, "retry", delay=100 * DAY)
    store.clock.advance(50 * DAY)
    assert (await engine.prune(100)).jobs == 0
    assert sorted(ids(await everything(engine))) == sorted([*waiting, runs.id, again.id])


async def test_the_end_counts_not_the_beginning(engine, store):
    await put(engine)
    store.clock.advance(2 * WEEK)
    job = await claim_one(engine)
    await settle(engine, job, "succeeded")
    store.clock.advance(DAY)
    assert (await engine.prune(100)).jobs == 0


async def test_a_job_that_a_person_sent_back_is_not_pruned(engine, store):
    job = await finished(engine, "failed")
    store.clock.advance(2 * WEEK)
    await changes.retry(engine, [job.id])
    assert (await engine.prune(100)).jobs == 0


async def test_no_more_than_the_limit_is_pruned_at_once(engine, store):
    for _ in range(5):
        await finished(engine, "succeeded")
    store.clock.advance(2 * WEEK)
    assert [(await engine.prune(2)).jobs for _ in range(4)] == [2, 2, 1, 0]


async def test_no_more_ids_than_the_limit_are_pruned_at_once(engine, store):
    for number in range(3):
        await finished(engine, "succeeded", id=f"order-{number}", remember=DAY)
    store.clock.advance(2 * DAY)
    assert [(await engine.prune(2)).ids for _ in range(3)] == [2, 1, 0]


async def test_no_more_keys_than_the_limit_are_pruned_at_once(engine, store):
    for number in range(3):
        await finished(engine, "succeeded", unique=f"key-{number}", unique_for=DAY)
    store.clock.advance(2 * DAY)
    assert [(await engine.prune(2)).keys for _ in range(3)] == [2, 1, 0]


async def test_pruning_an_empty_store_finds_nothing(engine):
    assert replace(await engine.prune(100), again_in=None) == Pruned()


async def test_a_job_that_ended_by_rescue_is_pruned(engine, store):
    job = await running(engine, at_most_once=True)
    await bury(engine, job.worker)
    store.clock.advance(5 * WEEK)
    assert (await engine.prune(100)).jobs == 1
