"""A person drains a worker: its beat brings the order, and it stops as after a signal."""

from __future__ import annotations

import asyncio

from penstock.core.job import State
from penstock.engines import orders
from worker.rig import soon, specs


async def test_a_worker_that_is_ordered_to_drain_lets_its_attempts_end_and_leaves(rig):
    started, go = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        started.set()
        await go.wait()
        return "done"

    worker = rig.worker(specs(work))
    run = asyncio.create_task(worker.run())
    await soon(worker.ready.wait())
    id = await rig.put("work")
    await soon(started.wait())
    assert await orders.drain(rig.engine, worker.id)
    await rig.pass_time(worker.settings.beat_every + 0.5)
    assert worker.is_drain_ordered
    later = await rig.put("work")
    await rig.clock.settle()
    go.set()
    await rig.over(run)
    run.result()
    assert (await rig.job(id)).state is State.SUCCEEDED
    assert (await rig.job(later)).state is State.READY
    assert await rig.engine.workers() == []


async def test_the_order_says_how_long_attempts_may_go_on(rig):
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    worker = rig.worker(specs(work), drain=3600.0)
    run = asyncio.create_task(worker.run())
    await soon(worker.ready.wait())
    id = await rig.put("work")
    await soon(started.wait())
    await orders.drain(rig.engine, worker.id, 5.0)
    began = rig.clock.monotonic()
    await rig.over(run)
    assert rig.clock.monotonic() - began < 60
    assert (await rig.job(id)).state is State.READY
