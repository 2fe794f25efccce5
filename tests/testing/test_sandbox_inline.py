"""Inline, a call that enqueues returns when what it has led to has run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import Penstock, Retry, State
from penstock.testing import Runaway, Sandbox


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def note(app, ran):
    @app.task
    def note(word: str, more: list[str] | None = None) -> str:
        ran.append(word)
        for each in more or []:
            note.enqueue(each)
            ran.append(f"enqueued {each}")
        return word

    return note


def test_every_way_to_enqueue_runs_the_job_first(app, note, ran):
    with Sandbox(app, mode="inline"):
        assert note.enqueue("a").result() == "a"
        assert [job.result() for job in note.enqueue_many([("b",), ("c",)])] == ["b", "c"]
        assert app.enqueue(note.name, {"word": "d"}).result() == "d"
        assert note.using(priority="high").enqueue("e").result() == "e"
        assert ran == ["a", "b", "c", "d", "e"]


async def test_and_every_way_to_await_it(app, note, ran):
    async with Sandbox(app, mode="inline"):
        assert await (await note.aenqueue("a")).aresult() == "a"
        many = await note.aenqueue_many([("b",), ("c",)])
        assert [await job.aresult() for job in many] == ["b", "c"]
        assert await (await app.aenqueue(note.name, {"word": "d"})).aresult() == "d"
        assert note.enqueue("e").result() == "e"  # a blocking call in async code
        assert ran == ["a", "b", "c", "d", "e"]


async def test_async_handlers_run_on_the_loop_of_whoever_awaits(app):
    @app.task
    async def where() -> bool:
        return asyncio.get_running_loop() is loop

    loop = asyncio.get_running_loop()
    async with Sandbox(app, mode="inline"):
        assert await (await where.aenqueue()).aresult() is True


def test_nested_jobs_run_when_the_one_that_enqueued_them_has_ended(app, note, ran):
    with Sandbox(app, mode="inline"):
        note.enqueue("a", ["b", "c"])
        assert ran == ["a", "enqueued b", "enqueued c", "b", "c"]


def test_a_task_that_enqueues_itself_does_not_recurse(app):
    depths = []

    @app.task
    def count_down(number: int) -> None:
        depths.append(number)
        if number:
            count_down.enqueue(number - 1)

    with Sandbox(app, mode="inline"):
        count_down.enqueue(2000)
    assert len(depths) == 2001

    @app.task
    def forever() -> None:
        forever.enqueue()

    with Sandbox(app, mode="inline", max_attempts=20):
        with pytest.raises(Runaway):
            forever.enqueue()


def test_delayed_jobs_and_retries_wait_for_the_clock(app, note, ran):
    @app.task
    def twice(number: int) -> int:
        if not ran:
            ran.append("first")
            raise Retry("10s")
        return number

    with Sandbox(app, mode="inline") as t:
        job = twice.enqueue(5)
        assert job.status().state is State.SCHEDULED
        later = note.using(delay="1m").enqueue("b")
        assert ran == ["first"]
        t.advance("1m")
        assert job.result() == 5
        assert later.result() == "b"


def test_what_fails_inside_does_not_break_the_caller_but_the_test(app):
    @app.task(retries=None)
    def broken() -> None:
        raise ValueError("no")

    with Sandbox(app, mode="inline") as t:
        job = broken.enqueue()
        assert job.status().state is State.FAILED
        assert [str(failure.error) for failure in t.failures] == ["no"]


def test_threads_of_handlers_do_not_run_jobs_inside_jobs(app, note, ran):
    @app.task
    def spread() -> None:
        thread = threading.Thread(target=note.enqueue, args=("b",))
        thread.start()
        thread.join()
        ran.append("spread")

    with Sandbox(app, mode="inline"):
        spread.enqueue()
    assert ran == ["spread", "b"]


def test_what_is_not_enqueued_runs_nothing(app, note, ran):
    with Sandbox(app, mode="inline") as t:
        app.pause("default")
        job = note.enqueue("a", ["b"])
        app.resume("default")
        assert job.status().state is State.READY
        assert ran == []
        t.drain()
        assert ran == ["a", "enqueued b", "b"]
        note.enqueue("c", ["d"])
        app.pause("default")
        assert app.counts()


def test_threads_that_enqueue_at_once_are_all_served(app, quick_switches):
    @app.task
    def count(number: int) -> int:
        return sum(range(number))

    for _ in range(10):
        with Sandbox(app, mode="inline") as t, ThreadPoolExecutor(8) as threads:
            jobs = list(threads.map(count.enqueue, range(40)))
            assert len(jobs) == 40
            assert t.waiting == []


def test_a_thread_waits_for_the_result_that_another_one_makes(app, quick_switches):
    @app.task
    def count(number: int) -> int:
        return number + sum(0 for _ in range(500))

    def ask(number: int) -> int:
        return count.enqueue(number).result()

    with Sandbox(app, mode="inline"), ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(100))) == list(range(100))


async def test_tasks_that_enqueue_at_once_have_their_jobs_run_when_they_go_on(app):
    @app.task
    async def count(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def ask(number: int) -> int:
        job = await count.aenqueue(number)
        assert (await job.astatus()).state is State.SUCCEEDED
        return await job.aresult()

    async with Sandbox(app, mode="inline"):
        assert await asyncio.gather(*map(ask, range(20))) == list(range(20))


def test_threads_of_a_handler_do_not_wait_for_its_end(app):
    ran: list[str] = []

    @app.task
    def leaf(number: int) -> None:
        ran.append(str(number))

    @app.task
    def parent() -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(leaf.enqueue, range(3)))
        ran.append("parent")

    with Sandbox(app, mode="inline"):
        parent.enqueue()
    assert ran[0] == "parent"
    assert sorted(ran[1:]) == ["0", "1", "2"]


async def test_a_start_up_hook_that_enqueues_waits_for_nobody(app):
    ran: list[str] = []

    @app.startup
    async def begin() -> None:
        if not ran:
            await say.aenqueue("from the hook")

    @app.task
    async def say(word: str) -> None:
        ran.append(word)

    async with Sandbox(app, mode="inline"):
        await say.aenqueue("from the test")
    assert ran == ["from the test", "from the hook"]


def test_a_job_of_another_app_runs_inside_the_handler_that_enqueues_it(app):
    ran = []
    other = Penstock("memory://")

    @other.task
    def inner() -> None:
        ran.append("inner")

    @app.task
    def outer() -> None:
        inner.enqueue()
        ran.append("outer")

    with Sandbox(app, mode="inline"), Sandbox(other, mode="inline"):
        outer.enqueue()
    assert ran == ["inner", "outer"]


def test_a_thread_that_comes_while_another_one_begins_looks_again(app):
    """Between becoming busy and saying until when, somebody may ask: they look again."""
    with Sandbox(app, mode="inline") as t:
        assert t._harness.idle.done()
