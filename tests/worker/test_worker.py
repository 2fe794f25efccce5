"""The worker as its owner sees it: jobs in, outcomes out, in order, from start to stop."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from penstock.context import Context, current
from penstock.core.job import Outcome, OutcomeKind, State
from penstock.engines.records import Ask, WorkerInfo
from penstock.errors import EngineCorrupt
from penstock.testing import FakeClock
from worker.rig import Rig, soon, spec, specs


async def add(a: int, b: int = 1) -> int:
    return a + b


def multiply(a: int, b: int) -> int:
    return a * b


async def fail() -> None:
    raise ValueError("no")


async def test_async_and_sync_jobs_run_and_their_results_are_stored(rig):
    ids = [await rig.put("add", b'{"a":1}'), await rig.put("multiply", b'{"a":6,"b":7}')]

    async with rig.working(specs(add, multiply)):
        first, second = await rig.ended(*ids)

    assert (first.state, first.result) == (State.SUCCEEDED, b"2")
    assert (second.state, second.result) == (State.SUCCEEDED, b"42")


async def test_a_job_that_comes_while_the_worker_sleeps_wakes_it(rig):
    async with rig.working(specs(add)):
        await rig.clock.asleep(3)
        (job,) = await rig.ended(await rig.put("add", b'{"a":1}'))

    assert job.state is State.SUCCEEDED


async def test_a_scheduled_job_runs_at_its_instant(rig):
    async with rig.working(specs(add)):
        id = await rig.put("add", b'{"a":1}', delay=5.0)
        await rig.clock.asleep(3)
        rig.clock.advance(4.9)
        await rig.clock.settle()
        assert (await rig.job(id)).state is State.SCHEDULED
        rig.clock.advance(0.2)
        (job,) = await rig.ended(id)

    assert job.state is State.SUCCEEDED


async def test_a_failed_attempt_is_retried_until_the_policy_ends(rig):
    async with rig.working(specs(spec(fail, retries=[1, 1]))):
        id = await rig.put("fail")
        for failures in (1, 2):
            await rig.when(id, lambda job, failures=failures: job.failures == failures)
            rig.clock.advance(1)
        (job,) = await rig.ended(id)

    assert (job.state, job.failures, len(job.errors)) == (State.FAILED, 3, 3)
    assert job.reason == "ValueError: no"


async def test_more_jobs_than_slots_all_run_and_never_more_at_once(rig):
    running, most, full, gate = 0, 0, asyncio.Event(), asyncio.Event()

    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 7:
            full.set()
        await gate.wait()
        running -= 1

    ids = [await rig.put("count") for _ in range(50)]
    async with rig.working(specs(count), concurrency=7):
        await soon(full.wait())
        gate.set()
        await rig.ended(*ids)

    assert most == 7


async def test_no_more_sync_jobs_run_at_once_than_there_are_threads(rig):
    at_once = threading.Semaphore(3)
    overrun = []

    def hold() -> None:
        if not at_once.acquire(blocking=False):
            overrun.append(1)
        threading.Event().wait(0.001)
        at_once.release()

    ids = [await rig.put("hold") for _ in range(30)]
    async with rig.working(specs(hold), threads=3):
        await rig.ended(*ids)

    assert overrun == []


async def test_jobs_start_in_the_order_of_priority_and_ticket(rig):
    order: list[int] = []

    async def note(n: int) -> None:
        order.append(n)

    for n, priority in enumerate([5, 0, 5, 10, 0]):
        await rig.put("note", b'{"n":%d}' % n, priority=priority)
    worker = rig.worker(specs(note), concurrency=1)
    await soon(worker.run(until_empty=True))

    assert order == [1, 4, 0, 2, 3]


async def test_queues_take_turns(rig):
    order: list[str] = []

    async def note(ctx: Context) -> None:
        order.append(ctx.queue)

    for queue in ("a", "b"):
        for _ in range(3):
            await rig.put("note", queue=queue)
    worker = rig.worker(specs(note), concurrency=1, queues=("a", "b"))
    await soon(worker.run(until_empty=True))

    assert order == ["a", "b"] * 3


async def test_a_job_that_waits_for_a_thread_does_not_keep_idle_slots_from_theirs(rig):
    free = threading.Event()

    def block() -> None:
        assert free.wait(20)

    blocked = [await rig.put("block") for _ in range(5)]
    id = await rig.put("add", b'{"a":1}')
    async with rig.working(specs(block, add), threads=1):
        (job,) = await rig.ended(id)
        assert job.state is State.SUCCEEDED
        states = [(await rig.job(each)).state for each in blocked]
        assert states == [State.RUNNING] + [State.READY] * 4
        free.set()
        rig.clock.advance(1)
        await rig.ended(*blocked)


async def test_what_one_handler_sets_in_its_context_the_next_does_not_see(rig):
    color: ContextVar[str] = ContextVar("color", default="none")
    seen = []

    async def paint() -> None:
        seen.append((color.get(), current().id))
        color.set("red")
        await asyncio.sleep(0)
        assert color.get() == "red"

    ids = [await rig.put("paint") for _ in range(3)]
    async with rig.working(specs(paint), concurrency=1):
        jobs = await rig.ended(*ids)

    assert seen == [("none", id) for id in ids]
    assert {job.state for job in jobs} == {State.SUCCEEDED}


async def test_a_handler_that_cancels_its_own_task_fails_and_harms_nobody(rig):
    async def odd() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    ids = [await rig.put("odd"), *[await rig.put("add", b'{"a":1}') for _ in range(3)]]
    async with rig.working(specs(spec(odd, retries=0), add), concurrency=1):
        jobs = await rig.ended(*ids)

    assert [job.state for job in jobs[1:]] == [State.SUCCEEDED] * 3


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_handler_raises_is_a_failure_not_a_crash(rig, error, is_async):
    async def burst() -> None:
        raise error

    def burst_in_thread() -> None:
        raise error

    handler = spec(burst if is_async else burst_in_thread, "burst", retries=0)
    id, after = await rig.put("burst"), await rig.put("add", b'{"a":1}')
    async with rig.working(specs(handler, add)):
        job, other = await rig.ended(id, after)

    assert (job.state, job.errors[0].kind.split(".")[-1]) == (State.FAILED, type(error).__name__)
    assert other.state is State.SUCCEEDED


async def test_run_until_empty_ends_with_the_last_job_and_leaves_the_future_alone(rig):
    ids = [await rig.put("add", b'{"a":1}') for _ in range(20)]
    later = await rig.put("add", b'{"a":1}', delay=60)
    worker = rig.worker(specs(add))

    await soon(worker.run(until_empty=True))

    assert {(await rig.job(id)).state for id in ids} == {State.SUCCEEDED}
    assert (await rig.job(later)).state is State.SCHEDULED
    assert await rig.engine.workers() == []
    assert (worker.stats.claimed, worker.stats.succeeded) == (20, 20)


async def test_who_runs_until_empty_looks_soon_whether_others_are_done(rig):
    """Nothing tells it; and while they are at work for long, it looks less and less often."""
    theirs = await rig.put("add", b'{"a":1}')
    other = "other"
    await rig.engine.join(WorkerInfo(id=other))
    (job,) = (await rig.engine.exchange(Ask(worker=other, queues=("default",), want=1))).jobs
    worker = rig.worker(specs(add), poll=10.0)
    waits: list[float] = []
    run = asyncio.ensure_future(worker.run(until_empty=True))
    await soon(worker.ready.wait())
    inner = rig.main.listen

    async def listen(kind, seen, timeout):
        waits.append(timeout)
        return await inner(kind, seen, timeout)

    rig.main.listen = listen
    await rig.pass_time(3.0)
    assert not run.done()
    assert len(waits) > 5
    assert waits == sorted(waits)
    assert waits[0] < 0.1 < 0.5 < waits[-1]
    done = Outcome(job=job.id, claim=job.claim, kind=OutcomeKind.SUCCEEDED)
    await rig.engine.exchange(Ask(worker=other, outcomes=(done,)))
    await rig.over(run)
    assert (await rig.job(theirs)).state is State.SUCCEEDED


async def test_stop_when_empty_ends_a_worker_that_runs(rig):
    worker = rig.worker(specs(add))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(worker.run())
        await soon(worker.ready.wait())
        id = await rig.put("add", b'{"a":1}')
        worker.stop_when_empty()
        await soon(asyncio.wait([run]))

    assert (await rig.job(id)).state is State.SUCCEEDED


async def test_a_worker_that_was_stopped_before_it_ran_ends_at_once(rig):
    worker = rig.worker(specs(add))
    worker.stop()
    await soon(worker.run())


async def test_the_store_knows_who_works(rig):
    async with rig.working(specs(add, multiply), queues=("a", "b"), name="mill") as worker:
        (info,) = await rig.engine.workers()

    assert info.id == worker.id
    assert info.id.startswith("mill-")
    assert (info.queues, set(info.tasks), info.slots) == (("a", "b"), {"add", "multiply"}, 112)


async def test_progress_is_stored_while_the_job_runs(rig):
    gate = asyncio.Event()

    async def walk(ctx: Context) -> None:
        ctx.progress(0.1, "begin")
        ctx.progress(0.5, "half-way")
        await gate.wait()

    async with rig.working(specs(walk)):
        id = await rig.put("walk")
        await rig.in_state(id, State.RUNNING)

        async def is_half_way() -> bool:
            rig.clock.advance(0.5)
            await rig.clock.settle()
            return (await rig.job(id)).progress == 0.5

        while not await is_half_way():
            pass
        assert (await rig.job(id)).note == "half-way"
        gate.set()
        await rig.ended(id)


async def test_a_store_that_is_no_store_ends_the_run_with_its_error(rig):
    worker = rig.worker(specs(add))
    connect = rig.connect

    def broken():
        handle = connect()
        handle.fail("open", EngineCorrupt("memory", "not a database"), times=None)
        return handle

    worker._connect = broken
    with pytest.raises(EngineCorrupt):
        await soon(worker.run())


async def test_a_store_that_is_away_at_the_start_is_waited_for(rig):
    rig.down()
    id = await rig.put("add", b'{"a":1}')
    worker = rig.worker(specs(add))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(worker.run())
        await rig.clock.asleep()
        assert not worker.ready.is_set()
        rig.up()
        rig.clock.advance(5)
        await rig.ended(id)
        worker.stop(0)
        await rig.over(run)


async def test_a_stop_while_the_store_is_away_at_the_start_ends_the_run():
    rig = Rig(FakeClock())
    rig.down()
    worker = rig.worker(specs(add))
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await rig.clock.asleep()
        worker.stop()


async def test_an_error_in_the_worker_itself_ends_the_run_with_that_error(rig):
    worker = rig.worker(specs(add))
    async with asyncio.TaskGroup() as group:

        async def run() -> None:
            with pytest.raises(ZeroDivisionError):
                await worker.run()

        task = group.create_task(run())
        await soon(worker.ready.wait())
        rig.main.fail("exchange", ZeroDivisionError())
        await rig.put("add", b'{"a":1}')
        await rig.over(task)
