"""What was handed in at the counter, and given up, does not happen after all."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from conformance.steps import claim, claim_one, draft, settle
from penstock import Penstock
from penstock.core.ids import new_id
from penstock.core.job import Draft, State, Verdict
from penstock.engines.crowd import Crowd
from penstock.engines.postgres import counter as counters
from penstock.engines.postgres.counter import Counter
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.window import BYTES
from penstock.engines.records import Filter, Receipt
from penstock.errors import EngineTimeout, EngineUnavailable
from penstock.testing.clock import FakeClock
from postgres.visitors import PATIENCE, Answers, asleep, begins, everybody_has_been_served
from servers.emptied import emptied
from servers.messages import runs
from servers.postgres import quick
from servers.proxy import Fault, Proxy


async def test_a_job_that_arrives_late_is_not_run_again(clock: FakeClock) -> None:
    """Its caller sends it by the other way meanwhile, and it ends."""
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        clock.advance(1.0)
        mine = draft(new_id(clock.now()))
        late = proxy.hold_before(runs("put_plain"))
        with pytest.raises(EngineTimeout):
            await asyncio.to_thread(engine.enqueue_now, [mine], 0.1)
        late.wait()
        (receipt,) = await engine.enqueue([mine])
        assert receipt.created
        assert await settle(engine, await claim_one(engine), "succeeded") is Verdict.DONE
        late.release()
        await everybody_has_been_served(engine)
        waiting = Filter(states=(State.READY,))
        assert await engine.count(waiting) == 0
        await engine.close()


async def test_a_clock_that_was_set_back_forgets_no_doubt(clock: FakeClock) -> None:
    """The id was made before, and sent after: when its reply was lost it is older than it says."""
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        clock.advance(100.0)
        mine = draft(new_id(clock.now()))
        clock.jump(-50.0)
        proxy.cut_after(runs("put_plain"))
        with pytest.raises(EngineUnavailable):
            await engine.enqueue([mine])
        assert await settle(engine, await claim_one(engine), "succeeded") is Verdict.DONE
        (receipt,) = await engine.enqueue([mine])
        assert receipt.because == "id"
        await engine.close()


# --- who stands in line -------------------------------------------------------------------------


@asynccontextmanager
async def at_the_counter(clock: FakeClock) -> AsyncIterator[tuple[PostgresEngine, Proxy]]:
    """A handle behind a proxy, whose counter has served somebody already."""
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        clock.advance(1.0)
        await asyncio.to_thread(engine.enqueue_now, [draft(new_id(clock.now()))], PATIENCE)
        try:
            yield engine, proxy
        finally:
            await engine.close()


async def stand_in_line(counter: Counter, count: int) -> None:
    """Wait until so many stand there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if counter._line.qsize() >= count:
                return
            await asyncio.sleep(0.001)


async def test_all_who_come_meanwhile_share_a_commit(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, proxy):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain"))
        drafts = [draft(new_id(clock.now())) for _ in range(14)]
        engine.enqueue_soon(drafts[0], answers)
        late.wait()
        for each in drafts[1:10]:
            engine.enqueue_soon(each, answers)
        threads = [
            asyncio.create_task(asyncio.to_thread(engine.enqueue_now, [each], PATIENCE))
            for each in drafts[10:]
        ]
        counter = engine._counter
        assert counter is not None
        await stand_in_line(counter, 13)
        second = proxy.hold_before(runs("put_plain"))
        late.release()
        second.wait()
        assert counter._line.qsize() == 0
        second.release()
        await answers.come(10)
        assert [await thread for thread in threads] == [
            [Receipt(each.id, True)] for each in drafts[10:]
        ]
        assert {receipt for receipt, _ in answers.told} == {
            Receipt(each.id, True) for each in drafts[:10]
        }
        assert await engine.count(Filter(states=(State.READY,))) == 15


async def test_who_has_left_the_line_stores_nothing(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, proxy):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain"))
        first, second, third = (draft(new_id(clock.now())) for _ in range(3))
        engine.enqueue_soon(first, answers)
        late.wait()
        leave = engine.enqueue_soon(second, answers)
        assert leave is not None
        engine.enqueue_soon(third, answers)
        leave()
        late.release()
        await answers.come(2)
        assert await engine.get([second.id]) == [None]
        assert None not in await engine.get([first.id, third.id])


async def test_a_time_out_in_line_gives_up_what_is_on_its_way(clock: FakeClock) -> None:
    """Whoever shares its commit is served all the same, by the loop."""
    async with at_the_counter(clock) as (engine, proxy):
        counter = engine._counter
        assert counter is not None
        answers = Answers()
        mine, theirs = draft(new_id(clock.now())), draft(new_id(clock.now()))
        with counter._desk.lock:
            engine.enqueue_soon(theirs, answers)
            late = proxy.hold_before(runs("put_plain"))
            calling = asyncio.create_task(asyncio.to_thread(stand, engine, mine, 1.0))
            await stand_in_line(counter, 1)
        late.wait()
        with pytest.raises(EngineTimeout):
            await calling
        (receipt,) = await engine.enqueue([mine])
        assert receipt.created
        late.release()
        await answers.come(1)
        for told, error in answers.told:
            if told is None and error is None:
                (told,) = await engine.enqueue([theirs])
            assert told == Receipt(theirs.id, True)
        assert await engine.count(Filter(states=(State.READY,))) == 3


def stand(engine: PostgresEngine, mine: Draft, timeout: float) -> list[Receipt] | None:
    """Enqueue from a thread that finds the counter taken."""
    counter = engine._counter
    assert counter is not None
    counter._desk.is_taken = True
    try:
        return engine.enqueue_now([mine], timeout)
    finally:
        counter._desk.is_taken = False


async def test_whoever_is_in_line_when_it_closes_is_told(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, proxy):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain"))
        engine.enqueue_soon(draft(new_id(clock.now())), answers)
        late.wait()
        engine.enqueue_soon(draft(new_id(clock.now())), answers)
        await engine.close()
        late.release()
        await answers.come(2)
        assert (None, None) in answers.told


async def test_several_jobs_do_not_stand_in_line(clock: FakeClock) -> None:
    """The loop has other connections; nothing of them is stored before they go there."""
    async with at_the_counter(clock) as (engine, _):
        counter = engine._counter
        assert counter is not None
        counter._desk.is_taken = True
        some = [draft(new_id(clock.now())) for _ in range(3)]
        assert await asyncio.to_thread(engine.enqueue_now, some, PATIENCE) is None
        assert await engine.get([job.id for job in some]) == [None] * 3
        counter._desk.is_taken = False
        receipts = [Receipt(job.id, True) for job in some]
        assert await asyncio.to_thread(engine.enqueue_now, some, PATIENCE) == receipts


async def test_who_has_several_jobs_leaves_the_counter_to_others(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their commit would keep those waiting who come again and again with one."""
    monkeypatch.setattr(counters, "APART", PATIENCE)
    async with at_the_counter(clock) as (engine, _):
        some = [draft(new_id(clock.now())) for _ in range(3)]
        with ThreadPoolExecutor(1) as mine:
            called = mine.submit(engine.enqueue_now, some, PATIENCE)
            assert await asyncio.wrap_future(called) is None
            assert await engine.get([job.id for job in some]) == [None] * 3
            counter = engine._counter
            assert counter is not None
            counter._crowd = Crowd()
            receipts = [Receipt(job.id, True) for job in some]
            called = mine.submit(engine.enqueue_now, some, PATIENCE)
            assert await asyncio.wrap_future(called) == receipts
            answers = Answers()
            engine.enqueue_soon(draft(new_id(clock.now())), answers)
            await answers.come(1)
            called = mine.submit(engine.enqueue_now, some, PATIENCE)
            assert await asyncio.wrap_future(called) is None


async def test_where_connections_are_swallowed_nobody_waits_for_one_again_and_again(
    clock: FakeClock,
) -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        url = f"{proxy.url(database.url)}?connect_timeout=2"
        engine = PostgresEngine(url, clock, follows_clock=True)
        await engine.open()
        swallowed = proxy.hold_before(begins)
        some = [draft(new_id(clock.now())) for _ in range(3)]
        assert await asyncio.to_thread(engine.enqueue_now, some, PATIENCE) is None
        assert swallowed.has_happened
        another = proxy.cut_before(begins)
        assert await asyncio.to_thread(engine.enqueue_now, some, PATIENCE) is None
        assert not another.has_happened
        counter = engine._counter
        assert counter is not None
        counter._desk._rests_until = -math.inf
        assert await asyncio.to_thread(engine.enqueue_now, some, PATIENCE) is None
        assert another.has_happened
        await engine.close()


async def test_several_jobs_that_are_large_or_of_several_kinds_go_to_the_loop(
    clock: FakeClock,
) -> None:
    async with at_the_counter(clock) as (engine, _):
        text = b'"%s"' % (b"x" * BYTES)
        large = [draft(new_id(clock.now()), payload=text), draft(new_id(clock.now()))]
        mixed = [draft(new_id(clock.now())), draft(new_id(clock.now()), queue="other")]
        for some in (large, mixed):
            assert await asyncio.to_thread(engine.enqueue_now, some, PATIENCE) is None
            assert await engine.get([job.id for job in some]) == [None, None]


async def test_several_jobs_that_take_too_long_say_so(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, proxy):
        late = proxy.hold_before(runs("put_plain"))
        some = [draft(new_id(clock.now())) for _ in range(3)]
        with pytest.raises(EngineTimeout, match="3 jobs took longer than 0.2 s"):
            await asyncio.to_thread(engine.enqueue_now, some, 0.2)
        late.release()


async def test_jobs_that_are_something_special_go_to_the_loop(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, _):
        special = draft(new_id(clock.now()), unique="one")
        assert engine.enqueue_soon(special, lambda *_: None) is None
        assert await asyncio.to_thread(engine.enqueue_now, [special], PATIENCE) is None


async def test_jobs_of_several_kinds_are_stored_in_their_order(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, proxy):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain"))
        engine.enqueue_soon(draft(new_id(clock.now())), answers)
        late.wait()
        drafts = [draft(new_id(clock.now()), queue=queue) for queue in ("a", "a", "b", "a")]
        for each in drafts:
            engine.enqueue_soon(each, answers)
        late.release()
        await answers.come(5)
        jobs = await engine.get([each.id for each in drafts])
        assert [job.queue for job in jobs if job] == ["a", "a", "b", "a"]
        seqs = [job.seq for job in jobs if job]
        assert seqs == sorted(seqs)


# --- a server that does not answer --------------------------------------------------------------


async def is_run_once(engine: PostgresEngine, mine: Draft, late: Fault) -> None:
    """Send a job that was given up by the other way, and let it end before the first one comes."""
    (receipt,) = await engine.enqueue([mine])
    assert receipt.created
    while (job := await claim_one(engine)).id != mine.id:
        await settle(engine, job, "succeeded")
    assert await settle(engine, job, "succeeded") is Verdict.DONE
    late.release()
    await everybody_has_been_served(engine)
    assert mine.id not in [job.id for job in await claim(engine, want=10)]


async def test_what_a_coroutine_has_given_up_does_not_arrive_late(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, proxy):
        mine = draft(new_id(clock.now()))
        late = proxy.hold_before(runs("put_plain"))
        leave = engine.enqueue_soon(mine, lambda *_: None)
        assert leave is not None
        late.wait()
        leave()
        await is_run_once(engine, mine, late)


async def test_who_leaves_between_two_commits_of_one_batch_is_left_out(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, proxy):
        counter = engine._counter
        assert counter is not None
        answers = Answers()
        mine = draft(new_id(clock.now()))
        with counter._desk.lock:
            late = proxy.hold_before(runs("put_plain"))
            engine.enqueue_soon(draft(new_id(clock.now()), queue="other"), answers)
            leave = engine.enqueue_soon(mine, answers)
            assert leave is not None
        late.wait()
        leave()
        late.release()
        await answers.come(2)
        assert await engine.get([mine.id]) == [None]


async def test_a_caller_whose_time_is_over_frees_the_counter_for_others(clock: FakeClock) -> None:
    """Also if it is somebody else who is being served, for ever."""
    async with at_the_counter(clock) as (engine, proxy):
        late = proxy.hold_before(runs("put_plain"))
        engine.enqueue_soon(draft(new_id(clock.now())), lambda *_: None)
        late.wait()
        with pytest.raises(EngineTimeout):
            await asyncio.to_thread(engine.enqueue_now, [draft(new_id(clock.now()))], 0.2)
        mine = draft(new_id(clock.now()))
        receipts = await asyncio.to_thread(engine.enqueue_now, [mine], PATIENCE)
        if receipts is None:
            receipts = await engine.enqueue([mine])
        assert receipts == [Receipt(mine.id, True)]
        late.release()


async def test_a_server_that_lets_us_in_and_says_nothing_is_not_waited_for(
    clock: FakeClock,
) -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        late = proxy.hold_before(runs("pg_stat_get_activity"))
        mine = draft(new_id(clock.now()))
        with pytest.raises(EngineTimeout):
            await asyncio.to_thread(engine.enqueue_now, [mine], 0.2)
        late.release()
        await engine.close()


async def test_two_clerks_both_go_when_it_closes(clock: FakeClock) -> None:
    async with at_the_counter(clock) as (engine, _):
        counter = engine._counter
        assert counter is not None
        clerks = [
            threading.Thread(target=counter._work, args=(counter._line,), daemon=True)
            for _ in range(2)
        ]
        for clerk in clerks:
            counter._clerks.add(clerk)
            clerk.start()
        await engine.close()
        for clerk in clerks:
            await asyncio.to_thread(clerk.join, PATIENCE)
            assert not clerk.is_alive()


async def test_large_payloads_do_not_share_a_commit(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "BYTES", 100)
    async with at_the_counter(clock) as (engine, proxy):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain"))
        engine.enqueue_soon(draft(new_id(clock.now())), answers)
        late.wait()
        large = [draft(new_id(clock.now()), payload=b'"%s"' % (b"x" * 200)) for _ in range(2)]
        for each in large:
            engine.enqueue_soon(each, answers)
        second = proxy.hold_before(runs("put_plain"))
        late.release()
        second.wait()
        counter = engine._counter
        assert counter is not None
        assert counter._line.qsize() == 1
        second.release()
        await answers.come(3)
        assert None not in await engine.get([each.id for each in large])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_that_was_stored_though_its_reply_was_lost_is_the_callers_own(is_async: bool) -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        app = Penstock(proxy.url(database.url))

        @app.task(name="work")
        def work() -> None: ...

        async def several() -> list[bool]:
            handles = await asyncio.gather(*(work.aenqueue() for _ in range(5)))
            return [handle.created for handle in handles]

        work.enqueue()
        fault = proxy.cut_after(runs("put_plain"))
        created = asyncio.run(several()) if is_async else [work.enqueue().created]
        assert fault.has_happened
        assert all(created)
        app.close()


@pytest.mark.parametrize("blocks", [False, True])
async def test_of_many_commits_the_first_and_the_last_wake_who_sleeps(
    clock: FakeClock, blocks: bool
) -> None:
    """A worker that is woken by the first takes them all, unless it was too quick for the last."""
    async with at_the_counter(clock) as (engine, _), asleep() as sleeper:
        answers = Answers()
        with ThreadPoolExecutor(1) as pool:
            for number in range(50):
                mine = draft(new_id(clock.now()), queue=("default", "other")[number == 49])
                if blocks:
                    called = pool.submit(engine.enqueue_now, [mine], PATIENCE)
                    assert await asyncio.wrap_future(called) == [Receipt(mine.id, True)]
                else:
                    engine.enqueue_soon(mine, answers)
                    await answers.come(number + 1)
        told = [note.payload async for note in sleeper.notifies(timeout=0.5)]
        assert 2 <= len(told) <= 50
        assert set(told) == {"work default", "work other"}
        counter = engine._counter
        assert counter is not None
        assert not counter._desk.bell


async def test_whoever_was_put_off_is_woken_though_somebody_else_was_meanwhile(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clerk may find that there is nobody left to be woken, and is reminded the next time."""
    async with at_the_counter(clock) as (engine, _), asleep() as sleeper:
        counter = engine._counter
        assert counter is not None

        def put(queue: str) -> None:
            engine.enqueue_now([draft(new_id(clock.now()), queue=queue)], PATIENCE)

        for lot in range(20):
            for number in range(3):
                await asyncio.to_thread(put, f"{lot}-{number}")
        names = {f"work {lot}-{number}" for lot in range(20) for number in range(3)}
        told: set[str] = set()
        async with asyncio.timeout(PATIENCE):
            async for note in sleeper.notifies():
                told.add(note.payload)
                if told >= names:
                    break


async def test_whoever_was_put_off_is_woken_when_the_handle_closes(clock: FakeClock) -> None:
    for _ in range(10):
        async with at_the_counter(clock) as (engine, _), asleep() as sleeper:

            def put(engine: PostgresEngine = engine) -> None:
                for queue in ("one", "two", "three"):
                    engine.enqueue_now([draft(new_id(clock.now()), queue=queue)], PATIENCE)

            await asyncio.to_thread(put)
            await engine.close()
            told: set[str] = set()
            async with asyncio.timeout(PATIENCE):
                async for note in sleeper.notifies():
                    told.add(note.payload)
                    if told >= {"work one", "work two", "work three"}:
                        break


async def test_whoever_was_put_off_is_woken_though_no_thread_can_be_started(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_the_counter(clock) as (engine, _), asleep() as sleeper:
        with ThreadPoolExecutor(1) as pool:
            await asyncio.wrap_future(pool.submit(lambda: None))

            def put() -> None:
                for number in range(20):
                    mine = draft(new_id(clock.now()), queue=str(number))
                    engine.enqueue_now([mine], PATIENCE)

            monkeypatch.setattr(threading.Thread, "start", _no_more)
            called = pool.submit(put)
            await asyncio.wrap_future(called)
            monkeypatch.undo()
        told: set[str] = set()
        async with asyncio.timeout(PATIENCE):
            async for note in sleeper.notifies():
                told.add(note.payload)
                if told >= {f"work {number}" for number in range(20)}:
                    break
        counter = engine._counter
        assert counter is not None
        assert not counter._is_minded


def _no_more(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
