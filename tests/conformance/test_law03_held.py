"""Law 3: a lost reply loses nothing, because a worker can ask what it was given."""

from __future__ import annotations

import asyncio

import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    draft,
    enqueue_jobs,
    everything,
    ids,
    joined,
    put,
    settle,
    stored,
)
from conformance.waiting import breathe
from penstock.core.job import State, Verdict
from penstock.engines import changes
from penstock.errors import LeaseLost


async def test_a_worker_whose_reply_was_lost_learns_what_it_was_given(engine):
    worker = await joined(engine)
    await enqueue_jobs(engine, 3)
    lost = await engine.exchange(ask(worker, want=3, slots=1))
    assert await engine.held(worker) == list(lost.jobs)


async def test_held_jobs_are_in_contract_order(engine):
    worker = await joined(engine)
    low, high, low_too = [await put(engine, priority=p) for p in (9, 1, 9)]
    await claim(engine, worker=worker, want=1)
    await claim(engine, worker=worker, want=2)
    assert ids(await engine.held(worker)) == [high, low, low_too]


async def test_a_job_that_was_found_can_be_released_or_run(engine):
    worker = await joined(engine)
    await enqueue_jobs(engine, 2)
    await engine.exchange(ask(worker, want=2))
    first, second = await engine.held(worker)
    assert await settle(engine, first, "released") is Verdict.DONE
    assert await settle(engine, second, "succeeded") is Verdict.DONE
    assert await engine.held(worker) == []


async def test_nothing_is_held_before_the_first_claim(engine):
    await put(engine)
    assert await engine.held(await joined(engine)) == []


async def test_a_worker_holds_only_its_own_jobs(engine):
    await enqueue_jobs(engine, 2)
    mine, other = await joined(engine), await joined(engine)
    (job,) = await claim(engine, worker=mine)
    await claim(engine, worker=other)
    assert await engine.held(mine) == [job]


@pytest.mark.parametrize(
    "kind", ["succeeded", "failed", "retry", "snooze", "released", "expired", "crashed"]
)
async def test_a_settled_job_is_no_longer_held(engine, kind):
    worker = await joined(engine)
    await put(engine)
    (job,) = await claim(engine, worker=worker)
    await settle(engine, job, kind, delay=60)
    assert await engine.held(worker) == []


async def test_a_job_that_was_asked_to_end_is_still_held(engine):
    worker = await joined(engine)
    await put(engine)
    (job,) = await claim(engine, worker=worker)
    await changes.cancel(engine, [job.id], "enough")
    assert ids(await engine.held(worker)) == [job.id]


async def test_asking_what_is_held_changes_nothing(engine):
    worker = await joined(engine)
    await put(engine)
    (job,) = await claim(engine, worker=worker, slots=0)
    await engine.held(worker)
    assert await stored(engine, job.id) == job


@pytest.mark.parametrize("left", [True, False], ids=["left", "buried"])
async def test_a_worker_without_a_lease_cannot_ask(engine, left):
    worker = await joined(engine)
    await engine.leave(worker) if left else await bury(engine, worker)
    with pytest.raises(LeaseLost):
        await engine.held(worker)


async def test_an_exchange_whose_reply_was_lost_can_be_sent_again(engine):
    """Its outcomes are done already; only then does the worker ask for more."""
    worker = await joined(engine)
    await enqueue_jobs(engine, 2)
    (job,) = await claim(engine, worker=worker)
    await settle(engine, job, "succeeded", result=b"1")
    assert await settle(engine, job, "succeeded", result=b"1") is Verdict.DONE
    assert (await stored(engine, job.id)).state is State.SUCCEEDED
    assert await engine.held(worker) == []


async def test_an_exchange_that_was_cancelled_halfway_happened_whole_or_not_at_all(engine):
    jobs = await enqueue_jobs(engine, 40)
    worker = await joined(engine)
    for turns in range(10):
        call = asyncio.create_task(engine.exchange(ask(worker, want=2)))
        await breathe(turns)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert len(await engine.held(worker)) % 2 == 0
    rest = await claim(engine, want=100)
    assert sorted(ids(rest) + ids(await engine.held(worker))) == sorted(jobs)


async def test_a_cancelled_call_cannot_happen_any_more_once_a_later_one_returned(store):
    engine, other = await store.open(), await store.open()
    await enqueue_jobs(engine, 40)
    worker = await joined(engine)
    for turns in range(10):
        call = asyncio.create_task(engine.exchange(ask(worker, want=2)))
        await breathe(turns)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        held = await engine.held(worker)
        await breathe()
        assert await other.held(worker) == held


async def test_an_enqueue_that_was_cancelled_halfway_can_be_repeated(engine):
    batches = [[draft(), draft()] for _ in range(10)]
    for turns, batch in enumerate(batches):
        call = asyncio.create_task(engine.enqueue(batch))
        await breathe(turns)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        created = [receipt.created for receipt in await engine.enqueue(batch)]
        assert created in ([True, True], [False, False])
    assert len(await everything(engine)) == 20
