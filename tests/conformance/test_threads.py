"""Threads: handles on one store may live on different loops, in different threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from conformance.steps import (
    ask,
    claim,
    claim_one,
    draft,
    enqueue_jobs,
    everything,
    joined,
    put,
    settle,
    soon,
)
from conformance.stores import Store
from conformance.waiting import LONG, asleep, work
from penstock.engines.engine import Engine
from penstock.engines.records import QueueSettings
from penstock.engines.waiting import wait_for_results

Act = Callable[[Engine], Awaitable[Any]]


async def in_a_thread(store: Store, act: Act) -> Any:
    """Let ``act`` happen on a handle of its own, on a loop of its own, in another thread."""

    async def life() -> Any:
        engine = store.new_handle()
        await engine.open()
        try:
            return await act(engine)
        finally:
            await engine.close()

    return await asyncio.to_thread(lambda: asyncio.run(life()))


async def in_threads(store: Store, act: Act, count: int = 4) -> list[Any]:
    return await asyncio.gather(*(in_a_thread(store, act) for _ in range(count)))


async def test_claimers_in_threads_never_share_a_job(store):
    engine = await store.open()
    jobs = await enqueue_jobs(engine, 80)

    async def work(handle):
        return [job.id for _ in range(10) for job in await claim(handle, want=2)]

    batches = await in_threads(store, work)
    assert sorted(id for batch in batches for id in batch) == sorted(jobs)


async def test_claimers_in_threads_never_overrun_a_limit(store):
    engine = await store.open()
    await engine.set_queue("default", QueueSettings(max_running=3))
    await enqueue_jobs(engine, 40)
    batches = await in_threads(store, lambda handle: claim(handle, want=2))
    assert sum(len(batch) for batch in batches) == 3


async def test_the_same_id_enqueued_in_threads_is_one_job(store):
    engine = await store.open()
    order = draft("order-1", remember=3600, unique="invoice")
    receipts = await in_threads(store, lambda handle: handle.enqueue([order]))
    assert sum(receipt.created for (receipt,) in receipts) == 1
    assert len(await everything(engine)) == 1


async def test_a_sleeper_is_woken_from_another_thread(store):
    engine = await store.open()
    async with asleep(work(engine, ask(await joined(engine)), LONG)) as nap:
        await in_a_thread(store, put)
        await soon(nap)


async def test_a_result_comes_from_another_thread(store):
    engine = await store.open()
    id = await put(engine)

    async def work(handle):
        await settle(handle, await claim_one(handle), "succeeded", result=b"42")

    async with asleep(wait_for_results(engine, [id], LONG)) as nap:
        await in_a_thread(store, work)
        assert (await soon(nap))[id].result == b"42"
