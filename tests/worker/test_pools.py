"""AsyncPool and threads: what waits, what runs, and what the gate decides."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.job import Job, OutcomeKind, State
from penstock.worker.async_pool import AsyncPool
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.pool import StartGate
from penstock.worker.runner import Runner
from penstock.worker.thread_pool import ThreadPool
from worker.rig import soon, spec


def make_job(id: str = "job", **fields: Any) -> Job:
    defaults: dict[str, Any] = {
        "task": "work",
        "payload": b"{}",
        "queue": "default",
        "priority": 5,
        "state": State.RUNNING,
        "enqueued_at": 0.0,
        "claim": 1,
        "attempt": 1,
        "started": True,
    }
    return Job(id=id, **{**defaults, **fields})


class Bench:
    """One pool, its gate, and what came out of it."""

    def __init__(self, kind: str, size: int, clock) -> None:
        self.kind = kind
        self.gate = StartGate(clock)
        self.gate.trusted_until = clock.monotonic() + 12
        self.ended: list[tuple[Attempt, Any]] = []
        self.changed = asyncio.Event()
        self.begun: list[Attempt] = []
        pool = AsyncPool if kind == "slots" else ThreadPool
        runner = Runner(clock.now, lambda: "worker")
        self.pool: Any = pool(size, runner, self.gate, clock, self.begun.append, self._finished)
        self._numbers = 0

    def _finished(self, attempt: Attempt, outcome: Any) -> None:
        self.ended.append((attempt, outcome))
        self.changed.set()

    def attempt(self, function: Callable[[], Any] | None = None, **fields: Any) -> Attempt:
        """An attempt of a function that returns at once, or blocks in the way of its pool."""
        self._numbers += 1
        timeout = fields.pop("timeout", None)
        plain = function or (lambda: None)

        async def run() -> Any:
            answer = plain()
            return await answer if asyncio.iscoroutine(answer) else answer

        task = spec(run if self.kind == "slots" else plain, "work", timeout=timeout)
        return Attempt(make_job(f"job-{self._numbers}", **fields), task, self._numbers, 0.0)

    async def until_ended(self, count: int) -> list[str]:
        async def wait() -> None:
            while len(self.ended) < count:
                self.changed.clear()
                await self.changed.wait()

        await soon(wait())
        return [attempt.job.id for attempt, _ in self.ended]


class Blocker:
    """A handler that stands still until it is let go, whichever pool it runs in."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._loop = asyncio.get_running_loop()
        self._go = asyncio.Event() if kind == "slots" else threading.Event()
        self._started = asyncio.Event()

    def __call__(self) -> Any:
        self._loop.call_soon_threadsafe(self._started.set)
        if isinstance(self._go, threading.Event):
            assert self._go.wait(20)
            return None
        return self._go.wait()

    async def started(self) -> None:
        await soon(self._started.wait())

    def go(self) -> None:
        self._go.set()


@pytest.fixture(params=["slots", "threads"])
async def bench(request, clock):
    """A pool of one."""
    bench = Bench(request.param, 1, clock)
    serving = asyncio.create_task(bench.pool.serve()) if bench.kind == "slots" else None
    await asyncio.sleep(0)
    yield bench
    bench.pool.close()
    if serving is not None:
        serving.cancel()
        await asyncio.wait([serving])
    for thread in getattr(bench.pool, "_threads", ()):
        thread.join(20)
        assert not thread.is_alive()


async def test_attempts_run_in_the_order_of_priority_then_of_their_claims(bench):
    blocker = Blocker(bench.kind)
    bench.pool.put([bench.attempt(blocker)])
    await blocker.started()
    bench.gate.trusted_until, until = 0.0, bench.gate.trusted_until
    bench.pool.put([bench.attempt(priority=5), bench.attempt(priority=10)])
    bench.pool.put([bench.attempt(priority=0), bench.attempt(priority=5)])
    bench.gate.trusted_until = until
    blocker.go()
    bench.pool.pump()

    assert await bench.until_ended(5) == ["job-1", "job-4", "job-2", "job-5", "job-3"]


async def test_nothing_starts_while_the_lease_is_not_trusted(bench, clock):
    clock.advance(12.1)
    bench.pool.put([bench.attempt()])
    await clock.settle()
    assert bench.ended == []
    assert bench.pool.load == 1

    bench.gate.trusted_until = clock.monotonic() + 12
    bench.pool.pump()
    await bench.until_ended(1)


async def test_what_waits_behind_a_running_attempt_keeps_to_the_lease_too(bench, clock):
    blocker = Blocker(bench.kind)
    bench.pool.put([bench.attempt(blocker), bench.attempt()])
    await blocker.started()
    clock.advance(12.1)
    blocker.go()
    assert await bench.until_ended(1) == ["job-1"]
    await soon(_until(lambda: len(bench.pool._queue) == 1))
    assert [attempt.job.id for attempt in bench.pool.waiting] == ["job-2"]

    bench.gate.trusted_until = clock.monotonic() + 12
    bench.pool.pump()
    assert await bench.until_ended(2) == ["job-1", "job-2"]


async def test_an_attempt_that_waits_can_be_withdrawn_and_then_never_runs(bench):
    blocker = Blocker(bench.kind)
    first, second, third = bench.attempt(blocker), bench.attempt(), bench.attempt()
    bench.pool.put([first, second, third])
    await blocker.started()
    assert bench.pool.withdraw(second)
    assert not bench.pool.withdraw(second)
    assert not bench.pool.withdraw(first)
    assert bench.pool.load == 2
    blocker.go()

    assert await bench.until_ended(2) == ["job-1", "job-3"]


async def test_while_one_must_be_alone_only_that_one_starts(bench):
    blocker = Blocker(bench.kind)
    alone, other = bench.attempt(blocker), bench.attempt()
    bench.gate.alone = alone
    bench.pool.put([other])
    assert bench.pool.is_quiet
    bench.pool.put_first(alone)
    await blocker.started()
    assert not bench.pool.is_quiet
    blocker.go()
    assert await bench.until_ended(1) == [alone.job.id]
    bench.gate.alone = None
    bench.pool.pump()

    assert await bench.until_ended(2) == [alone.job.id, other.job.id]


async def test_only_attempts_with_a_timeout_are_announced(bench):
    timed = bench.attempt(timeout=5.0)
    bench.pool.put([bench.attempt(), timed])
    await bench.until_ended(2)

    assert bench.begun == [timed]
    assert timed.started_at is not None


async def test_an_interrupted_coroutine_ends_and_its_slot_serves_on(clock):
    bench = Bench("slots", 1, clock)
    serving = asyncio.create_task(bench.pool.serve())
    blocker = Blocker("slots")
    attempt = bench.attempt(blocker)
    bench.pool.put([attempt, bench.attempt()])
    await blocker.started()
    attempt.end(Ending.CANCEL)
    bench.pool.interrupt(attempt)
    bench.pool.interrupt(attempt)
    await bench.until_ended(2)
    assert [outcome.kind for _, outcome in bench.ended] == [
        OutcomeKind.CANCELLED,
        OutcomeKind.SUCCEEDED,
    ]
    assert serving.cancelling() == 0
    bench.pool.close()
    serving.cancel()
    await asyncio.wait([serving])
    assert serving.cancelled()


async def test_handlers_that_never_wait_share_one_slot_and_let_the_loop_live(clock):
    bench = Bench("slots", 3, clock)
    serving = [asyncio.create_task(bench.pool.serve()) for _ in range(3)]
    await asyncio.sleep(0)
    seen_by: list[Any] = []
    bench.pool.put(
        [bench.attempt(lambda: seen_by.append(asyncio.current_task())) for _ in range(9)]
    )
    await bench.until_ended(9)
    assert len(set(seen_by)) == 1

    ticks: list[int] = []
    asyncio.get_running_loop().call_soon(ticks.append, 1)
    bench.ended.clear()
    # Each of these "takes" longer than a slice: the others must get their turn in between.
    bench.pool.put([bench.attempt(lambda: clock.advance(0.006)) for _ in range(2)])
    await bench.until_ended(1)
    assert ticks == [1]
    bench.pool.close()
    for task in serving:
        task.cancel()
    await asyncio.wait(serving)


async def test_handlers_that_wait_fill_all_slots_at_once(clock):
    bench = Bench("slots", 50, clock)
    serving = [asyncio.create_task(bench.pool.serve()) for _ in range(50)]
    await asyncio.sleep(0)
    blockers = [Blocker("slots") for _ in range(50)]
    bench.pool.put([bench.attempt(blocker) for blocker in blockers])
    for blocker in blockers:
        await blocker.started()
    for blocker in blockers:
        blocker.go()
    await bench.until_ended(50)
    bench.pool.close()
    for task in serving:
        task.cancel()
    await asyncio.wait(serving)


async def test_threads_that_cannot_be_had_cost_a_failure_and_not_the_worker(clock, monkeypatch):
    bench = Bench("threads", 2, clock)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("penstock-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    bench.pool.put([bench.attempt()])
    await bench.until_ended(1)
    monkeypatch.undo()
    bench.pool.put([bench.attempt(), bench.attempt()])
    await bench.until_ended(3)
    bench.pool.close()

    first, *others = [outcome for _, outcome in bench.ended]
    assert (first.kind, first.reason) == (
        OutcomeKind.RETRY,
        "RuntimeError: can't start new thread",
    )
    assert {outcome.kind for outcome in others} == {OutcomeKind.SUCCEEDED}
    assert (bench.pool.load, bench.pool.is_quiet) == (0, True)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (another thread changes it, on this loop)
        await asyncio.sleep(0)
