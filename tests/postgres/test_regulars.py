"""Which loop has a place of its own: one at most, and only if it comes often."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import uvloop

from penstock import Penstock
from penstock.core.job import State
from penstock.engines.observed import Observed
from penstock.engines.postgres import regulars
from penstock.engines.postgres.booth import Booth
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.regulars import REGULAR
from penstock.engines.records import Filter, Receipt
from postgres.booths import at_the_booth, come, come_often, job, no_connection_is_left, regulars_of
from postgres.visitors import PATIENCE, Answers, until
from servers.emptied import emptied
from servers.messages import runs
from servers.postgres import quick
from servers.proxy import Proxy

WAITING = Filter(states=(State.READY,))


def came_by_itself(engine: PostgresEngine) -> bool:
    """Nobody stands in line at the counter, where a thread would serve them."""
    assert engine._counter is not None
    return engine._counter._line.empty() and not engine._counter._serving


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_comes_often_is_served_there(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with at_the_booth() as (engine, proxy, booth):
            answers = Answers()
            late = proxy.hold_before(runs("put_plain_one"))
            mine = job()
            engine.enqueue_soon(mine, answers)
            assert [visitor.draft for visitor in booth._serving] == [mine]
            assert came_by_itself(engine)
            late.wait()
            late.release()
            await answers.come(1)
            assert answers.told == [(Receipt(mine.id, True), None)]
            assert await engine.count(WAITING) == REGULAR + 1

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_loops_that_come_and_go_open_no_connection_each() -> None:
    database = emptied()
    database.empty()
    app = Penstock(database.url)

    @app.task(name="work")
    def work() -> None: ...

    async def several() -> None:
        for _ in range(REGULAR - 1):
            await work.aenqueue()

    for _ in range(3):
        asyncio.run(several())
    home = app._facade._home
    assert home is not None
    assert isinstance(home.opened, Observed)
    assert isinstance(home.opened.inner, PostgresEngine)
    found = regulars_of(home.opened.inner)
    assert found._booth is None
    assert found._invited is None
    app.close()
    assert database.left_open() == []


def test_the_place_of_a_loop_that_is_closed_is_given_to_another() -> None:
    database = emptied()
    database.empty()
    engine = PostgresEngine(database.url)
    with asyncio.Runner() as home:
        home.run(engine.open())
        with asyncio.Runner() as first:
            theirs = first.run(come_often(engine))
        with asyncio.Runner() as second:
            # Its first visit finds the place of a loop that is gone, its twentieth takes it.
            second.run(take_over(engine, theirs))
            assert not theirs.is_open
            home.run(engine.close())
    assert database.left_open() == []


async def take_over(engine: PostgresEngine, theirs: Booth) -> None:
    answers = Answers()
    number = 0
    async with asyncio.timeout(PATIENCE):
        while regulars_of(engine)._booth in (None, theirs):
            engine.enqueue_soon(job(), answers)
            number += 1
            await answers.come(number)
    booth = regulars_of(engine)._booth
    assert booth is not None
    assert booth.loop is asyncio.get_running_loop()


async def test_another_loop_does_not_take_a_place_away() -> None:
    async with at_the_booth() as (engine, _, booth):

        async def comes() -> None:
            answers = Answers()
            await come(engine, answers, REGULAR * 2)

        await asyncio.to_thread(asyncio.run, comes())
        assert regulars_of(engine)._booth is booth
        assert booth.is_open
        assert await engine.count(WAITING) == REGULAR * 3


async def test_a_connection_that_cannot_be_made_is_not_tried_again_and_again() -> None:
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url))
        await engine.open()
        answers = Answers()
        await come(engine, answers, REGULAR - 1)
        proxy.refuse()
        await come(engine, answers, 21)
        await until(lambda: regulars_of(engine)._invited is None)
        assert regulars_of(engine)._rests_until > 0
        engine.enqueue_soon(job(), answers)
        assert regulars_of(engine)._invited is None
        await answers.come(REGULAR + 21)
        await engine.close()


async def test_where_no_thread_can_be_started_the_clerk_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = emptied()
    database.empty()
    engine = PostgresEngine(database.url)
    await engine.open()
    answers = Answers()
    engine.enqueue_soon(job(), answers)
    await answers.come(1)

    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        await come(engine, answers, REGULAR + 1)
    assert regulars_of(engine)._booth is None
    assert await engine.count(WAITING) == REGULAR + 2
    await engine.close()


async def test_a_loop_that_listens_to_nothing_is_served_by_the_clerk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of Windows."""

    def listens_not(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(regulars, "Booth", listens_not)
    database = emptied()
    database.empty()
    engine = PostgresEngine(database.url)
    await engine.open()
    answers = Answers()
    await come(engine, answers, REGULAR)
    await until(lambda: regulars_of(engine)._invited is None)
    engine.enqueue_soon(job(), answers)
    await answers.come(REGULAR + 1)
    assert regulars_of(engine)._invited is None
    await engine.close()
    await no_connection_is_left()
