"""Law 15: results: one call asks for all awaited ids, waiting and finished alike."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conformance.steps import finished, put, running, settle, soon, stored
from conformance.waiting import LONG, asleep, awake_after, sleeps_through
from penstock.core.job import State
from penstock.engines import changes
from penstock.engines.records import Filter
from penstock.engines.waiting import wait_for_results


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled"])
async def test_a_job_that_has_ended_is_returned_at_once(engine, kind):
    job = await finished(engine, kind)
    assert await soon(wait_for_results(engine, [job.id], LONG)) == {job.id: job}


async def test_the_result_is_stored_byte_by_byte(engine):
    job = await running(engine)
    await settle(engine, job, "succeeded", result=b'{"a": [1, null]}\x00\xff')
    results: Any = await soon(wait_for_results(engine, [job.id], LONG))
    assert results[job.id].result == b'{"a": [1, null]}\x00\xff'


async def test_no_result_is_not_an_empty_result(engine):
    nothing, empty = await running(engine), await running(engine)
    await settle(engine, nothing, "succeeded", result=None)
    await settle(engine, empty, "succeeded", result=b"")
    assert (await stored(engine, nothing.id)).result is None
    assert (await stored(engine, empty.id)).result == b""


async def test_a_job_that_is_not_in_the_store_is_gone(engine):
    assert await soon(wait_for_results(engine, ["nothing"], LONG)) == {"nothing": None}


async def test_all_that_have_ended_are_returned_without_those_that_have_not(engine):
    first, second = await finished(engine, "succeeded"), await finished(engine, "failed")
    waiting, runs = await put(engine), await running(engine)
    asked = [waiting, first.id, runs.id, "nothing", second.id]
    assert await soon(wait_for_results(engine, asked, LONG)) == {
        first.id: first,
        "nothing": None,
        second.id: second,
    }


async def test_a_waiter_is_woken_by_the_settlement_of_another_handle(store):
    caller, worker = await store.open(), await store.open()
    first, second = await running(worker), await running(worker)
    async with asleep(wait_for_results(caller, [first.id, second.id], LONG)) as nap:
        await settle(worker, second, "succeeded", result=b"42")
        results = await soon(nap)
    assert list(results) == [second.id]
    assert (results[second.id].state, results[second.id].result) == (State.SUCCEEDED, b"42")


async def test_a_waiter_is_woken_by_a_cancellation(store):
    caller, other = await store.open(), await store.open()
    id = await put(caller)
    async with asleep(wait_for_results(caller, [id], LONG)) as nap:
        await changes.cancel(other, [id], "enough")
        assert (await soon(nap))[id].state is State.CANCELLED


async def test_a_waiter_is_woken_when_its_job_is_purged(store):
    caller, other = await store.open(), await store.open()
    id = await put(caller)
    async with asleep(wait_for_results(caller, [id], LONG)) as nap:
        await other.purge(Filter(ids=(id,)), 1)
        assert await soon(nap) == {id: None}


async def test_a_retry_does_not_end_the_wait(store):
    caller, worker = await store.open(), await store.open()
    job = await running(worker)
    async with asleep(wait_for_results(caller, [job.id], LONG)) as nap:
        await sleeps_through(caller, nap, settle(worker, job, "retry", delay=60))


async def test_after_a_timeout_nothing_is_returned(engine, store):
    job = await running(engine)
    async with asleep(wait_for_results(engine, [job.id], 30)) as nap:
        await awake_after(store, nap, 30)
        assert nap.result() == {}


async def test_a_question_without_time_is_answered_from_what_is_there(engine):
    waiting, ended = await put(engine), await finished(engine, "succeeded")
    assert await wait_for_results(engine, [waiting, ended.id], 0) == {ended.id: ended}
    assert await wait_for_results(engine, [waiting], 0) == {}


async def test_many_waiters_of_one_job_all_get_it(store):
    callers, worker = [await store.open() for _ in range(4)], await store.open()
    job = await running(worker)
    naps = [asyncio.create_task(wait_for_results(caller, [job.id], LONG)) for caller in callers]
    await settle(worker, job, "succeeded")
    for answer in await soon(asyncio.gather(*naps)):
        ended = answer[job.id]
        assert ended is not None
        assert ended.state is State.SUCCEEDED


async def test_a_pruned_result_is_gone(engine, store):
    job = await finished(engine, "succeeded", keep=60.0)
    store.clock.advance(3600)
    await engine.prune(10)
    assert await soon(wait_for_results(engine, [job.id], LONG)) == {job.id: None}


async def test_a_hundred_ids_are_asked_for_in_one_call(engine):
    ended = [(await finished(engine, "succeeded")).id for _ in range(3)]
    waiting = [await put(engine) for _ in range(97)]
    assert sorted(await wait_for_results(engine, waiting + ended, 0)) == sorted(ended)
