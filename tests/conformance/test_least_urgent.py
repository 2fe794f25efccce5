"""``least_urgent``: a worker may want only jobs that are urgent enough."""

from __future__ import annotations

import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    claim_one,
    enqueue_jobs,
    ids,
    joined,
    put,
    running,
    settle,
    soon,
    stored,
)
from conformance.test_nothing_to_do import nothing_to_do
from conformance.waiting import LONG, asleep, awake_after, gives_in, sleeps_through, work
from penstock.core.job import Hold, State
from penstock.engines import changes
from penstock.engines.records import QueueSettings

HIGH, NORMAL, LOW = 0, 5, 10


async def urgent_turn(engine, *queues, **more):
    """What a new worker asks that wants only high jobs."""
    return ask(await joined(engine), *queues, least_urgent=HIGH, **more)


async def test_only_jobs_that_are_urgent_enough_are_claimed(engine):
    low, normal, high, higher = [await put(engine, priority=p) for p in (LOW, NORMAL, HIGH, -7)]
    assert ids(await claim(engine, want=9, least_urgent=HIGH)) == [higher, high]
    assert ids(await claim(engine, want=9, least_urgent=NORMAL)) == [normal]
    assert ids(await claim(engine, want=9)) == [low]


async def test_nothing_is_claimed_if_nothing_is_urgent_enough(engine, store):
    id = await put(engine, priority=NORMAL)
    before = await stored(engine, id)
    await nothing_to_do(store, engine, await urgent_turn(engine, want=5))
    assert await stored(engine, id) == before


async def test_it_holds_for_every_queue_asked_for(engine):
    first = await put(engine, queue="a", priority=HIGH)
    await put(engine, queue="b", priority=LOW)
    third = await put(engine, queue="c", priority=HIGH)
    assert ids(await claim(engine, "a", "b", "c", want=9, least_urgent=HIGH)) == [first, third]


async def test_a_numberless_crowd_of_low_jobs_hides_no_high_one(engine):
    await enqueue_jobs(engine, 300, priority=LOW)
    high = await put(engine, priority=HIGH)
    turn = await urgent_turn(engine, want=9)
    assert ids((await engine.exchange(turn)).jobs) == [high]


async def test_what_falls_due_is_promoted_and_given_only_if_it_is_urgent_enough(engine, store):
    low, high = [await put(engine, priority=p, delay=60) for p in (LOW, HIGH)]
    store.clock.advance(61)
    assert ids(await claim(engine, want=9, least_urgent=HIGH)) == [high]
    assert (await stored(engine, low)).state is State.READY


async def test_a_low_job_that_has_fallen_due_cannot_be_given(engine, store):
    await put(engine, priority=LOW, delay=60)
    store.clock.advance(61)
    await nothing_to_do(store, engine, await urgent_turn(engine))


async def test_a_low_job_whose_hold_is_over_cannot_be_given(engine, store):
    job = await running(engine, priority=LOW)
    await settle(engine, job, "released", hold=Hold.RATE, delay=60)
    store.clock.advance(61)
    await nothing_to_do(store, engine, await urgent_turn(engine, job.queue))


async def test_a_high_job_that_falls_due_is_foretold(engine):
    await put(engine, priority=LOW, delay=600)
    await put(engine, priority=HIGH, delay=60)
    assert 50 < await gives_in(engine, await urgent_turn(engine)) <= 60


async def test_a_low_job_that_falls_due_ends_no_wait(engine, store):
    """Time goes on past it; the high one behind it is not missed."""
    await put(engine, priority=LOW, delay=30)
    await put(engine, priority=HIGH, delay=60)
    async with asleep(work(engine, await urgent_turn(engine), LONG)) as nap:
        store.clock.advance(31)
        await sleeps_through(engine, nap, put(await store.open(), queue="elsewhere"))
        await awake_after(store, nap, 30)


async def test_a_high_job_wakes_a_sleeper_that_wants_only_high_ones(store):
    sleeper, caller = await store.open(), await store.open()
    async with asleep(work(sleeper, await urgent_turn(sleeper), LONG)) as nap:
        await put(caller, priority=HIGH)
        await soon(nap)


async def test_a_low_job_does_not_wake_a_sleeper_that_wants_only_high_ones(store):
    sleeper, caller = await store.open(), await store.open()
    async with asleep(work(sleeper, await urgent_turn(sleeper), LONG)) as nap:
        await sleeps_through(sleeper, nap, put(caller, priority=LOW))


@pytest.mark.parametrize("kind", ["released", "crashed", "rescued"])
async def test_a_low_job_that_is_given_back_does_not_wake_it_either(store, kind):
    sleeper, other = await store.open(), await store.open()
    job = await running(other, priority=LOW)
    async with asleep(work(sleeper, await urgent_turn(sleeper, job.queue), LONG)) as nap:
        back = bury(other, job.worker) if kind == "rescued" else settle(other, job, kind)
        await sleeps_through(sleeper, nap, back)


async def test_a_cancellation_reaches_a_worker_whatever_it_wants(engine):
    job = await running(engine, priority=LOW)
    await changes.cancel(engine, [job.id], "enough")
    turn = ask(job.worker, least_urgent=HIGH)
    assert (await engine.exchange(turn)).cancels == (job.id,)


async def test_limits_slots_pauses_and_tasks_to_avoid_count_as_ever(engine):
    await engine.set_queue("full", QueueSettings(max_running=1))
    await engine.set_queue("paused", QueueSettings(paused=True))
    first, _ = await enqueue_jobs(engine, 2, queue="full", priority=HIGH)
    await put(engine, queue="paused", priority=HIGH)
    await put(engine, queue="open", priority=HIGH, task="heavy")
    once = await put(engine, queue="open", priority=HIGH, at_most_once=True)
    names, avoid = ("full", "paused", "open"), frozenset({"heavy"})
    given = await claim(engine, *names, want=9, slots=0, least_urgent=HIGH, avoid=avoid)
    assert ids(given) == [first]
    assert ids(await claim(engine, *names, want=9, least_urgent=HIGH, avoid=avoid)) == [once]


async def test_a_low_job_of_a_fair_queue_cannot_be_given(engine, store):
    await engine.set_queue("default", QueueSettings(fair=True))
    await put(engine, key="a", priority=LOW)
    await nothing_to_do(store, engine, await urgent_turn(engine))


async def test_in_a_fair_queue_the_keys_of_each_priority_take_turns(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await enqueue_jobs(engine, 2, key="a", priority=LOW)
    high = await enqueue_jobs(engine, 2, key="a", priority=HIGH)
    other = await put(engine, key="b", priority=HIGH)
    expected = [high[0], other, high[1]]
    assert ids(await claim(engine, want=9, least_urgent=HIGH)) == expected


async def test_a_job_that_is_urgent_enough_is_given_again_after_its_retry(engine):
    job = await running(engine, priority=HIGH)
    await settle(engine, job, "retry")
    assert (await claim_one(engine, job.queue, least_urgent=HIGH)).attempt == 2
