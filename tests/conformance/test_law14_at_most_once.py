"""Law 14: at most once: never handed out beyond the free slots, never run again after a rescue."""

from __future__ import annotations

from conformance.steps import (
    bury,
    claim,
    claim_one,
    enqueue_jobs,
    ids,
    put,
    running,
    settle,
    stored,
)
from penstock.core.job import State
from penstock.engines import changes
from penstock.engines.records import QueueSettings


async def test_it_is_not_handed_out_without_a_slot(engine):
    id = await put(engine, at_most_once=True)
    assert await claim(engine, want=5, slots=0) == []
    assert (await stored(engine, id)).state is State.READY


async def test_it_is_handed_out_within_the_slots(engine):
    id = await put(engine, at_most_once=True)
    job = await claim_one(engine, want=5, slots=1)
    assert (job.id, job.started) == (id, True)


async def test_beyond_the_slots_it_is_passed_over_for_those_behind_it(engine):
    first = await put(engine)
    once = await put(engine, at_most_once=True)
    behind = await put(engine)
    assert ids(await claim(engine, want=3, slots=1)) == [first, behind]
    assert (await stored(engine, once)).state is State.READY


async def test_it_may_take_the_last_slot(engine):
    first, once = await put(engine), await put(engine, at_most_once=True)
    behind = await put(engine, at_most_once=True)
    claimed = await claim(engine, want=3, slots=2)
    assert [(job.id, job.started) for job in claimed] == [(first, True), (once, True)]
    assert (await stored(engine, behind)).state is State.READY


async def test_it_keeps_its_place_when_it_was_passed_over(engine):
    once = await put(engine, at_most_once=True)
    behind = await enqueue_jobs(engine, 2)
    assert ids(await claim(engine, want=1, slots=0)) == [behind[0]]
    assert ids(await claim(engine, want=2, slots=2)) == [once, behind[1]]


async def test_what_is_passed_over_takes_no_room_from_others(engine):
    """Many of them stand at the head of the line, and a limit leaves room for few."""
    await engine.set_queue("default", QueueSettings(max_running=2))
    await enqueue_jobs(engine, 10, at_most_once=True)
    behind = await enqueue_jobs(engine, 3)
    assert ids(await claim(engine, want=2, slots=0)) == behind[:2]


async def test_the_slots_are_counted_over_all_queues(engine):
    await put(engine, queue="a")
    await put(engine, queue="b", at_most_once=True)
    assert [job.queue for job in await claim(engine, "a", "b", want=5, slots=1)] == ["a"]


async def test_a_rescue_fails_it_because_it_may_have_run(engine):
    job = await running(engine, at_most_once=True)
    (rescued,) = await bury(engine, job.worker)
    assert (rescued.state, rescued.reason) == (State.FAILED, "may have run")
    assert (rescued.crashes, rescued.failures) == (1, 0)
    assert await stored(engine, job.id) == rescued
    assert await claim(engine, job.queue) == []


async def test_a_rescue_of_one_that_was_asked_to_end_cancels_it(engine):
    job = await running(engine, at_most_once=True)
    await changes.cancel(engine, [job.id], "enough")
    (rescued,) = await bury(engine, job.worker)
    assert (rescued.state, rescued.reason) == (State.CANCELLED, "enough")


async def test_its_worker_may_give_it_back_before_it_ran(engine):
    job = await running(engine, at_most_once=True)
    await settle(engine, job, "released")
    assert (await claim_one(engine, job.queue)).attempt == 2


async def test_a_person_may_send_it_back(engine):
    job = await running(engine, at_most_once=True)
    await bury(engine, job.worker)
    (control,) = await changes.retry(engine, [job.id])
    assert control.changed
    assert (await claim_one(engine, job.queue)).at_most_once
