"""A session that a worker makes for an attempt is left, however the worker ends that attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import Context, Depends, Interrupted
from penstock.core.job import State
from penstock.engines import changes
from worker.rig import patience, soon, spec, specs


class Sessions:
    """Makes sessions for coroutines or threads, and handlers that use them in many ways."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.said: list[str] = []
        self.began = threading.Event()

    def session(self) -> Iterator[str]:
        try:
            yield "session"
        except BaseException as error:
            self.said.append(f"rolled back: {type(error).__name__}")
            raise
        else:
            self.said.append("committed")
        finally:
            self.said.append("closed")

    def task(self, body: str, **fields: Any) -> Any:
        """A task whose handler returns, fails, or goes on until it is stopped."""

        def call(ctx: Context, db: str = Depends(self.session)) -> str:
            self.began.set()
            if body == "fails":
                raise ValueError("no")
            while body == "hangs" and not ctx.cancelled:
                threading.Event().wait(0.001)
            while body == "hangs blindly":
                threading.Event().wait(0.001)
            return db

        async def run(ctx: Context, db: str = Depends(self.session)) -> str:
            self.began.set()
            if body == "fails":
                raise ValueError("no")
            if body.startswith("hangs"):
                await asyncio.Event().wait()
            return db

        function = run if self.kind == "coroutine" else call
        return specs(spec(function, "work", retries=0, **fields))

    async def until_begun(self) -> None:
        await soon(asyncio.to_thread(self.began.wait, patience))

    @property
    def stopped(self) -> str:
        """What the session sees when its handler is stopped."""
        error = asyncio.CancelledError if self.kind == "coroutine" else Interrupted
        return f"rolled back: {error.__name__}"


@pytest.fixture(params=["coroutine", "thread"])
def sessions(request):
    return Sessions(request.param)


async def test_on_success_it_is_committed_and_closed(rig, sessions):
    async with rig.working(sessions.task("returns")):
        (job,) = await rig.ended(await rig.put("work"))

    assert (job.state, job.result) == (State.SUCCEEDED, b'"session"')
    assert sessions.said == ["committed", "closed"]


async def test_on_failure_it_is_rolled_back_and_closed(rig, sessions):
    async with rig.working(sessions.task("fails")):
        (job,) = await rig.ended(await rig.put("work"))

    assert (job.state, job.reason) == (State.FAILED, "ValueError: no")
    assert sessions.said == ["rolled back: ValueError", "closed"]


async def test_on_timeout_it_is_rolled_back_and_closed(rig, sessions):
    async with rig.working(sessions.task("hangs blindly", timeout=5.0)):
        id = await rig.put("work")
        await sessions.until_begun()
        (job,) = await rig.meanwhile(rig.ended(id))

    assert job.state is State.FAILED
    assert "ran longer than its timeout, 5s" in job.reason
    assert sessions.said == [sessions.stopped, "closed"]


async def test_on_cancel_it_is_left_before_the_job_has_ended(rig, sessions):
    async with rig.working(sessions.task("hangs")):
        id = await rig.put("work")
        await sessions.until_begun()
        await changes.cancel(rig.engine, [id], "not needed")
        (job,) = await rig.meanwhile(rig.ended(id))

    assert job.state is State.CANCELLED
    # A thread's handler sees the cancellation, and returns.
    first = "committed" if sessions.kind == "thread" else sessions.stopped
    assert sessions.said == [first, "closed"]


async def test_on_shutdown_it_is_rolled_back_and_closed(rig, sessions):
    async with rig.working(sessions.task("hangs blindly")):
        id = await rig.put("work")
        await sessions.until_begun()

    assert (await rig.job(id)).state is State.READY
    assert sessions.said == [sessions.stopped, "closed"]


async def test_a_timeout_that_comes_during_the_clean_up_does_not_interrupt_it(rig):
    leaving, go, said = asyncio.Event(), asyncio.Event(), []

    async def session() -> AsyncIterator[None]:
        yield
        leaving.set()
        await go.wait()
        said.append("committed")

    async def work(db: None = Depends(session)) -> str:
        return "done"

    async with rig.working(specs(spec(work, timeout=2.0)), grace=1000.0):
        id = await rig.put("work")
        await soon(leaving.wait())
        await rig.pass_time(5)
        go.set()
        (job,) = await rig.meanwhile(rig.ended(id))

    assert (job.state, job.result, said) == (State.SUCCEEDED, b'"done"', ["committed"])


async def test_a_timeout_that_comes_during_the_clean_up_of_a_thread_does_not_hit_it(rig):
    leaving, go, said = threading.Event(), threading.Event(), []

    def session() -> Iterator[None]:
        yield
        leaving.set()
        while not go.is_set():
            threading.Event().wait(0.001)
        said.append("committed")

    def work(db: None = Depends(session)) -> str:
        return "done"

    async with rig.working(specs(spec(work, timeout=2.0)), grace=1000.0):
        id = await rig.put("work")
        await soon(asyncio.to_thread(leaving.wait, patience))
        await rig.pass_time(5)
        go.set()
        (job,) = await rig.meanwhile(rig.ended(id))

    assert (job.state, job.result, said) == (State.SUCCEEDED, b'"done"', ["committed"])
