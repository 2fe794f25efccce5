"""Law 15: however many wait in a process, the store is asked for all of them in one call."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import EngineClosed, EngineCorrupt, EngineUnavailable, ResultTimeout


@pytest.fixture
def app(memory):
    return memory


@pytest.fixture
def task(app):
    return app.task(name="task")(_nothing)


def test_threads_that_wait_cost_one_call_at_a_time(task, hand, calls, in_thread):
    handles = [task.enqueue() for _ in range(20)]
    waiting = [in_thread(handle.result) for handle in handles]
    calls.wait_until_asked_for(handle.id for handle in handles)
    for _ in handles:
        hand.succeeds(b"null")
    assert [each.result(10) for each in waiting] == [None] * 20
    assert calls.most_at_once == 1


async def test_coroutines_that_wait_cost_one_call_at_a_time(task, hand, calls):
    handles = [await task.aenqueue() for _ in range(50)]
    waiting = [asyncio.create_task(handle.aresult()) for handle in handles]
    await asyncio.to_thread(calls.wait_until_asked_for, [handle.id for handle in handles])
    for _ in handles:
        await hand.asucceeds(b"null")
    await asyncio.gather(*waiting)
    assert calls.most_at_once == 1


def test_who_joins_is_looked_for_at_once(task, hand, calls, in_thread):
    late, early = task.enqueue(), task.enqueue()
    first = in_thread(early.result)
    calls.wait_until_asked_for([early.id])
    hand.succeeds(b"null")
    assert in_thread(late.result).result(10) is None
    hand.succeeds(b"null")
    assert first.result(10) is None


def test_two_may_wait_for_one_job(task, hand, in_thread):
    handle = task.enqueue()
    waiting = [in_thread(handle.result) for _ in range(2)]
    hand.succeeds(b"null")
    assert [each.result(10) for each in waiting] == [None, None]


def test_who_gives_up_leaves_the_others_waiting(task, hand, in_thread):
    handle, other = task.enqueue(), task.enqueue()
    waiting = in_thread(handle.result)
    with pytest.raises(ResultTimeout):
        other.result(timeout=0.01)
    with pytest.raises(ResultTimeout):
        handle.result(timeout=0.01)
    hand.succeeds(b"null")
    assert waiting.result(10) is None


def test_nobody_asks_when_nobody_waits(app, task, calls, settle):
    handle = task.enqueue()
    with pytest.raises(ResultTimeout):
        handle.result(timeout=0.01)
    app._facade.call(settle)
    assert calls.under_way == 0


def test_a_store_that_is_broken_tells_all_who_wait(task, calls):
    handle = task.enqueue()
    calls.error = EngineCorrupt("memory", "it was told to")
    with pytest.raises(EngineCorrupt):
        handle.result(timeout=10)
    calls.error = None
    with pytest.raises(ResultTimeout):
        handle.result(timeout=0.01)


def test_a_store_that_is_away_for_a_moment_is_waited_for(task, hand, calls, in_thread):
    handle = task.enqueue()
    calls.error = EngineUnavailable("memory", "it was told to")
    waiting = in_thread(handle.result)
    calls.wait_until(lambda: len(calls.asked) >= 3)
    calls.error = None
    hand.succeeds(b"null")
    assert waiting.result(30) is None


def test_who_waits_when_the_app_closes_is_told(app, task, calls, in_thread):
    handle = task.enqueue()
    waiting = in_thread(handle.result)
    calls.wait_until_asked_for([handle.id])
    app.close()
    with pytest.raises(EngineClosed, match="memory is not open; open it first"):
        waiting.result(10)


def _nothing() -> None: ...
