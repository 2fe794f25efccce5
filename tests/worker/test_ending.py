"""How attempts end before their handler does: cancelled, out of time, or as it signals."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.context import Cancel, Context, Interrupted, Retry, Signal, Snooze
from penstock.core.job import State
from penstock.engines import changes
from worker.rig import soon, spec, specs


async def work() -> None:
    pass


# --- cancellation -------------------------------------------------------------------------------


async def test_a_running_coroutine_is_cancelled(rig):
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async with rig.working(specs(hang)):
        id = await rig.put("hang")
        await soon(started.wait())
        await rig.clock.asleep(3)
        await changes.cancel(rig.engine, [id], "not needed")
        (job,) = await rig.ended(id)

    assert job.state is State.CANCELLED
    assert cleaned.is_set()


async def test_a_thread_sees_its_cancellation_and_ends_as_it_likes(rig):
    started = threading.Event()

    def poll(ctx: Context) -> None:
        started.set()
        while not ctx.cancelled:
            threading.Event().wait(0.001)

    async with rig.working(specs(poll)):
        id = await rig.put("poll")
        await soon(asyncio.to_thread(started.wait, 20))
        await rig.clock.asleep(3)
        await changes.cancel(rig.engine, [id], "not needed")
        (job,) = await rig.ended(id)

    assert job.state is State.CANCELLED


async def test_a_cancellation_is_told_once_while_the_handler_takes_its_time(rig):
    started, cancelled, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await go.wait()
        return "finished all the same"

    async with rig.working(specs(stubborn, work)):
        id = await rig.put("stubborn")
        await soon(started.wait())
        await changes.cancel(rig.engine, [id], "not needed")
        await rig.meanwhile(cancelled.wait())
        await rig.meanwhile(rig.ended(await rig.put("work")))
        assert rig.main.asks[-1].told == {id}
        go.set()
        (job,) = await rig.meanwhile(rig.ended(id))
        await rig.meanwhile(rig.ended(await rig.put("work")))
        assert rig.main.asks[-1].told == frozenset()

    assert (job.state, job.result) == (State.SUCCEEDED, b'"finished all the same"')


async def test_a_cancelled_job_that_waits_in_the_workers_hands_ends_at_once(rig):
    ran, first = [], asyncio.Event()

    async def turn(n: int) -> None:
        ran.append(n)
        first.set()
        await asyncio.Event().wait()

    async with rig.working(specs(turn), concurrency=1, patience=1000) as worker:
        await rig.put("turn", b'{"n":1}')
        await soon(first.wait())
        id = await rig.put("turn", b'{"n":2}')
        rig.claim_ahead(worker, 1)
        await rig.in_state(id, State.RUNNING)
        await rig.clock.asleep(3)
        await changes.cancel(rig.engine, [id], "not needed")
        (job,) = await rig.meanwhile(rig.ended(id))

    assert job.state is State.CANCELLED
    assert (job.claim, job.attempt) == (1, 0)
    assert ran == [1]


# --- timeouts -----------------------------------------------------------------------------------


async def test_a_coroutine_is_stopped_at_its_timeout_and_retried(rig):
    async def hang() -> None:
        await asyncio.Event().wait()

    async with rig.working(specs(spec(hang, timeout=30.0, retries=[1000]))):
        id = await rig.put("hang")
        await rig.in_state(id, State.RUNNING)
        job = await rig.meanwhile(rig.in_state(id, State.SCHEDULED))

    assert (job.failures, job.errors[0].kind) == (1, "TimeoutError")
    assert job.errors[0].message == "ran longer than its timeout, 30s"
    assert 30 <= job.errors[0].at - (job.claimed_at or 0) < 32


async def test_a_thread_past_its_timeout_ends_late_as_a_timeout(rig):
    started, told, go = threading.Event(), threading.Event(), threading.Event()

    def slow(ctx: Context) -> str:
        started.set()
        try:
            while True:
                threading.Event().wait(0.001)
        except Interrupted:
            told.set()
            assert go.wait(20)
            return "too late"

    async with rig.working(specs(spec(slow, timeout=30.0, retries=0))):
        id = await rig.put("slow")
        await soon(asyncio.to_thread(started.wait, 20))
        await rig.meanwhile(asyncio.to_thread(told.wait, 20))
        assert (await rig.job(id)).state is State.RUNNING
        go.set()
        (job,) = await rig.meanwhile(rig.ended(id))

    assert (job.state, job.result) == (State.FAILED, None)
    assert job.reason == "TimeoutError: ran longer than its timeout, 30s"


async def test_a_handler_that_ends_in_time_is_not_stopped_later(rig):
    async with rig.working(specs(spec(work, timeout=5.0))) as worker:
        ids = [await rig.put("work") for _ in range(10)]
        jobs = await rig.ended(*ids)
        assert not worker._dispatcher._deadlines._of

    assert {job.state for job in jobs} == {State.SUCCEEDED}


# --- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["raise", "return"])
async def test_signals_may_be_raised_or_returned(rig, way):
    signals = {
        "retry": Retry("1h", reason="later"),
        "snooze": Snooze("2h", reason="asleep"),
        "cancel": Cancel("no use"),
    }

    async def signal(which: str) -> Signal:
        made = signals[which]
        if way == "raise":
            raise made
        return made

    async with rig.working(specs(signal)):
        ids = {name: await rig.put("signal", b'{"which":"%s"}' % name.encode()) for name in NAMES}
        jobs = {name: await rig.when(id, _has_left) for name, id in ids.items()}

    now = rig.clock.now()
    retry, snooze, cancel = (jobs[name] for name in NAMES)
    assert (retry.state, retry.failures, retry.reason) == (State.SCHEDULED, 1, "later")
    assert retry.run_at == pytest.approx(now + 3600, abs=5)
    assert (snooze.state, snooze.failures, snooze.reason) == (State.SCHEDULED, 0, "asleep")
    assert snooze.run_at == pytest.approx(now + 7200, abs=5)
    assert (cancel.state, cancel.reason) == (State.CANCELLED, "no use")


NAMES = ("retry", "snooze", "cancel")


def _has_left(job) -> bool:
    return job.state not in (State.READY, State.RUNNING)
