"""``purge``: what fits is deleted, unless it runs."""

from __future__ import annotations

import pytest

from conformance.steps import (
    claim,
    enqueue_jobs,
    everything,
    finished,
    ids,
    put,
    running,
    settle,
    stored,
)
from penstock.core.job import State, Verdict
from penstock.engines.records import Filter, QueueSettings


async def test_what_fits_is_deleted_and_counted(engine):
    await enqueue_jobs(engine, 3, queue="a")
    kept = await put(engine, queue="b")
    assert await engine.purge(Filter(queues=("a",)), 100) == 3
    assert ids(await everything(engine)) == [kept]


async def test_a_running_job_is_not_deleted(engine):
    job = await running(engine)
    assert await engine.purge(Filter(), 100) == 0
    assert await settle(engine, job, "succeeded") is Verdict.DONE


async def test_jobs_in_every_other_state_are_deleted(engine):
    await put(engine)
    await put(engine, delay=60)
    for kind in ("succeeded", "failed", "cancelled"):
        await finished(engine, kind)
    assert await engine.purge(Filter(), 100) == 5
    assert await everything(engine) == ()


async def test_no_more_than_the_limit_is_deleted_at_once(engine):
    await enqueue_jobs(engine, 5)
    assert [await engine.purge(Filter(), 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_running_jobs_do_not_use_up_the_limit(engine):
    await enqueue_jobs(engine, 5)
    await claim(engine, want=3)
    assert await engine.purge(Filter(), 2) == 2
    assert await engine.purge(Filter(), 2) == 0


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_only_jobs_of_the_states_named_are_deleted(engine, state):
    jobs = {kind: await finished(engine, kind) for kind in ("succeeded", "failed", "cancelled")}
    assert await engine.purge(Filter(states=(state,)), 100) == 1
    assert await engine.get([jobs[state].id]) == [None]


async def test_a_deleted_job_is_not_claimed(engine):
    await enqueue_jobs(engine, 3)
    await engine.purge(Filter(), 100)
    behind = await put(engine)
    assert ids(await claim(engine, want=9)) == [behind]


async def test_a_deleted_job_is_not_promoted(engine, store):
    await put(engine, delay=60, expires_in=90)
    await engine.purge(Filter(), 100)
    store.clock.advance(3600)
    promoted = await engine.promote(10)
    assert (promoted.ready, promoted.expired, promoted.due_in) == (0, 0, None)


async def test_a_deleted_job_is_not_placed(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await put(engine, key="a")
    await engine.purge(Filter(), 100)
    assert await claim(engine) == []


async def test_a_generated_id_can_come_back_after_it_was_deleted(engine):
    await put(engine, "a")
    await engine.purge(Filter(), 100)
    await put(engine, "a")
    assert (await stored(engine, "a")).state is State.READY


async def test_a_limit_below_zero_means_none(engine):
    await enqueue_jobs(engine, 3)
    assert await engine.purge(Filter(), -1) == 0
    assert len(await everything(engine)) == 3
