"""Time that ends attempts: time-outs, stalls, what insists and what is stuck; one outcome each."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.context import Context, Interrupted
from penstock.core.job import Outcome, OutcomeKind, State
from penstock.engines import changes
from penstock.engines.records import Ask
from penstock.worker.settings import WorkerSettings
from penstock.worker.status import NoParent
from penstock.worker.worker import Worker
from worker.rig import Rig, soon, spec, specs


class Parent(NoParent):
    """One who settles what is bequeathed; here the test does."""

    settles = True

    def __init__(self) -> None:
        self.reasons: list[tuple[str, bool]] = []
        self.wills: list[tuple[str, Outcome]] = []
        self.asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def replace(self, reason: str, *, is_wedged: bool = False) -> None:
        self.reasons.append((reason, is_wedged))
        self._loop.call_soon_threadsafe(self.asked.set)

    def settle_after_death(self, worker: str, outcomes: Sequence[Outcome]) -> None:
        self.wills += [(worker, outcome) for outcome in outcomes]


# --- time-outs ----------------------------------------------------------------------------------


async def test_a_thread_is_interrupted_at_its_timeout_and_retried(rig):
    started, unwound = threading.Event(), threading.Event()

    def slow(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "in time"
        try:
            started.set()
            while True:
                threading.Event().wait(0.001)
        finally:
            unwound.set()

    async with rig.working(specs(spec(slow, timeout=30.0))):
        id = await rig.put("slow")
        await soon(asyncio.to_thread(started.wait, 20))
        (job,) = await rig.meanwhile(rig.ended(id))

    assert (job.state, job.failures, job.crashes, job.result) == (
        State.SUCCEEDED,
        1,
        0,
        b'"in time"',
    )
    assert [error.message for error in job.errors] == ["ran longer than its timeout, 30s"]
    assert unwound.is_set()


async def test_its_own_timeout_inside_a_handler_is_its_own_business(rig):
    """Nested: the inner one ends its block and not the attempt; the outer one ends the attempt."""

    async def nested(inner: float) -> str:
        try:
            async with rig_timeout(rig, inner):
                await asyncio.Event().wait()
        except TimeoutError:
            return "inner"
        return "never"

    async with rig.working(specs(spec(nested, timeout=30.0, retries=0))):
        first = await rig.put("nested", b'{"inner":5.0}')
        second = await rig.put("nested", b'{"inner":500.0}')
        inner, outer = await rig.meanwhile(rig.ended(first, second), sleepers=4)

    assert (inner.state, inner.result) == (State.SUCCEEDED, b'"inner"')
    assert (outer.state, outer.reason) == (
        State.FAILED,
        "TimeoutError: ran longer than its timeout, 30s",
    )


def rig_timeout(rig: Rig, seconds: float) -> Any:
    """``asyncio.timeout`` by the clock of the rig."""

    class Timeout:
        async def __aenter__(self) -> None:
            self._timeout = asyncio.timeout(None)
            await self._timeout.__aenter__()
            self._timer = asyncio.create_task(self._expire())

        async def _expire(self) -> None:
            await rig.clock.sleep(seconds)
            self._timeout.reschedule(asyncio.get_running_loop().time())

        async def __aexit__(self, *error: Any) -> None:
            self._timer.cancel()
            await self._timeout.__aexit__(*error)

    return Timeout()


async def test_a_thread_that_ignores_its_cancellation_is_interrupted_after_the_grace(rig):
    started = threading.Event()

    def deaf() -> None:
        started.set()
        while True:
            threading.Event().wait(0.001)

    async with rig.working(specs(deaf), grace=4.0):
        id = await rig.put("deaf")
        await soon(asyncio.to_thread(started.wait, 20))
        await changes.cancel(rig.engine, [id], "not needed")
        (job,) = await rig.meanwhile(rig.ended(id), sleepers=3)

    assert (job.state, job.reason) == (State.CANCELLED, "not needed")


@pytest.mark.parametrize("first", ["timeout", "cancel"])
async def test_what_ends_already_has_its_grace_whatever_else_is_due(rig, first):
    """A timeout or a stall that comes while a coroutine unwinds does not cut its clean-up short."""
    started, asked, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def tidy() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            asked.set()
            await rig.clock.sleep(4.0)
            cleaned.set()

    task = spec(tidy, timeout=30.0, stall=32.0, retries=0)
    async with rig.working(specs(task), grace=6.0):
        id = await rig.put("tidy")
        await soon(started.wait())
        if first == "cancel":
            await rig.pass_time(29.0, sleepers=4)
            await changes.cancel(rig.engine, [id], "not needed")
        await rig.meanwhile(asked.wait(), sleepers=4)
        (job,) = await rig.meanwhile(rig.ended(id), sleepers=4)

    assert cleaned.is_set()
    assert job.state is (State.FAILED if first == "timeout" else State.CANCELLED)


# --- stalls -------------------------------------------------------------------------------------


async def test_an_attempt_without_a_sign_of_life_is_ended(rig):
    async def silent() -> None:
        await asyncio.Event().wait()

    async with rig.working(specs(spec(silent, stall=60.0, retries=0))):
        id = await rig.put("silent")
        (job,) = await rig.meanwhile(rig.ended(id))

    assert (job.state, job.reason) == (State.FAILED, "TimeoutError: no sign of life for 1m")


@pytest.mark.parametrize("sign", ["alive", "progress", "log"])
async def test_signs_of_life_keep_it_going(rig, sign):
    """Six signs, 50 seconds apart, under a stall of 60: it takes five minutes and succeeds."""
    signs: list[float] = []

    async def lively(ctx: Context) -> str:
        for number in range(6):
            await rig.clock.sleep(50)
            signs.append(rig.clock.monotonic())
            match sign:
                case "alive":
                    ctx.alive()
                case "progress":
                    ctx.progress(number / 6)
                case "log":
                    logging.getLogger("somebody").warning("still here")
        return "done"

    async with rig.working(specs(spec(lively, stall=60.0, retries=0))):
        id = await rig.put("lively")
        (job,) = await rig.meanwhile(rig.ended(id), sleepers=4)

    assert (job.state, job.result) == (State.SUCCEEDED, b'"done"')
    assert signs[-1] - signs[0] >= 250


async def test_a_stall_is_counted_from_the_last_sign(rig):
    began: list[float] = []

    async def dies_away(ctx: Context) -> None:
        began.append(rig.clock.monotonic())
        await rig.clock.sleep(45)
        ctx.alive()
        await asyncio.Event().wait()

    async with rig.working(specs(spec(dies_away, stall=60.0, retries=0))):
        id = await rig.put("dies_away")
        (job,) = await rig.meanwhile(rig.ended(id))
        ended = rig.clock.monotonic()

    assert job.reason == "TimeoutError: no sign of life for 1m"
    assert 105 <= ended - began[0] < 110


# --- what does not end --------------------------------------------------------------------------


async def test_a_thread_that_nothing_ends_keeps_its_slot_and_asks_for_a_new_process(rig, caplog):
    """As code that never returns from C: its job is settled by who sees the process die."""
    parent, started, go = Parent(), threading.Event(), threading.Event()

    def in_c() -> str:
        started.set()
        assert go.wait(60)
        return "after all"

    async def other() -> None: ...

    worker = rig.worker(specs(spec(in_c, timeout=10.0), other), stall_limit=20.0, threads=1)
    worker._parent = parent
    async with asyncio.TaskGroup() as group:
        run = group.create_task(worker.run())
        await soon(worker.ready.wait())
        stuck, second = await rig.put("in_c"), await rig.put("in_c")
        await soon(asyncio.to_thread(started.wait, 20))
        await rig.meanwhile(parent.asked.wait())
        assert parent.reasons == [(f"job {stuck} (in_c) must end and does not", True)]
        assert (await rig.job(stuck)).state is State.RUNNING
        assert (await rig.job(second)).state is State.READY
        await rig.meanwhile(rig.ended(await rig.put("other")))
        worker.stop(1000)
        await rig.meanwhile(asyncio.wait([run]))
        name = worker.id
        before = await rig.job(stuck)

    assert before.state is State.RUNNING
    ((heir, outcome),) = parent.wills
    assert (heir, outcome.job, outcome.kind) == (name, stuck, OutcomeKind.RETRY)
    assert [info.id for info in await rig.engine.workers()] == [name]
    await rig.engine.exchange(Ask(worker=name, outcomes=(outcome,)))
    after = await rig.job(stuck)
    assert (after.state, after.failures, after.crashes, after.attempt) == (State.SCHEDULED, 1, 0, 1)
    assert 'hint="its process is replaced"' in caplog.text
    go.set()


async def test_a_stuck_thread_without_an_overseer_stays_where_it_is(rig, caplog):
    started, go = threading.Event(), threading.Event()

    def in_c() -> str:
        started.set()
        assert go.wait(60)
        return "after all"

    async with rig.working(specs(spec(in_c, timeout=10.0, retries=0)), stall_limit=20.0):
        id = await rig.put("in_c")
        await soon(asyncio.to_thread(started.wait, 20))
        await rig.pass_time(60)
        assert "its slot stays taken until this process ends" in caplog.text
        assert (await rig.job(id)).state is State.RUNNING
        go.set()
        (job,) = await rig.ended(id)

    assert (job.state, job.failures) == (State.FAILED, 1)


# --- all at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_ten_thousand_timeouts_at_the_instant_of_success_have_one_outcome_each(kind):
    """Handlers end around their timeout; some swallow it, some clean up slowly, some time out by
    themselves. Whatever comes first, each attempt is settled once, and what it says is true.
    """
    count, limit = 10_000, 0.004
    dice = random.Random(5)
    naps = [max(0.0, dice.gauss(limit, limit / 4)) for _ in range(count)]
    # Some never wait for anything, and some never end: there is enough of both on any machine.
    naps[3::10] = [0.0] * len(naps[3::10])
    naps[1::10] = [60.0] * len(naps[1::10])
    finished: set[int] = set()
    runs: Counter[int] = Counter()

    def in_thread(number: int) -> int:
        runs[number] += 1
        until = time.monotonic() + naps[number]
        try:
            while time.monotonic() < until:
                time.sleep(0.0005)
            finished.add(number)
        except Interrupted:
            if number % 3 == 0:
                return -1
            raise
        finally:
            if number % 5 == 0:
                time.sleep(0.0002)
        return number

    async def on_loop(number: int) -> int:
        runs[number] += 1
        try:
            if number % 7 == 0 and naps[number]:
                async with asyncio.timeout(naps[number]):
                    await asyncio.sleep(60)
            if naps[number]:
                await asyncio.sleep(naps[number])
            finished.add(number)
        except asyncio.CancelledError:
            if number % 3 == 0:
                return -1
            raise
        finally:
            if number % 5 == 0:
                await asyncio.sleep(0.0002)
        return number

    clock = SystemClock()
    rig = Rig(clock)  # type: ignore[arg-type]
    await rig.engine.open()
    handler = spec(in_thread if kind == "thread" else on_loop, "work", timeout=limit, retries=0)
    settings = WorkerSettings(leads=False, threads=24, concurrency=200)
    worker = Worker(rig.connect, {"work": handler}, settings, clock=clock)
    ids = [await rig.put("work", b'{"number":%d}' % number) for number in range(count)]
    await asyncio.wait_for(worker.run(until_empty=True), 100)
    jobs = await rig.engine.get(ids)
    outcomes = Counter(
        (outcome.job, outcome.claim)
        for handle in rig.handles
        for ask in handle.asks
        for outcome in ask.outcomes
        if outcome.kind is not OutcomeKind.RELEASED
    )
    await rig.engine.close()

    assert set(runs.values()) == {1}
    assert len(outcomes) == count
    assert set(outcomes.values()) == {1}
    states: Counter[State] = Counter()
    for number, job in enumerate(jobs):
        assert job is not None
        states[job.state] += 1
        if job.state is State.SUCCEEDED:
            assert job.result == str(number).encode()
            assert number in finished
        else:
            assert job.state is State.FAILED
            assert (job.reason or "").startswith("TimeoutError")
    assert states[State.SUCCEEDED] > count / 100
    assert states[State.FAILED] > count / 100
