"""When a sandbox ends, the app is as it was: whatever happened inside, and whoever used it."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from penstock import Penstock, State
from penstock.errors import BadOption, JobGone
from penstock.testing import Sandbox, SandboxForked, SandboxUsed


def test_an_app_that_was_open_goes_back_to_its_real_store(tmp_path: Path):
    with Penstock(f"sqlite:///{tmp_path / 'jobs.db'}") as app:

        @app.task
        def note(word: str) -> str:
            return word

        real = note.enqueue("real")
        with Sandbox(app) as t:
            fake = note.enqueue("fake")
            assert [entry.arguments for entry in t.enqueued()] == [{"word": "fake"}]
            with pytest.raises(JobGone):
                real.status()
            t.drain()
            assert fake.result() == "fake"
        assert real.status().state is State.READY
        assert [job.id for job in app.find().jobs] == [real.id]
        app.run_worker(until_empty=True)
        assert real.result(timeout=60) == "real"


def test_a_test_that_fails_leaves_the_app_as_it_was(app):
    @app.task
    def note() -> None: ...

    with pytest.raises(ZeroDivisionError):
        with Sandbox(app):
            note.enqueue()
            raise ZeroDivisionError
    assert app.counts() == []


def test_sandboxes_may_be_nested(app):
    ran = []

    @app.task
    def note(word: str) -> None:
        ran.append(word)

    with Sandbox(app) as outer:
        note.enqueue("outer")
        with Sandbox(app) as inner:
            note.enqueue("inner")
            assert inner.drain().counts == {"succeeded": 1}
            assert app.clock is inner.clock
        assert app.clock is outer.clock
        assert len(outer.enqueued()) == 1
        outer.drain()
    assert ran == ["inner", "outer"]


def test_sandboxes_may_end_in_any_order(app):
    @app.task
    def note() -> None: ...

    first, second = Sandbox(app, mode="inline"), Sandbox(app)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    note.enqueue()
    assert len(second.enqueued()) == 1
    assert first.enqueued() == []
    second.__exit__(None, None, None)
    assert "call" not in vars(app._facade)


def test_two_apps_have_two_sandboxes(app):
    with Penstock("memory://") as other:

        @app.task
        def here() -> None:
            there.enqueue()

        @other.task
        def there() -> None: ...

        with Sandbox(app) as t, Sandbox(other) as u:
            here.enqueue()
            t.drain()
            assert u.drain().tasks == [there.name]


def test_other_threads_and_ready_made_senders_reach_the_sandbox(app):
    @app.task
    def note(word: str) -> str:
        return word

    urgent = note.using(priority="high")
    with Sandbox(app) as t:
        threads = [threading.Thread(target=urgent.enqueue, args=(str(n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        t.assert_enqueued(note, count=8, priority="high")
        assert t.drain().counts == {"succeeded": 8}


def test_a_worker_made_inside_works_there(app):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        job = note.enqueue()
        app.run_worker(until_empty=True, leads=False)
        assert job.status().state is State.SUCCEEDED
        assert len(t.drain()) == 0


async def test_a_worker_of_the_real_store_goes_on_there(app):
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.task
    async def note() -> None:
        loop.call_soon(done.set)

    async with app.worker():
        async with Sandbox(app) as t:
            await note.aenqueue()
            assert not done.is_set()
            await t.adrain()
            done.clear()
        job = await note.aenqueue()
        async with asyncio.timeout(60):
            await done.wait()
            await job.aresult()
    await app.apurge()


async def test_a_plain_with_may_be_used_in_async_tests(app):
    @app.task
    async def note() -> int:
        return 1

    with Sandbox(app) as t:
        job = await note.aenqueue()
        await t.adrain()
        assert await job.aresult() == 1


async def test_several_loops_may_use_one_sandbox_in_turn(app):
    @app.task
    async def note(number: int) -> int:
        return number

    async def one(number: int) -> int:
        job = await note.aenqueue(number)
        await t.adrain()
        return await job.aresult()

    with Sandbox(app) as t:
        assert await one(1) == 1
        assert await asyncio.to_thread(lambda: asyncio.run(one(2))) == 2


def test_no_thread_is_left_behind(app):
    @app.task
    async def note() -> None: ...

    before = threading.active_count()
    for _ in range(3):
        with Sandbox(app, mode="inline"):
            note.enqueue()
    for thread in threading.enumerate():
        if thread.name.startswith("penstock sandbox"):
            thread.join(60)
    assert threading.active_count() <= before


def test_a_sandbox_is_for_one_block(app):
    t = Sandbox(app)
    with t, pytest.raises(SandboxUsed, match="make another"):
        t.__enter__()
    with pytest.raises(SandboxUsed, match="for one block"):
        t.__enter__()


def test_what_a_sandbox_cannot_be_made_with_is_refused(app):
    for wrong in ({"max_attempts": 0}, {"now": "2026-01-01"}, {"now": True}, {"now": -1.0}):
        with pytest.raises(BadOption):
            Sandbox(app, **wrong)  # type: ignore[arg-type]


async def test_a_worker_of_the_app_s_own_is_waited_for(app):
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with Sandbox(app) as t, app.worker():
        assert await (await double.aenqueue(21)).aresult(timeout=60) == 42
        assert t.waiting == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_of_the_test_is_told_that_its_jobs_would_not_be_seen(app):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        note.enqueue()
        child = os.fork()
        if child == 0:
            try:
                t.drain()
            except SandboxForked as error:
                os._exit(7 if "copy of the sandbox" in str(error) else 8)
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(t.drain()) == 1
