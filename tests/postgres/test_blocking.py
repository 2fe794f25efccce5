"""A thread that stores jobs by itself loses nothing and stores nothing twice."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from conformance.steps import claim, claim_one, created, draft, known, settle
from penstock import Penstock
from penstock.core.ids import new_id
from penstock.core.job import Draft, State, Verdict
from penstock.engines import reads
from penstock.engines.postgres import blocking
from penstock.engines.postgres.blocking import BlockingConnection, PostgresInlet
from penstock.engines.postgres.connection import Statement, Texts
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Filter, Receipt
from penstock.errors import EngineTimeout, EngineUnavailable, ItemRefused
from penstock.testing.clock import FakeClock
from postgres.callers import (
    PATIENCE,
    abandoned_backends_have_ended,
    begins,
    heard,
    listener,
    put_blocking,
)
from servers.emptied import emptied
from servers.messages import runs
from servers.postgres import quick
from servers.proxy import Fault, Proxy

WAITING = Filter(states=(State.READY,))


@asynccontextmanager
async def proxied(clock: FakeClock) -> AsyncIterator[tuple[PostgresEngine, Proxy]]:
    """A handle behind a proxy, by whose inlet one job was stored already."""
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        clock.advance(1.0)
        assert await put_blocking(engine, [new_job(clock)]) is not None
        try:
            yield engine, proxy
        finally:
            await engine.close()
    assert database.left_open() == []


def new_job(clock: FakeClock, **fields: object) -> Draft:
    return draft(new_id(clock.now()), **fields)


def inlet_of(engine: PostgresEngine) -> PostgresInlet:
    assert engine.inlet is not None
    return engine.inlet


# --- who may use it -------------------------------------------------------------------------------


async def test_a_caller_that_finds_it_in_use_stores_nothing_and_does_not_wait(
    clock: FakeClock,
) -> None:
    async with proxied(clock) as (engine, proxy):
        late = proxy.hold_before(runs("penstock.put("))
        first, second = new_job(clock), new_job(clock)
        storing = asyncio.create_task(put_blocking(engine, [first]))
        await asyncio.to_thread(late.wait)
        assert await put_blocking(engine, [second]) is None
        late.release()
        assert await storing == [created(first.id)]
        assert await engine.get([second.id]) == [None]


async def test_one_that_interrupts_its_own_thread_in_the_middle_does_not_wait(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler or a finaliser may run anywhere."""
    async with proxied(clock) as (engine, _):
        run, inlet = BlockingConnection.run, inlet_of(engine)
        met: list[object] = []

        def interrupted(self: BlockingConnection, *order: object) -> object:
            met.append(inlet.put([new_job(clock)], None))
            return run(self, *order)  # type: ignore[arg-type]

        monkeypatch.setattr(BlockingConnection, "run", interrupted)
        mine = new_job(clock)
        assert await put_blocking(engine, [mine]) == [created(mine.id)]
        assert met == [None]


async def test_jobs_that_are_large_or_known_or_contradict_each_other_are_left_to_enqueue(
    clock: FakeClock,
) -> None:
    async with proxied(clock) as (engine, _):
        text = b'"%s"' % (b"x" * blocking.MOST_BYTES)
        large = [new_job(clock, payload=text), new_job(clock)]
        job = new_job(clock, unique="one")
        twice = [job, replace(job, unique="two")]
        known = [new_job(clock), new_job(clock)]
        await engine.enqueue(known[:1])
        for some in (large, twice, known):
            assert await put_blocking(engine, some) is None
            assert await engine.get([some[1].id]) == [None]


async def test_jobs_of_every_kind_are_stored_together(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, _):
        first = new_job(clock, unique="one", key="k", tags=("a", "b"))
        second = new_job(clock, queue="other", delay=5.0, payload=b"\xff\0")
        third = new_job(clock, unique="one")
        receipts = await put_blocking(engine, [first, second, third])
        assert receipts == [
            created(first.id),
            created(second.id),
            Receipt(first.id, False, "unique"),
        ]
        one, two = [job for job in await engine.get([first.id, second.id]) if job is not None]
        assert (one.key, one.tags, one.unique) == ("k", ("a", "b"), "one")
        assert (two.queue, two.state, two.payload) == ("other", State.SCHEDULED, b"\xff\0")


async def test_what_no_store_takes_is_refused_and_the_connection_stays(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, _):
        connection = inlet_of(engine)._connection
        with pytest.raises(ItemRefused):
            await put_blocking(engine, [new_job(clock, queue="a\0b")])
        assert await put_blocking(engine, [new_job(clock)]) is not None
        assert inlet_of(engine)._connection is connection


async def test_a_payload_that_is_larger_than_the_pipe_arrives_whole(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, _):
        mine = new_job(clock, payload=b'"%s"' % (b"x" * (12 << 20)))
        assert await put_blocking(engine, [mine]) == [created(mine.id)]
        (found,) = await engine.get([mine.id])
        assert found is not None
        assert found.payload == mine.payload


# --- time-outs ------------------------------------------------------------------------------------


async def is_run_once(engine: PostgresEngine, mine: Draft, late: Fault) -> None:
    """Send a job that was given up by the other way, and let it end before the first one comes."""
    (receipt,) = await engine.enqueue([mine])
    assert receipt.created
    while (job := await claim_one(engine)).id != mine.id:
        await settle(engine, job, "succeeded")
    assert await settle(engine, job, "succeeded") is Verdict.DONE
    late.release()
    await abandoned_backends_have_ended(engine)
    assert mine.id not in [job.id for job in await claim(engine, want=10)]


async def test_a_job_that_arrives_late_is_not_run_again(clock: FakeClock) -> None:
    """Its caller sends it by the other way meanwhile, and it ends."""
    async with proxied(clock) as (engine, proxy):
        mine = new_job(clock)
        late = proxy.hold_before(runs("penstock.put("))
        with pytest.raises(EngineTimeout, match=r"enqueue took longer than 0\.1 s"):
            await put_blocking(engine, [mine], 0.1)
        await is_run_once(engine, mine, late)


async def test_a_job_that_was_stored_and_given_up_is_not_stored_again(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, proxy):
        mine = new_job(clock)
        late = proxy.hold_after(runs("penstock.put("))
        with pytest.raises(EngineTimeout):
            await put_blocking(engine, [mine], 0.5)
        (receipt,) = await engine.enqueue([mine])
        assert receipt == known(mine.id)
        late.release()


async def test_several_jobs_that_take_too_long_say_so(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, proxy):
        late = proxy.hold_before(runs("penstock.put("))
        some = [new_job(clock) for _ in range(3)]
        with pytest.raises(EngineTimeout, match=r"3 jobs took longer than 0\.2 s"):
            await put_blocking(engine, some, 0.2)
        late.release()


async def test_a_server_that_accepts_and_says_nothing_is_not_waited_for(clock: FakeClock) -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        late = proxy.hold_before(runs("pg_stat_get_activity"))
        with pytest.raises(EngineTimeout):
            await put_blocking(engine, [new_job(clock)], 0.2)
        late.release()
        await engine.close()


async def test_where_connections_are_swallowed_not_every_caller_waits_for_one(
    clock: FakeClock,
) -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        url = f"{proxy.url(database.url)}?connect_timeout=2"
        engine = PostgresEngine(url, clock, follows_clock=True)
        await engine.open()
        swallowed = proxy.hold_before(begins)
        some = [new_job(clock) for _ in range(3)]
        assert await put_blocking(engine, some) is None
        assert swallowed.has_happened
        another = proxy.cut_before(begins)
        assert await put_blocking(engine, some) is None
        assert not another.has_happened
        inlet_of(engine)._retry_at = -math.inf
        assert await put_blocking(engine, some) is None
        assert another.has_happened
        await engine.close()


async def test_a_clock_that_was_set_back_forgets_no_doubt(clock: FakeClock) -> None:
    """The id was made before, and sent after: when its reply was lost it is older than it says."""
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        clock.advance(100.0)
        mine = new_job(clock)
        clock.jump(-50.0)
        proxy.cut_after(runs("penstock.put("))
        with pytest.raises(EngineUnavailable):
            await engine.enqueue([mine])
        assert await settle(engine, await claim_one(engine), "succeeded") is Verdict.DONE
        (receipt,) = await engine.enqueue([mine])
        assert receipt.because == "id"
        await engine.close()


# --- what breaks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
async def test_nothing_is_lost_or_stored_twice_when_the_connection_breaks(
    clock: FakeClock, after: bool
) -> None:
    async with proxied(clock) as (engine, proxy):
        for number in range(5):
            cut = proxy.cut_after if after else proxy.cut_before
            fault = cut(runs("penstock.put("))
            some = [new_job(clock) for _ in range(1 + number % 2)]
            assert await put_blocking(engine, some) is None
            assert fault.has_happened
            receipts = await engine.enqueue(some)
            assert [receipt.created for receipt in receipts] == [not after] * len(some)
            assert await put_blocking(engine, [new_job(clock)]) is not None
        assert await reads.count(engine, WAITING) == 1 + 5 + 7


async def test_an_id_that_is_there_already_goes_to_enqueue(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, _):
        mine = new_job(clock)
        assert await put_blocking(engine, [mine]) is not None
        assert await put_blocking(engine, [mine]) is None
        (receipt,) = await engine.enqueue([mine])
        assert receipt == known(mine.id)


async def test_a_connection_that_ended_while_nobody_used_it_is_replaced(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, proxy):
        proxy.cut()
        mine = new_job(clock)
        assert await put_blocking(engine, [mine]) is None
        assert (await engine.enqueue([mine]))[0].created
        assert await put_blocking(engine, [new_job(clock)]) is not None


async def test_an_interrupted_caller_leaves_nothing_half_done(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may raise anywhere; later callers are served."""
    async with proxied(clock) as (engine, proxy):
        late = proxy.hold_before(runs("penstock.put("))

        def interrupted(
            self: BlockingConnection, statement: Statement, values: Texts, until: float
        ) -> None:
            self.post(statement, values, until)
            self._owes_reply = False
            raise KeyboardInterrupt

        mine = new_job(clock)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(BlockingConnection, "run", interrupted)
            inlet_of(engine).put([mine], PATIENCE)
        assert inlet_of(engine)._connection is None
        await is_run_once(engine, mine, late)
        assert await put_blocking(engine, [new_job(clock)]) is not None


@pytest.mark.parametrize("several", [False, True])
def test_a_job_that_was_stored_though_its_reply_was_lost_is_the_callers_own(several: bool) -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        app = Penstock(proxy.url(database.url))
        work = app.task(name="work")(_nothing)
        work.enqueue()
        fault = proxy.cut_after(runs("penstock.put("))
        created = (
            [handle.created for handle in work.enqueue_many([() for _ in range(5)])]
            if several
            else [work.enqueue().created]
        )
        assert fault.has_happened
        assert all(created)
        app.close()


def test_a_forked_child_opens_its_own_and_closes_nothing_of_its_parents() -> None:
    database = emptied()
    database.empty()
    app = Penstock(database.url)
    work = app.task(name="work")(_nothing)
    work.enqueue()
    child = os.fork()
    if not child:
        status = 1
        try:
            work.enqueue()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(10):
        assert work.enqueue().created
    assert sum(each.jobs for each in app.counts()) == 12
    app.close()
    assert database.left_open() == []


async def test_a_fork_while_another_thread_stores_leaves_the_child_no_lock(
    clock: FakeClock,
) -> None:
    """The same inlet in a child has a lock and a connection of its own."""
    async with proxied(clock) as (engine, proxy):
        inlet = inlet_of(engine)
        mine = inlet._connection
        late = proxy.hold_before(runs("penstock.put("))
        storing = asyncio.create_task(put_blocking(engine, [new_job(clock)]))
        await asyncio.to_thread(late.wait)
        child = os.fork()
        if not child:
            status = 1
            try:
                receipts = inlet.put([new_job(clock)], PATIENCE)
                is_new = inlet._connection is not None and inlet._connection is not mine
                status = 0 if receipts is not None and is_new else 2
            finally:
                os._exit(status)
        exit_code = await asyncio.to_thread(lambda: os.waitpid(child, 0)[1])
        assert os.waitstatus_to_exitcode(exit_code) == 0
        late.release()
        assert await storing is not None
        assert inlet._connection is mine


# --- the wake-up and the end ----------------------------------------------------------------------


async def test_each_commit_wakes_idle_workers(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, _), listener() as idle:
        for _ in range(20):
            assert await put_blocking(engine, [new_job(clock)]) is not None
            await heard(idle, "work")


async def test_the_last_wake_up_is_heard_though_the_handle_closes_at_once(
    clock: FakeClock,
) -> None:
    for _ in range(10):
        async with proxied(clock) as (engine, _), listener() as idle:
            assert await put_blocking(engine, [new_job(clock, queue="last")]) is not None
            await engine.close()
            await heard(idle, "work")


async def test_a_caller_that_stores_while_the_handle_closes_is_served(clock: FakeClock) -> None:
    async with proxied(clock) as (engine, proxy):
        inlet = inlet_of(engine)
        late = proxy.hold_before(runs("penstock.put("))
        mine = new_job(clock)
        storing = asyncio.create_task(put_blocking(engine, [mine]))
        await asyncio.to_thread(late.wait)
        await engine.close()
        assert engine.inlet is None
        late.release()
        assert await storing == [created(mine.id)]
        assert inlet._connection is None
        assert inlet.put([new_job(clock)], PATIENCE) is None


async def test_many_threads_store_each_job_once(engine: PostgresEngine, clock: FakeClock) -> None:
    clock.advance(1.0)
    drafts = [new_job(clock) for _ in range(200)]
    inlet = inlet_of(engine)
    stored: list[str] = []

    def store(share: Sequence[Draft]) -> None:
        for each in share:
            if inlet.put([each], PATIENCE) is not None:
                stored.append(each.id)

    threads = [threading.Thread(target=store, args=(drafts[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, PATIENCE)
    found = await engine.get([each.id for each in drafts])
    assert {job.id for job in found if job is not None} == set(stored)


def _nothing() -> None: ...


async def test_an_interrupt_right_after_the_lock_was_taken_leaves_it_free(engine, clock):
    """The interpreter runs signal handlers after each call, before its value is stored."""
    inlet = engine.inlet
    assert isinstance(inlet, PostgresInlet)
    assert await put_blocking(engine, [new_job(clock)]) is not None

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not PostgresInlet.put.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and inlet._lock.locked():
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            inlet.put([new_job(clock)], None)
    finally:
        sys.settrace(None)

    assert not inlet._lock.locked()
    assert inlet.put([new_job(clock)], None) is not None
