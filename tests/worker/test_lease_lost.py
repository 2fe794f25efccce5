"""A lost lease: everything is dropped, the worker takes a new name and goes on."""

from __future__ import annotations

import asyncio
import threading

from penstock.context import Context, Interrupted
from penstock.core.job import State
from penstock.engines import changes
from worker.rig import sent, soon, specs


async def test_late_outcomes_are_dropped_and_the_job_runs_again_under_a_new_name(rig):
    runs, started, stopped = [], asyncio.Event(), asyncio.Event()

    async def work(ctx: Context) -> int:
        runs.append(ctx.attempt)
        if ctx.attempt > 1:
            return ctx.attempt
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError("unreachable")

    async with rig.working(specs(work)) as worker:
        name = worker.id
        id = await rig.put("work")
        await soon(started.wait())
        job = await rig.job(id)
        await rig.bury(name)
        await rig.meanwhile(stopped.wait())
        await rig.meanwhile(rig.until(lambda: joined(rig, but=name)))
        assert worker.id != name
        # A crash made the job a suspect; what matters here is who may settle it.
        (job,) = await rig.meanwhile(rig.ended(id), sleepers=3)

    assert (job.attempt, job.result) == (2, b"2")
    assert [outcome.claim for outcome in sent(rig.main)] == [2]


async def joined(rig, *, but: str) -> bool:
    return any(info.id != but for info in await rig.engine.workers())


async def test_a_thread_whose_job_was_lost_ends_unheard(rig):
    started, seen, may_end = threading.Event(), threading.Event(), threading.Event()

    def work(ctx: Context) -> str:
        started.set()
        try:
            while True:
                threading.Event().wait(0.001)
        except Interrupted:
            seen.set()
            assert may_end.wait(20)
            return "late"

    async def other() -> None:
        pass

    async with rig.working(specs(work, other)) as worker:
        name = worker.id
        id = await rig.put("work")
        await soon(asyncio.to_thread(started.wait, 20))
        await rig.bury(name)
        await rig.meanwhile(asyncio.to_thread(seen.wait, 20))
        await changes.cancel(rig.engine, [id], "enough")
        may_end.set()
        await rig.meanwhile(rig.ended(await rig.put("other")))

        await rig.meanwhile(rig.ended(id))

    assert 1 not in [outcome.claim for outcome in sent(rig.main) if outcome.job == id]
    assert (await rig.job(id)).state is State.CANCELLED


async def test_an_exchange_that_is_told_of_the_loss_starts_anew_too(rig):
    async def work() -> None:
        pass

    async with rig.working(specs(work)) as worker:
        name = worker.id
        await rig.clock.asleep(3)
        await rig.bury(name)
        (job,) = await rig.meanwhile(rig.ended(await rig.put("work")))
        assert worker.id != name
        assert job.worker == worker.id


async def test_a_reply_that_comes_after_the_loss_is_ignored(rig):
    runs = []

    async def work() -> None:
        runs.append(1)

    async with rig.working(specs(work)) as worker:
        name = worker.id
        await rig.clock.asleep(3)
        gate = rig.main.block("exchange", when="after")
        id = await rig.put("work")
        await soon(gate.reached.wait())
        await rig.bury(name)
        worker._lost(name)
        assert worker.id != name
        gate.open()
        await rig.meanwhile(rig.ended(id))

    assert (await rig.job(id)).attempt == 2
    assert runs == [1]


async def test_losing_the_lease_again_and_again_always_ends_in_a_joined_worker(rig):
    async def work() -> None:
        pass

    async with rig.working(specs(work)) as worker:
        names = {worker.id}
        for _ in range(5):
            await rig.bury(worker.id)
            name = worker.id
            await rig.meanwhile(rig.until(lambda name=name: joined(rig, but=name)))
            names.add(worker.id)
        (job,) = await rig.meanwhile(rig.ended(await rig.put("work")))

    assert len(names) == 6
    assert job.state is State.SUCCEEDED


async def test_a_loss_while_draining_ends_the_worker_after_its_handlers_cleaned_up(rig):
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    async with rig.working(specs(work)) as worker:
        id = await rig.put("work")
        await soon(started.wait())
        worker.stop(60)
        await rig.clock.settle()
        await rig.bury(worker.id)

    job = await rig.job(id)
    assert (job.state, job.crashes) == (State.READY, 1)
    assert cleaned.is_set()
