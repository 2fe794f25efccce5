"""``edit`` and ``run_now``: what a person changes about jobs that wait."""

from __future__ import annotations

from conformance.steps import about, claim, ids, put, running, stored
from penstock.core.job import State
from penstock.engines import changes, reads


async def test_a_scheduled_job_that_is_run_now_is_ready_and_claimed(engine):
    id = await put(engine, delay=3600)
    (told,) = await changes.run_now(engine, [id])
    assert (told.changed, told.state) == (True, State.READY)
    assert (await stored(engine, id)).run_at == about(await reads.now(engine))
    assert ids(await claim(engine, want=5)) == [id]


async def test_a_ready_job_that_is_run_now_keeps_its_place_in_line(engine):
    first, second = await put(engine), await put(engine)
    (told,) = await changes.run_now(engine, [first])
    assert (told.changed, told.state) == (False, State.READY)
    assert ids(await claim(engine, want=5)) == [first, second]


async def test_what_runs_or_is_not_there_cannot_be_run_now(engine):
    job = await running(engine)
    told = await changes.run_now(engine, [job.id, "nobody"])
    assert [(each.changed, each.state) for each in told] == [(False, State.RUNNING), (False, None)]


async def test_a_waiting_job_is_moved_to_another_queue_with_another_priority(engine):
    id = await put(engine)
    (told,) = await changes.edit(engine, [id], queue="mail", priority=0)
    assert told.changed
    assert ids(await claim(engine, want=5)) == []
    (job,) = await claim(engine, "mail", want=5)
    assert (job.id, job.queue, job.priority) == (id, "mail", 0)


async def test_a_waiting_job_is_put_off_until_an_instant(engine):
    id = await put(engine)
    at = await reads.now(engine) + 3600
    (told,) = await changes.edit(engine, [id], run_at=at)
    assert (told.changed, told.state) == (True, State.SCHEDULED)
    assert (await stored(engine, id)).run_at == at
    assert ids(await claim(engine, want=5)) == []
