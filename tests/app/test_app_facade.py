"""The façade within one process: threads, loops, time limits, interruptions, closing."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Penstock, events
from penstock.client import Client
from penstock.clock import SystemClock
from penstock.core.job import Draft
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.records import Receipt
from penstock.errors import (
    BadOption,
    EngineClosed,
    EngineTimeout,
    EngineUnavailable,
    WrongThread,
)
from penstock.loop_thread import LoopThread, Submission


@pytest.fixture
def task(app):
    return app.task(name="task")(_nothing)


class Stuck:
    """An engine whose enqueue waits until the test lets it go on."""

    def __init__(self, monkeypatch) -> None:
        self.batches: list[int] = []
        self._callers = 0
        self._changed = threading.Condition()
        self._go_on: Future[None] = Future()
        enqueue, send = Client.enqueue, MemoryEngine.enqueue

        async def counted(client, draft):
            with self._changed:
                self._callers += 1
                self._changed.notify_all()
            return await enqueue(client, draft)

        async def stuck(engine, drafts):
            self.batches.append(len(drafts))
            await asyncio.shield(asyncio.wrap_future(self._go_on))
            return await send(engine, drafts)

        monkeypatch.setattr(Client, "enqueue", counted)
        monkeypatch.setattr(MemoryEngine, "enqueue", stuck)

    def wait_for_callers(self, count: int) -> None:
        """Wait until so many have come: the first is being served, the others are in line."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._callers == count, 10)

    def go_on(self) -> None:
        if not self._go_on.done():
            self._go_on.set_result(None)


@pytest.fixture
def stuck(monkeypatch):
    stuck = Stuck(monkeypatch)
    yield stuck
    stuck.go_on()


# --- threads and loops --------------------------------------------------------------------------


def test_making_an_app_opens_nothing(tmp_path):
    before = threading.active_count()
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    app.task(name="task")(_nothing)
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []
    app.close()


@pytest.mark.every_engine
def test_threads_that_enqueue_at_once_lose_nothing(app, task, in_thread):
    def many() -> list[str]:
        return [task.enqueue().id for _ in range(50)]

    ids = [id for each in [in_thread(many) for _ in range(8)] for id in each.result(60)]
    assert len(set(ids)) == 400
    assert sum(count.jobs for count in app.counts()) == 400


def test_single_enqueues_of_many_threads_share_commits(stuck, memory, in_thread):
    task = memory.task(name="task")(_nothing)
    waiting = [in_thread(task.enqueue) for _ in range(20)]
    stuck.wait_for_callers(20)
    stuck.go_on()
    assert all(each.result(10).created for each in waiting)
    assert stuck.batches == [1, 19]


@pytest.mark.every_engine
def test_one_app_serves_loop_after_loop(app, task):
    async def one() -> str:
        return (await task.aenqueue()).id

    assert len({asyncio.run(one()) for _ in range(5)}) == 5
    assert _threads() == 1


@pytest.mark.every_engine
async def test_blocking_calls_are_allowed_inside_a_running_loop(task):
    assert task.enqueue().status().state == "ready"


@pytest.mark.every_engine
async def test_loops_of_several_threads_share_the_app(app, task):
    async def many() -> int:
        handles = await asyncio.gather(*(task.aenqueue() for _ in range(50)))
        return len({handle.id for handle in handles})

    found = await asyncio.gather(*(asyncio.to_thread(asyncio.run, many()) for _ in range(4)))
    assert found == [50] * 4
    assert sum(count.jobs for count in app.counts()) == 200


def test_answers_to_a_loop_that_has_gone_are_dropped(memory, stuck):
    task = memory.task(name="task")(_nothing)

    async def leaves() -> None:
        asking = asyncio.create_task(task.aenqueue())
        await asyncio.to_thread(stuck.wait_for_callers, 1)
        asking.cancel()

    asyncio.run(leaves())
    stuck.go_on()
    assert task.enqueue().created


@pytest.mark.every_engine
def test_loops_that_are_gone_are_not_remembered(memory, task):
    async def one() -> weakref.ref[asyncio.AbstractEventLoop]:
        await task.aenqueue()
        return weakref.ref(asyncio.get_running_loop())

    first = asyncio.run(one())
    asyncio.run(one())
    gc.collect()
    assert first() is None


def test_a_blocking_call_on_penstocks_own_loop_is_refused(app, task):
    found: list[Exception] = []

    @app.on(events.Enqueued)
    def again(event: events.Enqueued) -> None:
        try:
            task.enqueue()
        except WrongThread as error:
            found.append(error)

    task.enqueue()
    assert [str(error) for error in found] == [
        "enqueue would wait for itself: it was called on Penstock's own loop; use its async twin "
        "(aenqueue, aresult) there"
    ]


@pytest.mark.every_engine
def test_an_async_listener_may_enqueue_on_penstocks_own_loop(app, task):
    done = threading.Event()

    @app.on(events.Enqueued)
    async def again(event: events.Enqueued) -> None:
        if event.key is None:
            await task.using(key="second").aenqueue()
            done.set()

    task.enqueue()
    assert done.wait(10)
    assert [job.key for job in app.find().jobs] == ["second", None]


# --- failures -----------------------------------------------------------------------------------


def test_a_store_that_cannot_be_opened_says_so_and_is_tried_again(tmp_path, monkeypatch):
    with Penstock(f"sqlite:///{tmp_path}/missing/jobs.db") as app:
        with pytest.raises(EngineUnavailable, match="there is no directory"):
            app.enqueue("task")
        (tmp_path / "missing").mkdir()
        assert app.enqueue("task").created


def test_an_enqueue_waits_only_so_long(stuck):
    with Penstock("memory://", enqueue_timeout=0.05) as app:
        with pytest.raises(EngineTimeout) as caught:
            app.enqueue("task")
        assert str(caught.value) == (
            "memory:// did not answer in time: enqueue took longer than 0.05 s; the call may "
            "have happened"
        )
        assert isinstance(caught.value, TimeoutError)
        stuck.go_on()
        assert app.enqueue("task").created


def put_with(monkeypatch: pytest.MonkeyPatch, put: Callable[..., Any]) -> None:
    """Let the memory engine have a blocking way in, which does this."""
    inlet = SimpleNamespace(put=put)
    monkeypatch.setattr(MemoryEngine, "inlet", property(lambda engine: inlet))


def test_what_the_inlet_took_is_part_of_how_long_a_caller_waits(stuck, monkeypatch):
    """An inlet may give up in its own time, and the loop must not begin to count anew."""
    passed = [0.0]

    def gives_up(drafts, timeout):
        passed[0] += timeout  # nothing is left of it

    monkeypatch.setattr(SystemClock, "monotonic", staticmethod(lambda: passed[0]))
    with Penstock("memory://", enqueue_timeout=3600) as app:
        app.counts()
        put_with(monkeypatch, gives_up)
        with pytest.raises(EngineTimeout, match="enqueue took longer than 3600 s"):
            app.enqueue("task")
        with pytest.raises(EngineTimeout, match="2 jobs took longer than 3600 s") as caught:
            app.task(name="task")(_nothing).enqueue_many([(), ()])
        assert caught.value.__notes__ == ["0 of 2 jobs were stored before this"]


def test_a_caller_that_the_inlet_kept_has_the_rest_of_its_time_on_the_loop(stuck, monkeypatch):
    passed = [0.0]

    def gives_up(drafts, timeout):
        passed[0] += timeout - 0.05

    monkeypatch.setattr(SystemClock, "monotonic", staticmethod(lambda: passed[0]))
    with Penstock("memory://", enqueue_timeout=3600) as app:
        app.counts()
        put_with(monkeypatch, gives_up)
        with pytest.raises(EngineTimeout, match="2 jobs took longer than 3600 s"):
            app.task(name="task")(_nothing).enqueue_many([(), ()])
        stuck.go_on()


def test_an_error_of_the_inlet_says_how_many_are_stored(memory, monkeypatch):
    def fails(drafts, timeout):
        raise EngineTimeout("memory://", "it does not answer")

    task = memory.task(name="task")(_nothing)
    memory.counts()
    put_with(monkeypatch, fails)
    with pytest.raises(EngineTimeout) as caught:
        task.enqueue_many([(), (), ()])
    assert caught.value.__notes__ == ["0 of 3 jobs were stored before this"]


def test_the_inlet_is_asked_for_one_commit_at_a_time(monkeypatch):
    asked: list[int] = []

    def stores(drafts, timeout):
        asked.append(len(drafts))
        return [Receipt(draft.id, True) for draft in drafts]

    with Penstock("memory://", enqueue_batch=10) as app:
        task = app.task(name="task")(_nothing)
        app.counts()
        put_with(monkeypatch, stores)
        for count in (0, 1, 10, 11):
            assert len(task.enqueue_many([()] * count)) == count
    assert asked == [1, 10, 10, 1]


def test_a_fault_of_the_inlet_is_left_to_the_loop(memory, monkeypatch):
    def fails(drafts, timeout):
        raise EngineUnavailable("memory://", "the connection broke")

    memory.counts()
    put_with(monkeypatch, fails)
    assert memory.enqueue("task").created
    assert memory.count() == 1


async def test_an_async_enqueue_waits_only_so_long(stuck):
    async with Penstock("memory://", enqueue_timeout=0.05) as app:
        with pytest.raises(EngineTimeout, match="aenqueue took longer than 0.05 s"):
            await app.aenqueue("task")
        stuck.go_on()


def test_many_enqueues_wait_only_so_long_each(stuck):
    with Penstock("memory://", enqueue_timeout=0.05) as app:
        task = app.task(name="task")(_nothing)
        with pytest.raises(EngineTimeout, match="2 jobs took longer than 0.05 s") as caught:
            task.enqueue_many([(), ()])
        assert caught.value.__notes__ == ["0 of 2 jobs were stored before this"]
        stuck.go_on()


async def test_a_caller_that_is_cancelled_leaves_nothing_behind(memory, calls, settle):
    handle = await memory.aenqueue("task")
    waiting = asyncio.create_task(handle.aresult())
    await asyncio.to_thread(calls.wait_until_asked_for, [handle.id])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    memory._facade.call(settle)
    assert calls.under_way == 0


# --- closing ------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_an_app_that_is_closed_opens_again_at_the_next_use(app, task, url):
    first = task.enqueue()
    app.close()
    app.close()
    assert _threads() == 0
    assert first.status().id == first.id
    assert _threads() == 1


async def test_an_app_is_closed_without_blocking_the_loop(app, task):
    await task.aenqueue()
    await app.aclose()
    await app.aclose()
    assert _threads() == 0


@pytest.mark.every_engine
async def test_a_close_that_is_cancelled_goes_on_in_silence(app, task, monkeypatch):
    troubles: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", troubles.append)
    await task.aenqueue()
    (thread,) = [each for each in threading.enumerate() if each.name == "penstock"]
    closing = asyncio.create_task(app.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
    assert troubles == []


def test_what_was_handed_over_is_sent_before_closing(memory, stuck, in_thread):
    task = memory.task(name="task")(_nothing)
    waiting = [in_thread(task.enqueue) for _ in range(5)]
    stuck.wait_for_callers(5)
    closing = in_thread(memory.close)
    stuck.go_on()
    assert all(each.result(10).created for each in waiting)
    closing.result(10)


@pytest.mark.every_engine
def test_whoever_comes_while_it_closes_is_told_or_served(app, task, in_thread):
    stop = threading.Event()

    def enqueues() -> int:
        served = 0
        while not stop.is_set():
            try:
                served += task.enqueue().created
            except EngineClosed:
                pass
        return served

    waiting = [in_thread(enqueues) for _ in range(4)]
    for _ in range(20):
        app.close()
    stop.set()
    served = sum(each.result(30) for each in waiting)
    assert sum(count.jobs for count in app.counts()) >= served


def test_a_call_that_is_cancelled_before_its_first_step_is_answered():
    """It began in the very turn of the loop in which the thread was told to stop."""
    thread = LoopThread(lambda: MemoryEngine(MemoryStore()))
    answered = threading.Event()
    submission = Submission(thread, _most_at_once, answered.set)

    def stop_and_start() -> None:
        thread._stopping.set()
        submission._start()

    thread.call_soon(stop_and_start)
    assert answered.wait(10)
    with pytest.raises(EngineClosed):
        submission.value()
    thread.thread.join(10)
    late = Submission(thread, _most_at_once, answered.set)
    late.submit()
    with pytest.raises(EngineClosed):
        late.value()


async def _most_at_once(client: Client) -> int:
    return client.engine.traits.max_batch


async def test_a_caller_whose_client_closes_while_it_opens_is_told():
    opening = asyncio.Event()

    class Slow(MemoryEngine):
        async def open(self) -> None:
            opening.set()
            await asyncio.Event().wait()

    client = Client(lambda: Slow(MemoryStore()))
    caller = asyncio.create_task(client.open())
    await opening.wait()
    await client.close()
    with pytest.raises(EngineClosed):
        await caller


async def test_a_time_out_of_the_store_is_not_taken_for_the_callers(monkeypatch):
    client = Client(lambda: MemoryEngine(MemoryStore()))
    await client.open()
    await client.engine.enqueue([Draft(id="a", task="t")])

    async def fails(id: str) -> None:
        raise EngineTimeout("memory://", "it does not answer")

    monkeypatch.setattr(client._results, "ended", fails)
    for timeout in (None, 600.0):
        with pytest.raises(EngineTimeout):
            await client.result("a", timeout)
    await client.close()


async def test_a_client_that_was_closed_stays_closed():
    """Work that was handed over before must not open the store again behind the closing."""
    client = Client(lambda: MemoryEngine(MemoryStore()))
    await client.open()
    await client.close()
    with pytest.raises(EngineClosed):
        await client.open()
    with pytest.raises(EngineClosed):
        assert client.engine


def test_an_app_that_nobody_holds_any_more_ends_its_thread():
    app = Penstock("memory://")
    app.enqueue("task")
    assert app._facade._thread is not None
    thread = app._facade._thread.thread
    del app
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_the_loop_may_not_close_itself(app, task):
    found = []

    @app.on(events.Enqueued)
    def close(event: events.Enqueued) -> None:
        try:
            app.close()
        except WrongThread as error:
            found.append(error.call)

    task.enqueue()
    assert found == ["close"]


def _threads() -> int:
    return sum(thread.name == "penstock" for thread in threading.enumerate())


def _nothing() -> None: ...


@pytest.mark.parametrize("kind", ["Failed", print, int, None])
def test_what_is_no_kind_of_events_cannot_be_listened_to(memory, kind):
    with pytest.raises(BadOption, match="give a class of events, such as @app.on"):
        memory.on(kind)
    memory.enqueue("task")


def test_what_is_no_function_cannot_listen(memory):
    with pytest.raises(BadOption, match="listener=5: give a function that takes the event"):
        memory.on(events.Failed, 5)


def test_listeners_do_not_run_in_the_context_of_the_caller(app, task):
    """One delivery serves many callers: the context of any would be wrong for the others."""
    caller = ContextVar("caller", default="nobody")
    seen = []
    app.on(events.Enqueued, lambda event: seen.append(caller.get()))
    caller.set("me")
    task.enqueue()
    asyncio.run(task.aenqueue())
    assert seen == ["nobody", "nobody"]


# --- a client on the caller's own loop ----------------------------------------------------------


async def test_a_coroutine_inside_the_app_uses_a_client_of_its_own_loop(app, task):
    async with app:
        handle = await task.aenqueue()
        assert (await handle.astatus()).id == handle.id
        assert _threads() == 0
    assert app._facade._clients == {}


async def test_the_client_of_a_loop_is_closed_with_the_last_block(app, task):
    async with app:
        async with app:
            await task.aenqueue()
        await task.aenqueue()
        assert _threads() == 0
    await task.aenqueue()
    assert _threads() == 1


async def test_an_inner_block_leaves_the_app_open(app, task):
    async with app:
        handle = await asyncio.to_thread(task.enqueue)
        async with app:
            pass
        assert _threads() == 1
        assert (await asyncio.to_thread(handle.status)).id == handle.id
    assert _threads() == 0


async def test_coroutines_on_one_loop_share_commits(stuck, memory):
    task = memory.task(name="task")(_nothing)
    async with memory:
        calls = [asyncio.create_task(task.aenqueue()) for _ in range(20)]
        await asyncio.to_thread(stuck.wait_for_callers, 20)
        stuck.go_on()
        assert all(handle.created for handle in await asyncio.gather(*calls))
    assert stuck.batches == [1, 19]


async def test_a_caller_on_its_own_loop_waits_only_so_long(stuck):
    async with Penstock("memory://", enqueue_timeout=0.05) as app:
        with pytest.raises(EngineTimeout, match="aenqueue took longer than 0.05 s"):
            await app.aenqueue("task")
        stuck.go_on()


def test_the_tasks_of_a_worker_enqueue_on_its_own_loop(app):
    seen: list[int] = []

    @app.task
    async def first() -> None:
        await second.aenqueue()

    @app.task
    async def second() -> None:
        seen.append(_threads())

    first.enqueue()
    app.close()
    app.run_worker(until_empty=True)
    assert seen == [0]


async def test_listeners_hear_of_jobs_whichever_way_they_came(app):
    heard: list[str] = []
    app.on(events.Enqueued, lambda event: heard.append(event.job))
    first = await app.aenqueue("work")
    second = await asyncio.to_thread(app.enqueue, "work")
    async with app:
        third = await app.aenqueue("work")

    assert heard == [first.id, second.id, third.id]
