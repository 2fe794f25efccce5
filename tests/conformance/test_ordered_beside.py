"""``ordered`` beside the rest: other queues, fair queues, pauses, choosy workers, sleepers."""

from __future__ import annotations

from conformance.steps import (
    ask,
    claim,
    claim_one,
    enqueue_jobs,
    ids,
    joined,
    outcome,
    put,
    settle,
    soon,
    stored,
)
from conformance.test_nothing_to_do import nothing_to_do
from conformance.test_ordered import drained, opened, ordered
from conformance.waiting import LONG, asleep, awake_after, gives_in, sleeps_through, work
from penstock.core.job import State


async def test_a_paused_queue_gives_not_even_its_open_job(engine, store):
    await opened(engine, "released")
    await ordered(engine, paused=True)
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_other_queues_of_the_same_ask_are_not_held_up(engine):
    job = await opened(engine)
    others = await enqueue_jobs(engine, 3, queue="plain")
    await ordered(engine, "too")
    first, _ = await enqueue_jobs(engine, 2, queue="too")
    given = ids(await claim(engine, "default", "plain", "too", want=9))
    assert sorted(given) == sorted([*others, first])
    assert (await stored(engine, job.id)).state is State.SCHEDULED


async def test_its_job_takes_its_turn_among_the_queues(engine):
    await ordered(engine)
    first, _ = await enqueue_jobs(engine, 2)
    plain = await enqueue_jobs(engine, 2, queue="plain")
    urgent = await put(engine, queue="plain", priority=0)
    given = ids(await claim(engine, "default", "plain", want=9))
    assert given == [urgent, first, *plain]


async def test_the_keys_of_a_fair_queue_take_turns_one_job_at_a_time(engine):
    await ordered(engine, fair=True)
    a = await enqueue_jobs(engine, 3, key="a")
    b = await put(engine, key="b")
    assert await drained(engine) == [a[0], b, a[1], a[2]]


async def test_an_open_job_of_a_fair_queue_comes_first_also_with_a_new_ticket(engine, store):
    await ordered(engine, fair=True)
    await enqueue_jobs(engine, 3, key="a")
    job = await claim_one(engine)
    await settle(engine, job, "retry", delay=60)
    last = await put(engine, key="b")
    await nothing_to_do(store, engine, ask(await joined(engine)))
    store.clock.advance(61)
    await engine.promote(10)
    assert (await stored(engine, job.id)).seq > (await stored(engine, last)).seq
    assert ids(await claim(engine, want=5)) == [job.id]


async def test_new_keys_behind_an_open_job_are_no_reason_to_wake(engine, store):
    await ordered(engine, fair=True)
    await put(engine, key="a")
    await settle(engine, await claim_one(engine), "retry", delay=60)
    async with asleep(work(engine, ask(await joined(engine)), LONG)) as nap:
        await sleeps_through(engine, nap, put(await store.open(), key="b"))


async def test_what_a_worker_cannot_have_is_not_passed_over(engine, store):
    """Otherwise the order would depend on who asks."""
    await ordered(engine)
    heavy = await put(engine, task="heavy")
    once = await put(engine, at_most_once=True)
    behind = await put(engine, delay=30)
    store.clock.advance(31)
    await nothing_to_do(store, engine, ask(await joined(engine), avoid=frozenset({"heavy"})))
    await settle(engine, await claim_one(engine), "succeeded")
    assert (await stored(engine, heavy)).state is State.SUCCEEDED
    await nothing_to_do(store, engine, ask(await joined(engine), want=5, slots=0))
    assert await drained(engine) == [once, behind]


async def test_what_will_come_before_a_job_that_a_worker_cannot_have_is_foretold(engine, store):
    await ordered(engine)
    await put(engine, task="heavy")
    urgent = await put(engine, priority=0, delay=60)
    turn = ask(await joined(engine), avoid=frozenset({"heavy"}))
    assert 50 < await gives_in(engine, turn) <= 60
    store.clock.advance(61)
    assert ids((await engine.exchange(turn)).jobs) == [urgent]


async def test_an_open_job_that_a_worker_cannot_have_is_not_passed_over_either(engine, store):
    await ordered(engine)
    await put(engine, task="heavy")
    await put(engine)
    await settle(engine, await claim_one(engine), "released")
    await nothing_to_do(store, engine, ask(await joined(engine), avoid=frozenset({"heavy"})))


async def test_an_open_job_that_is_not_urgent_enough_is_not_passed_over(engine, store):
    await opened(engine, "released", priority=5)
    await put(engine, priority=0)
    await nothing_to_do(store, engine, ask(await joined(engine), least_urgent=0))


async def test_an_expired_job_is_passed_over(engine, store):
    await ordered(engine)
    await put(engine, expires_in=30)
    behind = await put(engine)
    store.clock.advance(31)
    turn = ask(await joined(engine))
    assert ids((await engine.exchange(turn)).jobs) == [behind]


# --- waking up ------------------------------------------------------------------------------------


async def test_the_retry_of_an_open_job_is_foretold(engine):
    await ordered(engine)
    await enqueue_jobs(engine, 2)
    job = await claim_one(engine)
    turn = ask(job.worker, outcomes=(outcome(job, "retry", delay=60),))
    assert 50 < ((await engine.exchange(turn)).due_in or 0) <= 60


async def test_a_sleeper_wakes_when_the_retry_falls_due(engine, store):
    await opened(engine, delay=60)
    async with asleep(work(engine, ask(await joined(engine)), LONG)) as nap:
        await sleeps_through(engine, nap, put(await store.open(), priority=0))
        await awake_after(store, nap, 61)


async def test_a_sleeper_wakes_when_the_one_before_has_ended(store):
    sleeper, other = await store.open(), await store.open()
    await ordered(other)
    await enqueue_jobs(other, 2)
    job = await claim_one(other)
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await settle(other, job, "succeeded")
        await soon(nap)
