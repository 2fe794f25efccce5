"""Start-up and shutdown: what runs around the life of a worker, in which order, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock.core.hooks import Hooks
from penstock.core.job import State
from penstock.errors import BadHook
from penstock.worker.middleware import lifespan
from worker.rig import soon, spec, specs


class App:
    """Hooks that say when they run."""

    def __init__(self) -> None:
        self.hooks = Hooks()
        self.said: list[str] = []

    def startup(self, name: str, error: BaseException | None = None) -> None:
        async def hook() -> None:
            await asyncio.sleep(0)
            self._say(name, error)

        self.hooks.add_startup(hook)

    def shutdown(self, name: str, error: BaseException | None = None) -> None:
        def hook() -> None:
            self._say(name, error)

        self.hooks.add_shutdown(hook)

    def both(self, name: str, error: BaseException | None = None) -> None:
        def hook() -> Iterator[None]:
            self._say(f"{name} up")
            yield
            self._say(f"{name} down", error)

        self.hooks.add_startup(hook)

    def async_both(self, name: str) -> None:
        async def hook() -> AsyncIterator[None]:
            await asyncio.sleep(0)
            self._say(f"{name} up")
            yield
            await asyncio.sleep(0)
            self._say(f"{name} down")

        self.hooks.add_startup(hook)

    def _say(self, word: str, error: BaseException | None = None) -> None:
        self.said.append(word)
        if error is not None:
            raise error


@pytest.fixture
def app():
    return App()


async def test_hooks_run_as_declared_and_end_in_reverse(app):
    app.startup("a")
    app.both("b")
    app.shutdown("c")
    app.async_both("d")
    app.hooks.add_shutdown(lambda: app.said.append("e"))

    async with lifespan([app.hooks]):
        app.said.append("life")

    assert app.said == ["a", "b up", "d up", "life", "e", "d down", "c", "b down"]


async def test_each_app_starts_once(app):
    app.both("a")
    other = App()
    other.said = app.said
    other.both("b")

    async with lifespan([app.hooks, other.hooks, app.hooks]):
        app.said.append("life")

    assert app.said == ["a up", "b up", "life", "b down", "a down"]


async def test_a_start_up_that_raises_undoes_what_has_started(app):
    app.both("a")
    app.shutdown("b")
    app.startup("c", OSError("refused"))
    app.both("d")
    app.shutdown("e")

    with pytest.raises(OSError, match="refused"):
        async with lifespan([app.hooks]):
            app.said.append("never")

    assert app.said == ["a up", "c", "b", "a down"]


async def test_a_shutdown_that_raises_is_logged_and_the_others_run(app, caplog):
    app.both("a")
    app.both("b", OSError("gone"))
    app.shutdown("c", ValueError("no"))

    async with lifespan([app.hooks]):
        pass

    assert app.said == ["a up", "b up", "c", "b down", "a down"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        ValueError,
        OSError,
    ]
    first = caplog.records[0]
    assert (first.levelno, first.event) == (logging.ERROR, "shutdown hook failed")
    assert first.getMessage().startswith("shutdown hook failed hook=worker.test_hooks_lifespan.App")


async def test_what_happens_in_between_is_raised_after_the_shutdown(app):
    app.both("a")

    with pytest.raises(ValueError, match="no"):
        async with lifespan([app.hooks]):
            raise ValueError("no")

    assert app.said == ["a up", "a down"]


async def test_a_shutdown_that_is_cancelled_lets_the_others_run_first(app):
    reached = asyncio.Event()

    async def slow() -> None:
        reached.set()
        await asyncio.Event().wait()

    app.both("a")
    app.hooks.add_shutdown(slow)

    async def life() -> None:
        async with lifespan([app.hooks]):
            pass

    run = asyncio.ensure_future(life())
    await soon(reached.wait())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(run)
    assert app.said == ["a up", "a down"]


@pytest.mark.parametrize("yields", [0, 2])
async def test_a_start_up_that_yields_must_yield_once(app, yields, caplog):
    def hook() -> Iterator[None]:
        for _ in range(yields):
            yield

    app.hooks.add_startup(hook)
    if yields == 0:
        with pytest.raises(BadHook, match="a start-up hook: it ended without a yield"):
            async with lifespan([app.hooks]):
                pass
    else:
        async with lifespan([app.hooks]):
            pass
        assert "it yielded twice" in str(caplog.records[0].exc_info[1])


# --- around a worker ----------------------------------------------------------------------------


async def test_a_worker_starts_up_before_its_first_job_and_shuts_down_after_its_last(rig, app):
    app.both("a")

    async def work() -> None:
        app.said.append("work")

    async with rig.working(specs(spec(work, hooks=app.hooks))):
        (job,) = await rig.ended(await rig.put("work"))

    assert job.state is State.SUCCEEDED
    assert app.said == ["a up", "work", "a down"]


async def test_a_worker_whose_start_up_raises_does_not_start(rig, app):
    app.both("a")
    app.startup("b", OSError("refused"))

    def work() -> None: ...

    tasks: dict[str, Any] = specs(spec(work, hooks=app.hooks))
    id = await rig.put("work")
    with pytest.raises(OSError, match="refused"):
        await soon(rig.worker(tasks).run())

    assert app.said == ["a up", "b", "a down"]
    assert (await rig.job(id)).state is State.READY
    assert await rig.engine.workers() == []


@pytest.mark.parametrize("drain", [0.0, 8.0])
async def test_a_start_up_that_hangs_ends_when_the_worker_must(rig, app, drain, caplog):
    app.both("a")
    hangs = asyncio.Event()

    async def hang() -> None:
        hangs.set()
        await asyncio.Event().wait()

    app.hooks.add_startup(hang)

    def work() -> None: ...

    worker = rig.worker(specs(spec(work, hooks=app.hooks)))
    run = asyncio.create_task(worker.run())
    await soon(hangs.wait())
    worker.stop(drain)
    await rig.meanwhile(run, sleepers=1)

    assert app.said == ["a up", "a down"]
    assert rig.clock.monotonic() >= drain
    assert "start-up cut short" in caplog.text


async def test_a_start_up_that_ends_after_the_worker_was_told_to_stop_is_shut_down(rig, app):
    app.both("a")
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await goes_on.wait()

    app.hooks.add_startup(slow)

    def work() -> None: ...

    id = await rig.put("work")
    worker = rig.worker(specs(spec(work, hooks=app.hooks)))
    run = asyncio.create_task(worker.run())
    await soon(begun.wait())
    worker.stop()
    goes_on.set()
    await soon(run)

    assert app.said == ["a up", "a down"]
    assert (await rig.job(id)).state is State.READY


async def test_a_start_up_that_times_out_by_itself_is_told(rig, app):
    app.startup("a", TimeoutError("no answer"))

    def work() -> None: ...

    run = asyncio.create_task(rig.worker(specs(spec(work, hooks=app.hooks))).run())
    await soon(asyncio.wait([run]))
    with pytest.raises(TimeoutError, match="no answer"):
        run.result()
