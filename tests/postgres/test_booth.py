"""A loop that comes often has a place of its own, where nothing is lost or done twice either."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import pytest

from conformance.steps import claim_one, settle
from penstock import Penstock
from penstock.core.job import Draft, State, Verdict
from penstock.engines.engine import Answer
from penstock.engines.postgres import booth as booths
from penstock.engines.postgres.connection import Statement, Texts
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.enqueue import Plain, to_plain
from penstock.engines.postgres.regulars import REGULAR
from penstock.engines.records import Filter, Receipt
from penstock.errors import EngineTimeout
from postgres.booths import at_the_booth, come, come_often, job, no_connection_is_left
from postgres.visitors import PATIENCE, Answers, asleep, begins, everybody_has_been_served, until
from servers.emptied import emptied
from servers.messages import Message, runs
from servers.postgres import quick
from servers.proxy import Proxy

WAITING = Filter(states=(State.READY,))


# --- what it does -------------------------------------------------------------------------------


async def test_all_who_come_meanwhile_share_a_commit() -> None:
    async with at_the_booth() as (engine, proxy, booth):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain_one"))
        drafts = [job() for _ in range(10)]
        for each in drafts:
            engine.enqueue_soon(each, answers)
        late.wait()
        assert len(booth._line) == 9
        second = proxy.hold_before(runs("put_plain"))
        late.release()
        await answers.come(1)
        second.wait()
        assert [visitor.draft for visitor in booth._serving] == drafts[1:]
        second.release()
        await answers.come(10)
        assert [receipt for receipt, _ in answers.told] == [
            Receipt(each.id, True) for each in drafts
        ]


async def test_jobs_of_several_kinds_are_stored_one_kind_after_the_other() -> None:
    async with at_the_booth() as (engine, _, _booth):
        answers = Answers()
        drafts = [job(queue=queue) for queue in ("a", "a", "b", "b", "a")]
        for each in drafts:
            engine.enqueue_soon(each, answers)
        await answers.come(5)
        found = await engine.get([each.id for each in drafts])
        assert [one and one.queue for one in found] == ["a", "a", "b", "b", "a"]


async def test_a_payload_that_is_larger_than_the_pipe_arrives_whole() -> None:
    async with at_the_booth() as (engine, proxy, _):
        answers = Answers()
        held = proxy.hold_before(lambda message: message.asks)
        mine = job(payload=b'"%s"' % (b"x" * (12 << 20)))
        engine.enqueue_soon(mine, answers)
        small = job()
        engine.enqueue_soon(small, answers)
        await asyncio.to_thread(held.wait)
        held.release()
        await answers.come(2)
        assert [receipt for receipt, _ in answers.told] == [
            Receipt(mine.id, True),
            Receipt(small.id, True),
        ]
        (found,) = await engine.get([mine.id])
        assert found is not None
        assert found.payload == mine.payload


async def test_what_no_store_takes_is_left_to_who_says_why() -> None:
    async with at_the_booth() as (engine, _, booth):
        answers = Answers()
        engine.enqueue_soon(job(queue="a\0b"), answers)
        engine.enqueue_soon(job(payload=b"\xff"), answers)
        fine = job()
        engine.enqueue_soon(fine, answers)
        await answers.come(3)
        assert answers.told == [(None, None), (None, None), (Receipt(fine.id, True), None)]
        assert booth.is_open


async def test_an_id_that_is_there_already_goes_the_long_way() -> None:
    async with at_the_booth() as (engine, _, booth):
        answers = Answers()
        mine, theirs = job(), job()
        for each in (mine, mine, theirs):
            engine.enqueue_soon(each, answers)
        await answers.come(3)
        assert answers.told[0] == (Receipt(mine.id, True), None)
        assert answers.told[1:] == [(None, None)] * 2
        assert not booth.is_open
        receipts = await engine.enqueue([mine, theirs])
        assert [receipt.created for receipt in receipts] == [False, True]


# --- who gives up -------------------------------------------------------------------------------


async def test_who_has_left_the_line_stores_nothing() -> None:
    async with at_the_booth() as (engine, proxy, _):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain_one"))
        first, second, third = job(), job(), job()
        engine.enqueue_soon(first, answers)
        leave = engine.enqueue_soon(second, answers)
        engine.enqueue_soon(third, answers)
        assert leave is not None
        leave()
        late.wait()
        late.release()
        await answers.come(2)
        assert await engine.get([second.id]) == [None]
        assert None not in await engine.get([first.id, third.id])


async def test_a_job_that_was_given_up_does_not_arrive_later() -> None:
    """Its caller sends it by the other way meanwhile, and it ends."""
    async with at_the_booth() as (engine, proxy, booth):
        for _ in range(REGULAR):
            assert await settle(engine, await claim_one(engine), "succeeded") is Verdict.DONE
        answers = Answers()
        late = proxy.hold_before(runs("put_plain_one"))
        mine = job()
        leave = engine.enqueue_soon(mine, answers)
        assert leave is not None
        late.wait()
        leave()
        assert not booth.is_open
        (receipt,) = await engine.enqueue([mine])
        assert receipt.created
        assert await settle(engine, await claim_one(engine), "succeeded") is Verdict.DONE
        late.release()
        await everybody_has_been_served(engine, left=2)
        assert await engine.count(WAITING) == 0


async def test_a_job_that_was_stored_and_given_up_is_not_stored_again() -> None:
    async with at_the_booth() as (engine, proxy, _):
        answers = Answers()
        late = proxy.hold_after(runs("put_plain_one"))
        mine = job()
        leave = engine.enqueue_soon(mine, answers)
        assert leave is not None
        late.wait()
        leave()
        late.release()
        (receipt,) = await engine.enqueue([mine])
        assert receipt.because == "id"


async def test_those_who_share_a_commit_that_was_given_up_go_the_long_way() -> None:
    async with at_the_booth() as (engine, proxy, _):
        answers = Answers()
        first = proxy.hold_before(runs("put_plain_one"))
        engine.enqueue_soon(job(), answers)
        mine, theirs = job(), job()
        leave = engine.enqueue_soon(mine, answers)
        engine.enqueue_soon(theirs, answers)
        assert leave is not None
        first.wait()
        second = proxy.hold_before(runs("put_plain"))
        first.release()
        await answers.come(1)
        second.wait()
        leave()
        await answers.come(3)
        assert answers.told[1:] == [(None, None)] * 2
        receipts = await engine.enqueue([theirs])
        assert receipts == [Receipt(theirs.id, True)]
        second.release()
        await everybody_has_been_served(engine, left=2)
        assert await engine.get([mine.id]) == [None]


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(booths, "LONGEST", 0.2)
    async with at_the_booth() as (engine, proxy, booth):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain_one"))
        mine = job()
        engine.enqueue_soon(mine, answers)
        await answers.come(1)
        assert answers.told == [(None, None)]
        assert not booth.is_open
        (receipt,) = await engine.enqueue([mine])
        assert receipt.created
        late.release()
        await everybody_has_been_served(engine, left=2)


async def test_a_caller_whose_time_is_over_is_told() -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        app = Penstock(proxy.url(database.url), enqueue_timeout=1.0)

        @app.task(name="work")
        def work() -> None: ...

        for _ in range(REGULAR * 2):
            await work.aenqueue()
        late = proxy.hold_before(runs("put_plain_one"))
        with pytest.raises(EngineTimeout, match="longer than 1 s"):
            await work.aenqueue()
        assert late.has_happened
        late.release()
        assert (await work.aenqueue()).created
        await app.aclose()


# --- what breaks --------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
async def test_nothing_is_lost_or_stored_twice_when_the_connection_breaks(after: bool) -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        app = Penstock(proxy.url(database.url))

        @app.task(name="work")
        def work() -> None: ...

        for _ in range(5):
            for _ in range(REGULAR * 2):
                await work.aenqueue()
            cut = proxy.cut_after if after else proxy.cut_before
            fault = cut(runs("put_plain"), nth=2)
            for _ in range(2):
                handles = await asyncio.gather(*(work.aenqueue() for _ in range(8)))
                assert all(handle.created for handle in handles)
            assert fault.has_happened
        ready = sum(each.jobs for each in await app.acounts())
        assert ready == 5 * (REGULAR * 2 + 16)
        await app.aclose()
    await no_connection_is_left()


async def test_a_connection_that_ends_while_nobody_is_there_is_noticed() -> None:
    async with at_the_booth() as (engine, proxy, booth):
        proxy.cut()
        await until(lambda: not booth.is_open)
        mine = job()
        answers = Answers()
        engine.enqueue_soon(mine, answers)
        await answers.come(1)
        if answers.told == [(None, None)]:  # the counter's connection was cut as well
            assert (await engine.enqueue([mine]))[0].created
        assert await engine.count(WAITING) == REGULAR + 1


async def test_an_interrupted_caller_leaves_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal handler may raise anywhere; those who come later are served."""
    async with at_the_booth() as (engine, _, booth):
        send = booth._till.send

        def interrupted(statement: Statement, values: Texts) -> bool:
            send(statement, values)
            raise KeyboardInterrupt

        monkeypatch.setattr(booth._till, "send", interrupted)
        answers = Answers()
        with pytest.raises(KeyboardInterrupt):
            engine.enqueue_soon(job(), answers)
        assert not booth.is_open
        mine = job()
        engine.enqueue_soon(mine, answers)
        await answers.come(2)
        assert answers.told == [(None, None), (Receipt(mine.id, True), None)]


async def test_who_is_about_to_be_told_when_something_is_raised_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with at_the_booth() as (engine, _, booth):
        raised: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: raised.append(seen))

        def fail(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(booth._bell, "hears", fail)
        answers = Answers()
        mine = job()
        engine.enqueue_soon(mine, answers)
        await answers.come(1)
        assert answers.told == [(None, None)]
        assert len(raised) == 1
        (receipt,) = await engine.enqueue([mine])
        assert receipt.because == "id"


async def test_who_comes_in_the_middle_of_a_sentence_is_served_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finaliser may run anywhere, and begin a task that is eager."""
    async with at_the_booth() as (engine, _, booth):
        answers = Answers()
        drafts = [job(), job()]

        def interrupted(name: str, some: Sequence[Draft]) -> Plain | None:
            if len(drafts) > 1:
                engine.enqueue_soon(drafts.pop(), answers)
            return to_plain(name, some)

        monkeypatch.setattr(booths, "to_plain", interrupted)
        mine, theirs = drafts
        engine.enqueue_soon(mine, answers)
        await answers.come(2)
        assert answers.told == [(Receipt(each.id, True), None) for each in (mine, theirs)]
        assert booth.is_open


def test_a_forked_child_disturbs_nobody() -> None:
    database = emptied()
    database.empty()
    app = Penstock(database.url)

    @app.task(name="work")
    def work() -> None: ...

    async def main() -> None:
        for _ in range(REGULAR * 2):
            await work.aenqueue()
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
            assert (await work.aenqueue()).created

    with asyncio.Runner() as runner:
        runner.run(main())
        assert sum(each.jobs for each in app.counts()) == REGULAR * 2 + 11
        app.close()
    assert database.left_open() == []


# --- its end ------------------------------------------------------------------------------------


async def test_who_is_being_served_when_the_handle_closes_is_served() -> None:
    async with at_the_booth() as (engine, proxy, _):
        answers = Answers()
        late = proxy.hold_before(runs("put_plain_one"))
        mine, theirs = job(), job()
        engine.enqueue_soon(mine, answers)
        engine.enqueue_soon(theirs, answers)
        late.wait()
        await engine.close()
        assert answers.told == []
        late.release()
        await answers.come(2)
        assert answers.told == [(Receipt(mine.id, True), None), (None, None)]
        await engine.open()
        assert None not in await engine.get([mine.id])
        assert await engine.get([theirs.id]) == [None]


async def test_a_connection_that_is_made_while_the_handle_closes_is_closed() -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url))
        await engine.open()
        answers = Answers()
        await come(engine, answers, REGULAR - 1)
        late = proxy.hold_before(begins)
        engine.enqueue_soon(job(), answers)
        await answers.come(REGULAR)
        late.wait()
        await engine.close()
        late.release()
        await no_connection_is_left()


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_loop_that_stands_still_keeps_no_connection_when_the_handle_closes(is_busy: bool) -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy, asyncio.Runner() as home, asyncio.Runner() as theirs:
        engine = PostgresEngine(proxy.url(database.url))
        home.run(engine.open())
        theirs.run(come_often(engine))
        told: list[object] = []
        if is_busy:
            late = proxy.hold_before(runs("put_plain_one"))
            theirs.run(come_once(engine, lambda *answer: told.append(answer)))
            late.wait()
        home.run(engine.close())
        assert told == ([(None, None)] if is_busy else [])
        if is_busy:
            late.release()
        assert database.left_open() == []


async def come_once(engine: PostgresEngine, answer: Answer) -> None:
    engine.enqueue_soon(job(), answer)


# --- who sleeps meanwhile -----------------------------------------------------------------------


async def test_of_many_commits_the_first_and_the_last_wake_who_sleeps() -> None:
    async with at_the_booth() as (engine, _, booth), asleep() as sleeper:
        answers = Answers()
        for number in range(50):
            engine.enqueue_soon(job(queue=("default", "other")[number == 49]), answers)
            await answers.come(number + 1)
        told = set[str]()
        async with asyncio.timeout(PATIENCE):
            async for note in sleeper.notifies():
                told.add(note.payload)
                if told >= {"work default", "work other"}:
                    break
        assert booth.is_open


async def test_while_nobody_sleeps_nobody_is_told_after_each_commit() -> None:
    async with at_the_booth() as (engine, proxy, _):
        wakes: list[Message] = []

        def count(message: Message) -> bool:
            if runs("penstock.wake('work'")(message):
                wakes.append(message)
            return False

        proxy.cut_before(count)
        answers = Answers()
        await come(engine, answers, 500)
        # Where the machine stands still for a moment, one is told as if it had been the last.
        assert len(wakes) < 250


async def test_whoever_sleeps_is_woken_when_the_handle_closes() -> None:
    for _ in range(5):
        async with at_the_booth() as (engine, _, _booth), asleep() as sleeper:
            answers = Answers()
            for number, queue in enumerate(("one", "two", "three")):
                engine.enqueue_soon(job(queue=queue), answers)
                await answers.come(number + 1)
            await engine.close()
            told = set[str]()
            async with asyncio.timeout(PATIENCE):
                async for note in sleeper.notifies():
                    told.add(note.payload)
                    if told >= {"work one", "work two", "work three"}:
                        break


async def test_whoever_sleeps_is_woken_though_another_caller_gives_up() -> None:
    for number in range(10):
        async with at_the_booth() as (engine, proxy, booth), asleep() as sleeper:
            answers = Answers()
            engine.enqueue_soon(job(queue="first"), answers)
            await answers.come(1)
            engine.enqueue_soon(job(queue=f"stored-{number}"), answers)
            await answers.come(2)
            late = proxy.hold_before(runs("put_plain_one"))
            leave = engine.enqueue_soon(job(queue="given up"), answers)
            assert leave is not None
            await asyncio.to_thread(late.wait)
            leave()
            assert not booth.is_open
            async with asyncio.timeout(PATIENCE):
                async for note in sleeper.notifies():
                    if note.payload == f"work stored-{number}":
                        break
            late.release()
