"""A loop that does not come round: what waits behind it goes to others, and runs once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import logs
from penstock.clock import SystemClock
from penstock.context import Context
from penstock.core.job import Outcome, OutcomeKind, State, Verdict
from penstock.engines.records import Ask
from penstock.errors import EngineUnavailable
from penstock.worker import watchdog
from penstock.worker.dispatcher import WEDGED
from penstock.worker.worker import Worker
from worker.rig import Handle, Rig, soon, specs
from worker.test_time_outs import Parent

PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""


class SlowHandle(Handle):
    """A handle whose exchanges without a claim can be made to wait: the watchdog's."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.reached, self.go_on, self.failed = (threading.Event() for _ in range(3))
        self.go_on.set()
        self.loses_replies = False

    async def exchange(self, ask: Ask) -> Any:
        is_back = any(outcome.reason == WEDGED for outcome in ask.outcomes)
        if is_back:
            self.reached.set()
            assert await asyncio.to_thread(self.go_on.wait, PATIENCE)
            if self.loses_replies:
                self.fail("exchange", when="after")
        try:
            return await super().exchange(ask)
        except EngineUnavailable:
            if is_back:
                self.failed.set()
            raise


class Standing:
    """A worker in a thread of its own, whose one slot blocks the loop when it is told to."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.ran: Counter[str] = Counter()
        self.started, self.is_blocked, self.go = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)
        self._thread.start()

    async def _live(self) -> None:
        self._loop, self._block = asyncio.get_running_loop(), asyncio.Event()
        self.worker = self.rig.worker(
            specs(self.stands, self.work), concurrency=1, patience=1000.0, poll=0.05, grace=1.0
        )
        self.worker._connect = self._connect
        await self.worker.run()

    def _connect(self) -> SlowHandle:
        handle = SlowHandle(self.rig)
        self.rig.handles.append(handle)
        return handle

    @property
    def aside(self) -> SlowHandle:
        """The handle of the watchdog."""
        _, handle = self.rig.handles[:2]
        assert isinstance(handle, SlowHandle)
        return handle

    async def stands(self) -> str:
        self.started.set()
        await self._block.wait()
        self.is_blocked.set()
        assert self.go.wait(PATIENCE)
        return "came round"

    async def work(self, ctx: Context) -> None:
        self.ran[ctx.id] += 1

    async def block(self, jobs: int) -> tuple[str, list[str]]:
        """Let the loop stand still with so many jobs that wait behind it."""
        first = await self.rig.put("stands")
        assert await asyncio.to_thread(self.started.wait, PATIENCE)
        ids = [await self.rig.put("work") for _ in range(jobs)]
        self._loop.call_soon_threadsafe(self.rig.claim_ahead, self.worker, jobs)
        for id in ids:
            await self.rig.in_state(id, State.RUNNING)
        self._loop.call_soon_threadsafe(self._block.set)
        assert await asyncio.to_thread(self.is_blocked.wait, PATIENCE)
        return first, ids

    async def end(self) -> None:
        self.go.set()
        self.worker.stop(5)
        await asyncio.to_thread(self._thread.join, PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
async def rig(monkeypatch):
    """A rig by the real clock, and a watchdog in a hurry."""
    monkeypatch.setattr(watchdog, "PULSE", 0.02)
    monkeypatch.setattr(watchdog, "BLOCKED", 0.1)
    rig = Rig(SystemClock())  # type: ignore[arg-type]
    await rig.engine.open()
    yield rig
    await rig.engine.close()
    assert [handle for handle in rig.handles if handle.is_open] == []


@pytest.fixture
async def standing(rig):
    standing = Standing(rig)
    yield standing
    rig.up()
    for handle in rig.handles:
        if isinstance(handle, SlowHandle):
            handle.go_on.set()
    await standing.end()


@asynccontextmanager
async def helping(standing: Standing) -> AsyncIterator[Worker]:
    """Another worker for the same jobs, on the loop of the test."""
    worker = standing.rig.worker(specs(standing.work), poll=0.05)
    run = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop(0)
        await soon(run)


async def test_what_waits_behind_a_blocked_loop_runs_elsewhere_while_it_is_blocked(
    rig, standing, caplog
):
    first, ids = await standing.block(5)
    async with helping(standing) as helper:
        jobs = await rig.ended(*ids)
        assert not standing.go.is_set()
        assert (await rig.job(first)).state is State.RUNNING
        standing.go.set()
        (job,) = await rig.ended(first)

    assert {each.state for each in jobs} == {State.SUCCEEDED}
    assert {each.failures + each.crashes for each in jobs} == {0}
    assert helper.stats.succeeded == 5
    assert standing.ran == dict.fromkeys(ids, 1)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, b'"came round"', 1)
    (said,) = [each for each in caplog.records if each.getMessage().startswith("loop blocked")]
    assert "self.go.wait(PATIENCE)" in (said.exc_text or "")
    assert len(logs.TextFormatter().format(said).splitlines()[0]) < 200


async def test_a_store_that_is_away_gets_them_back_when_the_loop_comes_round(rig, standing):
    handle = await _second_handle(standing)
    handle.go_on.clear()
    first, ids = await standing.block(5)
    assert await asyncio.to_thread(handle.reached.wait, PATIENCE)
    rig.down()
    handle.go_on.set()
    assert await asyncio.to_thread(handle.failed.wait, PATIENCE)
    standing.go.set()
    rig.up()
    jobs = await rig.ended(first, *ids)

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert standing.ran == dict.fromkeys(ids, 1)


async def test_a_lost_answer_is_asked_for_again(rig, standing):
    handle = await _second_handle(standing)
    handle.loses_replies = True
    first, ids = await standing.block(5)
    async with helping(standing):
        jobs = await rig.ended(*ids)
        assert await asyncio.to_thread(handle.failed.wait, PATIENCE)
        standing.go.set()
        await rig.ended(first)
        await rig.ended(await rig.put("work"))

    assert {(job.state, job.claim, job.attempt) for job in jobs} == {(State.SUCCEEDED, 2, 1)}
    assert {standing.ran[id] for id in ids} == {1}


async def test_a_loop_that_comes_round_in_the_middle_starts_nothing_that_goes_back(rig, standing):
    handle = await _second_handle(standing)
    handle.go_on.clear()
    first, ids = await standing.block(5)
    assert await asyncio.to_thread(handle.reached.wait, PATIENCE)
    standing.go.set()
    await rig.ended(first)
    await rig.ended(await rig.put("work"))
    assert {standing.ran[id] for id in ids} == {0}
    handle.go_on.set()
    jobs = await rig.ended(*ids)

    assert {(job.state, job.claim, job.attempt) for job in jobs} == {(State.SUCCEEDED, 2, 1)}
    assert {standing.ran[id] for id in ids} == {1}


async def _second_handle(standing: Standing) -> SlowHandle:
    async def wait() -> None:
        while len(standing.rig.handles) < 2:  # noqa: ASYNC110  (another thread makes it)
            await asyncio.sleep(0.001)

    await soon(wait())
    return standing.aside


async def test_a_worker_that_stops_in_the_middle_waits_for_what_goes_back(rig, standing):
    handle = await _second_handle(standing)
    handle.go_on.clear()
    first, ids = await standing.block(5)
    assert await asyncio.to_thread(handle.reached.wait, PATIENCE)
    standing.worker.stop(PATIENCE)
    standing.go.set()
    await rig.ended(first)
    handle.go_on.set()
    jobs = [await rig.in_state(id, State.READY) for id in ids]
    await standing.end()

    assert {(job.claim, job.attempt, job.crashes) for job in jobs} == {(1, 0, 0)}
    assert not standing.ran


@pytest.mark.parametrize("way", ["cancel", "lose"])
async def test_what_goes_back_is_never_said_to_be_stuck(clock, way):
    """It was told to end while the watchdog had it; when it is gone there is nothing to force."""
    rig = Rig(clock)
    await rig.engine.open()
    started, go = asyncio.Event(), asyncio.Event()

    async def stands() -> None:
        started.set()
        await go.wait()

    parent = Parent()
    worker = rig.worker(specs(stands), concurrency=1, patience=1000.0, grace=1.0, stall_limit=2.0)
    worker._parent = parent
    run = asyncio.create_task(worker.run())
    first = await rig.put("stands")
    await soon(started.wait())
    second = await rig.put("stands")
    rig.claim_ahead(worker, 1)
    await rig.meanwhile(rig.in_state(second, State.RUNNING))
    dispatcher = worker._dispatcher
    (attempt,) = dispatcher.waiting
    assert attempt.seize()
    if way == "cancel":
        dispatcher.cancel([second])
    else:
        dispatcher.drop([attempt])
    await _gone(rig, worker.id, attempt.outcome)
    dispatcher.given_back([attempt], [Verdict.DONE])
    await rig.pass_time(10)
    go.set()
    await rig.ended(first)
    worker.stop(0)
    await rig.over(run)
    await rig.engine.close()

    assert parent.reasons == []
    assert not dispatcher._deadlines._of


async def _gone(rig: Rig, worker: str, outcome: Any) -> None:
    released: Outcome = outcome(OutcomeKind.RELEASED, WEDGED)
    await rig.engine.exchange(Ask(worker=worker, outcomes=(released,)))
