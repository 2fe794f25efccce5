"""Middleware: what wraps every attempt sees all of it, and may change how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest

from penstock import Cancel, Context, Depends, Retry, Snooze, current
from penstock.core.job import OutcomeKind
from penstock.worker.inflight import Ending
from worker.rig import soon
from worker.test_hooks import Loop, Way


@pytest.fixture(params=["coroutine", "thread"])
def way(request):
    return Way(request.param)


@pytest.fixture
def loop():
    return Loop()


def teller(way: Any, name: str) -> Any:
    """A middleware that says what it sees."""

    def middleware(ctx: Context) -> Generator[None, Any, None]:
        way.said.append(f"{name} before {ctx.id}")
        try:
            value = yield
        except BaseException as error:
            way.said.append(f"{name} saw {type(error).__name__}")
            raise
        way.said.append(f"{name} saw {value!r}")

    return middleware


async def test_the_first_declared_is_the_outermost_and_all_are_around_the_dependencies(way):
    way.hooks.add_middleware(teller(way, "a"))
    way.hooks.add_middleware(teller(way, "b"))

    def work(db: str = Depends(way.resource("db"))) -> int:
        return 42

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, b"42")
    assert way.said == ["a before j1", "b before j1", "db made", "db kept", "b saw 42", "a saw 42"]


async def test_an_error_is_raised_in_each(way):
    way.hooks.add_middleware(teller(way, "a"))

    def work() -> None:
        raise ValueError("no")

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.RETRY, "ValueError: no")
    assert way.said == ["a before j1", "a saw ValueError"]


async def test_arguments_that_do_not_fit_are_seen_too(way):
    way.hooks.add_middleware(teller(way, "a"))

    def work(id: int) -> None: ...

    outcome = await way.outcome(work, b"[1]")

    assert outcome.kind is OutcomeKind.FAILED
    assert way.said == ["a before j1", "a saw NotAnObject"]


async def test_a_clean_up_that_fails_is_seen_too(way):
    way.hooks.add_middleware(teller(way, "a"))

    def session() -> Iterator[None]:
        yield
        raise OSError("commit failed")

    def work(db: None = Depends(session)) -> str:
        return "done"

    assert (await way.outcome(work)).reason == "OSError: commit failed"
    assert way.said == ["a before j1", "a saw OSError"]


async def test_an_error_can_be_replaced(way):
    def translating(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise Snooze("1m", reason="rate limited") from error

    way.hooks.add_middleware(teller(way, "a"))
    way.hooks.add_middleware(translating)

    def work() -> None:
        raise ValueError("429")

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.delay, outcome.reason) == (
        OutcomeKind.SNOOZE,
        60.0,
        "rate limited",
    )
    assert way.said == ["a before j1", "a saw Snooze"]


def forgiving(ctx: Context) -> Iterator[None]:
    try:
        yield
    except BaseException:
        pass


async def test_an_error_that_is_swallowed_is_a_success_with_none(way):
    way.hooks.add_middleware(teller(way, "a"))
    way.hooks.add_middleware(forgiving)

    def work() -> str:
        raise ValueError("no")

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, b"null")
    assert way.said == ["a before j1", "a saw None"]


@pytest.mark.parametrize("ending", [Ending.TIMEOUT, Ending.CANCEL, Ending.SHUTDOWN])
async def test_being_stopped_cannot_be_swallowed(way, ending):
    way.hooks.add_middleware(forgiving)

    def work() -> str:
        way.end(ending)
        raise OSError("connection closed")

    kinds = {
        Ending.TIMEOUT: OutcomeKind.RETRY,
        Ending.CANCEL: OutcomeKind.CANCELLED,
        Ending.SHUTDOWN: OutcomeKind.RELEASED,
    }
    assert (await way.outcome(work)).kind is kinds[ending]


async def test_a_handler_that_noticed_and_returned_ends_as_it_was_asked_to(way):
    way.hooks.add_middleware(teller(way, "a"))

    def work(ctx: Context) -> bool:
        way.end(Ending.SHUTDOWN)
        return ctx.cancelled

    assert (await way.outcome(work)).kind is OutcomeKind.RELEASED
    assert way.said == ["a before j1", "a saw True"]


async def test_a_handler_that_did_not_notice_has_done_its_work(way):
    way.hooks.add_middleware(teller(way, "a"))

    def work() -> str:
        way.end(Ending.SHUTDOWN)
        return "done"

    assert (await way.outcome(work)).result == b'"done"'


async def test_signals_are_raised_or_values_as_the_handler_likes(way):
    way.hooks.add_middleware(teller(way, "a"))

    def raising() -> None:
        raise Cancel("not needed")

    def returning() -> Retry:
        return Retry("1m")

    outcomes = [await way.outcome(raising), await way.outcome(returning)]

    assert [each.kind for each in outcomes] == [OutcomeKind.CANCELLED, OutcomeKind.RETRY]
    assert way.said == ["a before j1", "a saw Cancel", "a before j1", "a saw Retry('1m', None)"]


async def test_a_middleware_can_keep_the_handler_from_running(way):
    def closed(ctx: Context) -> Iterator[None]:
        raise Snooze("1h", reason="closed")
        yield

    way.hooks.add_middleware(teller(way, "a"))
    way.hooks.add_middleware(closed)

    def work() -> None:
        way.said.append("never")

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.SNOOZE, "closed")
    assert way.said == ["a before j1", "a saw Snooze"]


async def test_the_attempt_is_current_in_a_middleware(way):
    def middleware(ctx: Context) -> Iterator[None]:
        way.said.append(current() is ctx)
        yield
        way.said.append(current() is ctx)

    way.hooks.add_middleware(middleware)
    await way.outcome(lambda: None)

    assert way.said == [True, True]


def never(ctx: Context) -> Iterator[None]:
    yield from ()


def twice(ctx: Context) -> Iterator[None]:
    yield
    yield


@pytest.mark.parametrize(
    ("middleware", "message"),
    [
        (never, "it ended without a yield; let it yield once, whatever happens before"),
        (twice, "it yielded twice; let it yield once, and clean up after that"),
    ],
)
async def test_a_middleware_yields_once(way, middleware, message):
    way.hooks.add_middleware(middleware)

    outcome = await way.outcome(lambda: "done")

    name = f"{__name__}.{middleware.__name__}"
    assert outcome.kind is OutcomeKind.RETRY
    assert outcome.reason == f"penstock.errors.BadHook: {name} cannot be a middleware: {message}"


async def test_an_async_middleware_wraps_async_tasks_only(way):
    async def timed(ctx: Context) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        way.said.append("before")
        yield
        await asyncio.sleep(0)
        way.said.append("after")

    way.hooks.add_middleware(timed)
    outcome = await way.outcome(lambda: "done")

    assert outcome.result == b'"done"'
    assert way.said == (["before", "after"] if way.name == "coroutine" else [])


async def test_a_cancelled_coroutine_is_seen_and_what_follows_is_not_cancelled(loop):
    async def timed(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            loop.said.append("seen")
            raise

    async def work() -> None:
        loop.reached.set()
        await asyncio.Event().wait()

    loop.hooks.add_middleware(teller(loop, "a"))
    loop.hooks.add_middleware(timed)
    run = loop.start(work)
    await soon(loop.reached.wait())
    loop.stop(Ending.CANCEL)
    outcome = await soon(run)

    assert outcome is not None
    assert outcome.kind is OutcomeKind.CANCELLED
    assert loop.said == ["a before j1", "seen", "a saw CancelledError"]
