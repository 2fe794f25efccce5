"""When a worker speaks to the store, when it does not, and that it leads if it is elected."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from conformance.steps import elect
from penstock.core.job import State, Verdict
from penstock.engines.records import Ask, Exchange, WorkerInfo
from penstock.leader.election import present_term
from penstock.worker import prefetch
from worker.rig import Handle, soon, specs


async def work() -> None:
    pass


async def test_an_outcome_whose_row_is_locked_is_sent_again(rig):
    locked = 2

    class Locked(Handle):
        async def exchange(self, ask: Ask) -> Exchange:
            nonlocal locked
            if ask.outcomes and locked:
                locked -= 1
                self.asks.append(ask)
                reply = await self.inner.exchange(replace(ask, outcomes=()))
                return replace(reply, verdicts=tuple(Verdict.LATER for _ in ask.outcomes))
            return await super().exchange(ask)

    def connect() -> Handle:
        handle = Locked(rig)
        rig.handles.append(handle)
        return handle

    worker = rig.worker(specs(work))
    worker._connect = connect
    async with asyncio.TaskGroup() as group:
        run = group.create_task(worker.run())
        await soon(worker.ready.wait())
        id = await rig.put("work")
        (job,) = await rig.meanwhile(rig.ended(id))
        worker.stop(0)
        await rig.over(run)

    assert job.state is State.SUCCEEDED
    assert locked == 0


async def test_a_store_that_calls_for_nothing_is_no_hot_loop(rig):
    async def at_once(ask: Ask, timeout: float) -> None:
        return None

    async with rig.working(specs(work)):
        await rig.clock.asleep(3)
        rig.main.wait = at_once  # type: ignore[method-assign]
        before = len(rig.main.asks)
        rig.clock.advance(2)
        await rig.clock.asleep(3)
        assert len(rig.main.asks) - before < 5
        await rig.pass_time(1)
        assert len(rig.main.asks) - before < 20


async def test_an_idle_worker_asks_once_per_poll(rig):
    async with rig.working(specs(work)):
        await rig.clock.asleep(3)
        before = len(rig.main.asks)
        await rig.pass_time(30)
        assert 28 <= len(rig.main.asks) - before <= 33


async def test_a_worker_whose_slots_are_full_does_not_ask_for_more(rig):
    started, go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        started.set()
        await go.wait()

    async with rig.working(specs(hold), concurrency=2):
        ids = [await rig.put("hold") for _ in range(6)]
        await soon(started.wait())
        await rig.pass_time(10)
        assert all(ask.want <= 2 for ask in rig.main.asks)
        states = [(await rig.job(id)).state for id in ids]
        assert states.count(State.RUNNING) == 2
        go.set()
        await rig.meanwhile(rig.ended(*ids))


async def test_many_outcomes_ride_in_few_exchanger(rig):
    async with rig.working(specs(work)) as worker:
        ids = [await rig.put("work") for _ in range(500)]
        await rig.ended(*ids)

    assert worker.stats.exchanges < 30
    assert worker.stats.succeeded == 500


async def test_outcomes_that_pile_up_are_sent_in_pieces_of_what_a_call_should_carry(rig):
    go = asyncio.Event()

    async def hold() -> None:
        await go.wait()

    async with rig.working(specs(hold), concurrency=50):
        rig.main.traits = replace(rig.main.traits, max_batch=20)
        ids = [await rig.put("hold") for _ in range(50)]
        await soon(rig.until(lambda: _all(rig, ids, State.RUNNING)))
        go.set()
        await rig.ended(*ids)

    assert max(len(ask.outcomes) for ask in rig.main.asks) == 20
    assert max(ask.want for ask in rig.main.asks[1:]) <= 50


async def _all(rig, ids, state) -> bool:
    return all([(await rig.job(id)).state is state for id in ids])


async def test_a_worker_that_is_elected_rescues_the_jobs_of_a_dead_one(rig):
    await rig.engine.join(WorkerInfo(id="dead"))
    id = await rig.put("work")
    await rig.engine.exchange(Ask(worker="dead", queues=("default",), want=1, slots=0))
    # The claim loop, the beats and the watchdog; the renewals and the three chores.
    everybody = 3 + 1 + 3
    async with rig.working(specs(work), leads=True) as worker:
        await soon(rig.clock.asleep(everybody))
        term = await present_term(rig.engine)
        assert term is not None
        assert term.holder == worker.id
        (job,) = await rig.meanwhile(rig.ended(id), sleepers=everybody)

    assert (job.state, job.claim, job.attempt, job.crashes) == (State.SUCCEEDED, 2, 1, 0)
    assert await present_term(rig.engine) is None


@pytest.mark.parametrize("is_leader", [True, False])
async def test_an_idle_worker_makes_about_two_store_calls_per_second_in_all(rig, is_leader):
    def sent() -> list[str]:
        """Verbs that ask the store; a sleep and the version before it are no calls of their own."""
        asked = (verb for handle in rig.handles for verb in handle.verbs)
        return [verb for verb in asked if verb not in ("version", "listen")]

    if not is_leader:
        await elect(rig.engine, "another", 1e6)
    everybody = 3 + 1 + (3 if is_leader else 0)
    async with rig.working(specs(work), leads=True):
        await soon(rig.clock.asleep(everybody))
        before = len(sent())
        began = rig.clock.monotonic()
        while (passed := rig.clock.monotonic() - began) < 120:
            await soon(rig.clock.asleep(everybody))
            rig.clock.advance(max(0.001, rig.clock._next_deadline() - rig.clock.monotonic()))
            await rig.clock.settle()
        calls = sent()
    # The leader's renewals and looks at the workers come on top.
    most = 2.1 if is_leader else 2.0
    assert len(calls) - before <= most * passed, Counter(calls)


# --- who looks behind a line --------------------------------------------------------------------


@asynccontextmanager
async def half_full(rig, concurrency: int = 2, **settings: Any) -> AsyncIterator[asyncio.Event]:
    """A worker that has taken all there was, whose coroutines are busy until the event is set, and
    whose threads are not.
    """
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()

    def other() -> None: ...

    async with rig.working(specs(work, other), concurrency=concurrency, threads=4, **settings):
        ids = await rig.put_all("work", 2)
        await rig.in_state(ids[-1], State.RUNNING)
        await soon(rig.clock.asleep(3))
        yield go
        go.set()
        await rig.ended(*ids)


async def test_a_worker_that_took_all_there_was_does_not_look_behind_it_for_a_moment(rig):
    async with half_full(rig):
        assert any(ask.want > 2 for ask in rig.main.asks)
        rig.clock.advance(prefetch.MOMENT / 2)
        await soon(rig.clock.asleep(3))
        assert not any(ask.avoid for ask in rig.main.asks)


async def test_a_worker_whose_slots_are_full_for_long_looks_for_jobs_that_need_others(rig):
    async with half_full(rig):
        assert any(ask.want > 2 for ask in rig.main.asks)
        id = await rig.put("other")
        await rig.meanwhile(rig.ended(id))
        assert any(ask.avoid for ask in rig.main.asks)


async def test_slots_that_are_kept_for_urgent_jobs_do_not_look_free_to_others(rig):
    """The one coroutine that may not be taken is no reason to leave the threads idle."""
    async with half_full(rig, concurrency=3, reserve={0: 1}) as go:
        id = await rig.put("other")
        await rig.meanwhile(rig.ended(id))
        assert not go.is_set()


async def test_a_worker_that_waits_for_a_moment_sleeps_meanwhile(rig, monkeypatch):
    naps: list[float] = []
    wait = rig.clock.wait

    async def counted(event: asyncio.Event, timeout: float) -> bool:
        naps.append(timeout)
        return await wait(event, timeout)

    async with half_full(rig, concurrency=3, reserve={0: 1}):
        monkeypatch.setattr(rig.clock, "wait", counted)
        await rig.pass_time(5.0)
        assert naps
        assert min(naps) >= prefetch.SKIP_EVERY[0]
