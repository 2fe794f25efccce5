"""An exchange that gives nothing says so, and lets its worker sleep: no worker spins."""

from __future__ import annotations

import pytest

from conformance.steps import ask, claim, joined, outcome, put, running, send
from conformance.waiting import LONG, asleep, awake_after, gives_in, sleeps_through, work
from penstock.core.job import Hold
from penstock.engines import changes
from penstock.engines.records import QueueSettings


async def nothing_to_do(store, engine, one_turn):
    """Neither does an exchange give anything, now or at once, nor does a wait return."""
    due_in = await gives_in(engine, one_turn)
    assert due_in is None or due_in > 0
    async with asleep(work(engine, one_turn, LONG)) as nap:
        await sleeps_through(engine, nap, put(await store.open(), queue="elsewhere"))
    answer = await engine.exchange(one_turn)
    assert (answer.jobs, answer.cancels) == ((), ())


async def test_nothing_can_be_given_from_empty_queues(engine, store):
    one_turn = ask(await joined(engine))
    assert await gives_in(engine, one_turn) is None
    await nothing_to_do(store, engine, one_turn)


async def test_a_ready_job_can_be_given_now(engine):
    await put(engine)
    assert await gives_in(engine, ask(await joined(engine))) == 0


async def test_a_job_of_another_queue_cannot_be_given(engine, store):
    await put(engine, queue="other")
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_a_worker_that_wants_nothing_is_given_nothing(engine, store):
    await put(engine)
    await nothing_to_do(store, engine, ask(await joined(engine), want=0))


async def test_a_paused_queue_gives_nothing(engine, store):
    await put(engine)
    await engine.set_queue("default", QueueSettings(paused=True))
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_a_paused_queue_gives_nothing_that_fell_due_either(engine, store):
    await put(engine, delay=60)
    await engine.set_queue("default", QueueSettings(paused=True))
    store.clock.advance(61)
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_a_paused_queue_does_not_hide_the_others(engine):
    await put(engine, queue="a")
    await put(engine, queue="b")
    await engine.set_queue("a", QueueSettings(paused=True))
    assert await gives_in(engine, ask(await joined(engine), "a", "b")) == 0


async def test_a_queue_without_room_gives_nothing(engine, store):
    await engine.set_queue("default", QueueSettings(max_running=1))
    await put(engine)
    await put(engine)
    await claim(engine)
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_a_key_without_room_gives_nothing(engine, store):
    await engine.set_queue("default", QueueSettings(max_running_per_key=1))
    await put(engine, key="a")
    await put(engine, key="a")
    await claim(engine)
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_a_key_without_room_does_not_hide_the_others(engine):
    await engine.set_queue("default", QueueSettings(max_running_per_key=1))
    await put(engine, key="a")
    await put(engine, key="a")
    await put(engine, key="b")
    await claim(engine)
    assert await gives_in(engine, ask(await joined(engine))) == 0


async def test_a_paused_fair_queue_gives_nothing(engine, store):
    await put(engine, key="a")
    await engine.set_queue("default", QueueSettings(fair=True, paused=True))
    await put(engine, key="b")
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_avoided_tasks_are_not_given(engine, store):
    await put(engine, task="heavy")
    one_turn = ask(await joined(engine), avoid=frozenset({"heavy"}))
    await nothing_to_do(store, engine, one_turn)


async def test_avoided_tasks_that_fell_due_are_not_given(engine, store):
    await put(engine, task="heavy", delay=60)
    store.clock.advance(61)
    one_turn = ask(await joined(engine), avoid=frozenset({"heavy"}))
    await nothing_to_do(store, engine, one_turn)


async def test_what_is_behind_avoided_tasks_is_given(engine):
    for _ in range(50):
        await put(engine, task="heavy")
    await put(engine, task="light")
    one_turn = ask(await joined(engine), avoid=frozenset({"heavy"}))
    assert await gives_in(engine, one_turn) == 0


async def test_a_job_that_runs_at_most_once_needs_a_slot(engine, store):
    await put(engine, at_most_once=True)
    worker = await joined(engine)
    await nothing_to_do(store, engine, ask(worker, want=5, slots=0))
    assert await gives_in(engine, ask(worker, want=5, slots=1)) == 0


@pytest.mark.parametrize("hold", Hold)
async def test_a_held_job_cannot_be_given(engine, store, hold):
    job = await running(engine, task="new")
    held = outcome(job, "released", hold=hold, hold_cause="api")
    await send(engine, job.worker, held)
    await nothing_to_do(store, engine, ask(await joined(engine), job.queue))


async def test_an_expired_job_cannot_be_given(engine, store):
    await put(engine, expires_in=60)
    store.clock.advance(61)
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_a_job_that_expires_before_it_falls_due_cannot_be_given(engine, store):
    await put(engine, delay=60, expires_in=30)
    store.clock.advance(61)
    await nothing_to_do(store, engine, ask(await joined(engine)))


async def test_a_job_of_a_fair_queue_can_be_given_now(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    await put(engine, key="a")
    assert await gives_in(engine, ask(await joined(engine))) == 0


async def test_a_job_that_falls_due_is_foretold(engine):
    await put(engine, delay=600)
    await put(engine, delay=60)
    assert 50 < await gives_in(engine, ask(await joined(engine))) <= 60


async def test_a_job_that_has_fallen_due_can_be_given_now(engine, store):
    await put(engine, delay=60)
    store.clock.advance(61)
    assert await gives_in(engine, ask(await joined(engine))) == 0


async def test_a_cancellation_is_given_even_to_who_wants_no_jobs(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    assert await gives_in(engine, ask(job.worker, want=0)) == 0


async def test_a_cancellation_that_the_worker_was_told_of_is_not_given_again(engine, store):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    await nothing_to_do(store, engine, ask(job.worker, told=frozenset({job.id})))


async def test_a_second_cancellation_is_given_beside_one_told(engine):
    worker = await joined(engine)
    await put(engine)
    await put(engine)
    first, second = await claim(engine, worker=worker, want=2)
    await changes.cancel(engine, [first.id, second.id], "enough")
    assert await gives_in(engine, ask(worker, told=frozenset({first.id}))) == 0


async def test_another_workers_cancellation_is_not_given(engine, store):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    await nothing_to_do(store, engine, ask(await joined(engine)))


@pytest.mark.parametrize("pause", [True, False], ids=["paused", "full"])
async def test_a_sleeper_on_closed_queues_wakes_only_at_its_timeout(engine, store, pause):
    settings = QueueSettings(paused=True) if pause else QueueSettings(max_running=0)
    await engine.set_queue("default", settings)
    await put(engine)
    await put(engine, delay=5)
    async with asleep(work(engine, ask(await joined(engine)), 60)) as nap:
        store.clock.advance(30)
        await sleeps_through(engine, nap, put(await store.open(), queue="elsewhere"))
        await awake_after(store, nap, 30)
