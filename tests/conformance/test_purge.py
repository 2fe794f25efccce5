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
from penstock.errors import BadOption


async def test_what_fits_is_deleted_and_counted(engine):
    await enqueue_jobs(engine, 3, queue="a")
    kept = await put(engine, queue="b")
    assert (await engine.purge(Filter(queues=("a",)), 100)).jobs == 3
    assert ids(await everything(engine)) == [kept]


async def test_a_running_job_is_not_deleted(engine):
    job = await running(engine)
    assert (await engine.purge(Filter(), 100)).jobs == 0
    assert await settle(engine, job, "succeeded") is Verdict.DONE


async def test_jobs_in_every_other_state_are_deleted(engine):
    await put(engine)
    await put(engine, delay=60)
    for kind in ("succeeded", "failed", "cancelled"):
        await finished(engine, kind)
    assert (await engine.purge(Filter(), 100)).jobs == 5
    assert await everything(engine) == ()


async def test_no_more_than_the_limit_is_deleted_at_once(engine):
    await enqueue_jobs(engine, 5)
    assert [(await engine.purge(Filter(), 2)).jobs for _ in range(4)] == [2, 2, 1, 0]


async def test_running_jobs_do_not_use_up_the_limit(engine):
    await enqueue_jobs(engine, 5)
    await claim(engine, want=3)
    assert (await engine.purge(Filter(), 2)).jobs == 2
    assert (await engine.purge(Filter(), 2)).jobs == 0


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_only_jobs_of_the_states_named_are_deleted(engine, state):
    jobs = {kind: await finished(engine, kind) for kind in ("succeeded", "failed", "cancelled")}
    assert (await engine.purge(Filter(states=(state,)), 100)).jobs == 1
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
    assert (await engine.purge(Filter(), -1)).jobs == 0
    assert len(await everything(engine)) == 3


async def test_the_next_step_goes_on_where_the_last_one_ended(engine):
    await enqueue_jobs(engine, 3, queue="a")
    await enqueue_jobs(engine, 3, queue="b")
    await enqueue_jobs(engine, 2, queue="a")
    which, cursor, steps = Filter(queues=("a",)), None, []
    while True:
        some = await engine.purge(which, 2, cursor)
        steps.append(some.jobs)
        if (cursor := some.cursor) is None:
            break
    assert steps == [2, 2, 1]
    assert {job.queue for job in await everything(engine)} == {"b"}


async def test_what_enters_while_jobs_are_deleted_stays(engine):
    await enqueue_jobs(engine, 5)
    some = await engine.purge(Filter(), 3)
    late = await put(engine)
    assert (await engine.purge(Filter(), 3, some.cursor)).cursor is None
    assert ids(await everything(engine)) == [late]


async def test_a_cursor_that_is_none_is_refused(engine):
    await put(engine)
    with pytest.raises(BadOption, match="give the one of the page before"):
        await engine.purge(Filter(), 10, "soon")
    assert len(await everything(engine)) == 1
