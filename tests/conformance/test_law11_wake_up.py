"""Law 11: a wake-up is decided after commit, by a reader that looks once more before it sleeps."""

from __future__ import annotations

import asyncio

import pytest

from conformance.steps import ask, joined, joined_and_lifted, outcome, put, running, send, soon
from conformance.waiting import LONG, asleep, awake_after, gives_in, work
from penstock.core.job import Hold
from penstock.engines import changes
from penstock.engines.records import Filter, News, QueueSettings


async def test_a_commit_between_look_and_sleep_ends_the_sleep(store):
    sleeper, caller = await store.open(), await store.open()
    one_turn = ask(await joined(sleeper))
    seen = await sleeper.version(News.CHANGED)
    assert await gives_in(sleeper, one_turn) is None
    await put(caller)
    assert await soon(sleeper.listen(News.CHANGED, seen, LONG)) != seen
    assert await gives_in(sleeper, one_turn) == 0


async def test_a_commit_of_the_sleepers_own_handle_ends_the_sleep_too(engine):
    seen = await engine.version(News.CHANGED)
    await put(engine)
    assert await soon(engine.listen(News.CHANGED, seen, LONG)) != seen


async def test_a_sleeper_is_woken_by_a_job_that_another_handle_enqueues(store):
    sleeper, caller = await store.open(), await store.open()
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await put(caller)
        await soon(nap)


async def test_many_sleepers_are_all_woken(store):
    sleepers, caller = [await store.open() for _ in range(5)], await store.open()
    naps = [
        asyncio.create_task(work(sleeper, ask(await joined(sleeper)), LONG)) for sleeper in sleepers
    ]
    for _ in sleepers:
        await put(caller)
    await soon(asyncio.gather(*naps))


async def test_a_wait_returns_at_once_when_something_is_ready(engine):
    await put(engine)
    await soon(work(engine, ask(await joined(engine)), LONG))


async def test_a_wait_ends_when_a_job_falls_due(store):
    sleeper, caller = await store.open(), await store.open()
    await put(caller, delay=60)
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await awake_after(store, nap, 61)


async def test_a_wait_ends_when_a_sooner_job_comes_and_falls_due(store):
    sleeper, caller = await store.open(), await store.open()
    await put(caller, delay=600)
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await put(caller, delay=60)
        await awake_after(store, nap, 61)


async def test_a_wait_ends_after_its_timeout(engine, store):
    async with asleep(work(engine, ask(await joined(engine)), 10)) as nap:
        await awake_after(store, nap, 10)


@pytest.mark.parametrize("timeout", [0, -1])
async def test_a_wait_without_time_does_not_sleep(engine, timeout):
    await soon(work(engine, ask(await joined(engine)), timeout))


async def cancelled(engine, job):
    await changes.cancel(engine, [job.id], "enough")


async def resumed(engine, job):
    await engine.set_queue(job.queue, QueueSettings())


async def settled(engine, job):
    await send(engine, job.worker, outcome(job, "released"))


async def rescued(engine, job):
    await engine.leave(job.worker)
    await changes.rescue(engine, [], 10)


@pytest.mark.parametrize("happening", [resumed, settled, rescued])
async def test_whatever_lets_a_job_start_wakes_the_sleeper(store, happening):
    sleeper, other = await store.open(), await store.open()
    job = await running(other)
    if happening is resumed:
        await put(other, queue=job.queue)
        await other.set_queue(job.queue, QueueSettings(paused=True))
    async with asleep(work(sleeper, ask(await joined(sleeper), job.queue), LONG)) as nap:
        await happening(other, job)
        await soon(nap)


async def test_a_person_sending_a_job_back_wakes_the_sleeper(store):
    sleeper, other = await store.open(), await store.open()
    id = await put(other)
    await changes.cancel(other, [id], "enough")
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await changes.retry(other, [id])
        await soon(nap)


async def test_a_worker_that_joins_wakes_those_who_wait_for_its_tasks(store):
    sleeper, other = await store.open(), await store.open()
    job = await running(other, task="new")
    held = outcome(job, "released", hold=Hold.UNKNOWN_TASK, hold_cause="new")
    await send(other, job.worker, held)
    async with asleep(work(sleeper, ask(await joined(sleeper), job.queue), LONG)) as nap:
        await joined_and_lifted(other, tasks=["new"])
        await soon(nap)


async def test_a_cancellation_wakes_the_worker_that_runs_the_job(store):
    sleeper, other = await store.open(), await store.open()
    job = await running(sleeper)
    async with asleep(work(sleeper, ask(job.worker, want=0), LONG)) as nap:
        await cancelled(other, job)
        await soon(nap)


async def put_one(engine):
    await put(engine)


async def set_a_cell(engine):
    assert await engine.set_cell("breaker", b"open", 0)


async def set_a_queue(engine):
    await engine.set_queue("mail", QueueSettings(paused=True))


async def purge_one(engine):
    assert (await engine.purge(Filter(), 1)).jobs == 1


@pytest.mark.parametrize("commit", [put_one, set_a_cell, set_a_queue, purge_one])
async def test_a_handle_sees_the_version_change_after_another_ones_commit(store, commit):
    reader, writer = await store.open(), await store.open()
    await put(writer)
    seen = await reader.version(News.CHANGED)
    await commit(writer)
    assert await soon(reader.listen(News.CHANGED, seen, LONG)) != seen
    assert await reader.version(News.CHANGED) != seen


async def test_a_sleep_ends_after_its_timeout(engine, store):
    seen = await engine.version(News.CHANGED)
    async with asleep(engine.listen(News.CHANGED, seen, 10)) as nap:
        await awake_after(store, nap, 10)
    assert nap.result() == seen
