"""Stopping: what has not started goes back, what runs may end, and the end is never far."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.context import Context
from penstock.core.job import State
from penstock.errors import EngineUnavailable
from worker.rig import soon, specs


async def test_running_attempts_may_finish_and_nothing_new_is_claimed(rig):
    started, go = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        started.set()
        await go.wait()
        return "done"

    async with rig.working(specs(work)) as worker:
        id = await rig.put("work")
        await soon(started.wait())
        worker.stop()
        await rig.clock.settle()
        later = await rig.put("work")
        await rig.clock.settle()
        go.set()
        (job,) = await rig.ended(id)

    assert (job.state, job.result) == (State.SUCCEEDED, b'"done"')
    assert (await rig.job(later)).state is State.READY
    assert await rig.engine.workers() == []


async def test_what_waits_in_the_workers_hands_goes_back_at_once(rig):
    started, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        await go.wait()

    async with rig.working(specs(work), concurrency=1) as worker:
        await rig.put("work")
        await soon(started.wait())
        id = await rig.put("work")
        rig.claim_ahead(worker)
        await rig.in_state(id, State.RUNNING)
        worker.stop()
        job = await rig.in_state(id, State.READY)
        go.set()

    assert (job.failures, job.crashes, job.errors) == (0, 0, ())


async def test_coroutines_are_cancelled_and_given_back_after_the_deadline(rig):
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def work(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert ctx.cancelled
            cleaned.set()

    async with rig.working(specs(work)) as worker:
        id = await rig.put("work")
        await soon(started.wait())
        worker.stop(10)
        await rig.clock.settle()
        await rig.clock.asleep(4)
        rig.clock.advance(9.9)
        await rig.clock.settle()
        assert not cleaned.is_set()
        rig.clock.advance(0.2)
        job = await rig.in_state(id, State.READY)

    assert cleaned.is_set()
    assert (job.failures, job.crashes, job.errors, job.reason) == (0, 0, (), "the worker shut down")


async def test_a_job_in_a_thread_is_given_back_after_the_deadline_and_its_end_is_ignored(rig):
    started, go = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        assert go.wait(20)
        return "late"

    async with rig.working(specs(work)) as worker:
        id = await rig.put("work")
        await soon(asyncio.to_thread(started.wait, 20))
        worker.stop(0)
        job = await rig.meanwhile(rig.in_state(id, State.READY))
    go.set()

    assert (job.failures, job.crashes, job.result) == (0, 0, None)


async def test_what_runs_at_most_once_is_not_given_back_but_failed(rig):
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with rig.working(specs(work)) as worker:
        id = await rig.put("work", at_most_once=True)
        await soon(started.wait())
        worker.stop(0)
        (job,) = await rig.ended(id)

    assert (job.state, job.reason) == (State.FAILED, "may have run")


def endless() -> tuple[asyncio.Event, Callable[[], Coroutine[Any, Any, None]]]:
    """A handler that ignores its cancellation, and the event that it has started."""
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    return started, work


async def test_a_coroutine_that_ignores_its_cancellation_cannot_keep_the_worker(rig):
    started, work = endless()

    async with rig.working(specs(work), grace=4.0) as worker:
        id = await rig.put("work")
        await soon(started.wait())
        worker.stop(0)
        job = await rig.meanwhile(rig.in_state(id, State.READY))

    assert (job.failures, job.crashes) == (0, 0)


async def test_what_may_have_run_and_did_not_end_in_time_is_an_error_in_the_log(rig, caplog):
    started, work = endless()

    async with rig.working(specs(work), grace=4.0) as worker:
        id = await rig.put("work", at_most_once=True)
        await soon(started.wait())
        worker.stop(0)
        job = await rig.meanwhile(rig.in_state(id, State.FAILED))

    assert job.reason == "may have run"
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert f'job failed job={id} task=work attempt=1 reason="may have run"' in errors


async def test_beats_go_on_while_the_worker_drains(rig):
    started, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        await go.wait()

    async with rig.working(specs(work)) as worker:
        await rig.put("work")
        await soon(started.wait())
        worker.stop(1000)
        (before,) = await rig.engine.workers()
        await rig.pass_time(20, sleepers=4)
        (after,) = await rig.engine.workers()
        go.set()

    assert after.beat >= before.beat + 4


async def test_a_store_that_is_away_at_the_end_is_given_up_after_the_grace(rig):
    started, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        await go.wait()

    async with rig.working(specs(work), grace=4.0) as worker:
        id = await rig.put("work")
        await soon(started.wait())
        await rig.clock.asleep(3)
        rig.down()
        go.set()
        worker.stop(2)
        before = rig.clock.monotonic()
    rig.up()

    assert rig.clock.monotonic() - before < 2 + 4 + 4 + 1
    job = await rig.job(id)
    assert job.state is State.RUNNING
    await rig.bury(job.worker or "")
    assert (await rig.job(id)).state is State.READY


async def test_a_store_that_hangs_at_the_end_is_given_up_too(rig):
    async def work() -> None:
        pass

    async with rig.working(specs(work), grace=4.0) as worker:
        await rig.clock.asleep(3)
        gate = rig.main.block("exchange", times=None)
        await rig.put("work")
        await soon(gate.reached.wait())
        worker.stop(2)


async def test_stopping_again_shortens_the_time(rig):
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with rig.working(specs(work)) as worker:
        id = await rig.put("work")
        await soon(started.wait())
        worker.stop(1000)
        await rig.clock.settle()
        worker.stop(0)
        worker.stop(500)
        await rig.in_state(id, State.READY)


async def test_stop_works_from_another_thread(rig):
    async with rig.working(specs()) as worker:
        await asyncio.to_thread(worker.stop)
        await rig.until(lambda: _nobody(rig))


async def _nobody(rig) -> bool:
    return await rig.engine.workers() == []


async def test_a_cancelled_run_gives_back_what_it_ran(rig):
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    worker = rig.worker(specs(work))
    run = asyncio.create_task(worker.run())
    id = await rig.put("work")
    await soon(started.wait())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(run)

    job = await rig.job(id)
    assert (job.state, job.crashes) == (State.READY, 0)
    assert await rig.engine.workers() == []


async def test_the_lease_is_given_back_even_if_settling_failed(rig):
    async with rig.working(specs()) as worker:
        await rig.clock.asleep(3)
        rig.main.fail("leave", EngineUnavailable("memory", "gone"))
        worker.stop(0)
