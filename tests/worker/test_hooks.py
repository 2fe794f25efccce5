"""What surrounds a handler: dependencies that always clean up, for coroutines and threads alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Annotated, Any

import pytest

from penstock import Cancel, Context, Depends, Retry
from penstock.core.hooks import Hooks
from penstock.core.job import Outcome, OutcomeKind
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.runner import Runner
from worker.rig import soon, spec
from worker.test_pools import make_job


class Way:
    """The same function as a coroutine or in a thread, and what was said on the way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hooks = Hooks()
        self.said: list[Any] = []
        self.attempt: Attempt | None = None

    async def run(self, function: Any, payload: bytes = b"{}", **fields: Any) -> Outcome | None:
        """Run one attempt of a function."""

        @wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        is_async = self.name == "coroutine"
        task = spec(coroutine if is_async else function, "work", hooks=self.hooks, **fields)
        self.attempt = attempt = Attempt(make_job("j1", payload=payload), task, 1, 0.0)
        runner = Runner(lambda: 1000.0, lambda: "w1", chance=lambda: 0.0)
        return await soon(runner.run(attempt)) if is_async else runner.call(attempt)

    async def outcome(self, function: Any, payload: bytes = b"{}", **fields: Any) -> Outcome:
        found = await self.run(function, payload, **fields)
        assert found is not None
        return found

    def end(self, ending: Ending) -> None:
        """Ask the attempt that runs to end."""
        assert self.attempt is not None
        self.attempt.end(ending)

    def resource(self, name: str, swallows: bool = False) -> Any:
        """A dependency that says how it is made and left."""

        def resource() -> Iterator[str]:
            self.said.append(f"{name} made")
            try:
                yield name
            except BaseException as error:
                self.said.append(f"{name} undone: {type(error).__name__}")
                if not swallows:
                    raise
            else:
                self.said.append(f"{name} kept")

        return resource


@pytest.fixture(params=["coroutine", "thread"])
def way(request):
    return Way(request.param)


# --- making -------------------------------------------------------------------------------------


async def test_a_dependency_is_made_before_the_handler_and_left_after_it(way):
    def work(id: int, db: str = Depends(way.resource("db"))) -> str:
        way.said.append(f"work {id} {db}")
        return db

    outcome = await way.outcome(work, b'{"id":5}')

    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, b'"db"')
    assert way.said == ["db made", "work 5 db", "db kept"]


async def test_dependencies_are_left_in_the_reverse_of_their_order(way):
    def pool(ctx: Context) -> Iterator[str]:
        way.said.append(f"pool of {ctx.id}")
        yield "pool"
        way.said.append("pool left")

    def session(pool: str = Depends(pool)) -> Iterator[str]:
        way.said.append(f"session of {pool}")
        yield "session"
        way.said.append("session left")

    def user(db: str = Depends(session), pool: str = Depends(pool)) -> str:
        return f"user of {db} and {pool}"

    def work(user: str = Depends(user), db: str = Depends(session)) -> None:
        way.said.append(f"work with {user}, {db}")

    await way.outcome(work)

    assert way.said == [
        "pool of j1",
        "session of pool",
        "work with user of session and pool, session",
        "session left",
        "pool left",
    ]


async def test_each_attempt_has_its_own(way):
    def work(db: list[int] = Depends(list)) -> int:
        db.append(1)
        return len(db)

    outcomes = [await way.outcome(work) for _ in range(2)]

    assert [outcome.result for outcome in outcomes] == [b"1", b"1"]


def id_of(ctx: Context, /) -> str:
    return ctx.id


async def test_parameters_by_place_are_filled_too(way):
    def work(db: Annotated[str, Depends(id_of)], id: int, /) -> list[Any]:
        return [db, id]

    assert (await way.outcome(work, b'{"id":5}')).result == b'["j1",5]'


async def test_what_a_dependency_sets_in_the_context_is_seen_by_the_handler_only(way):
    variable: ContextVar[str] = ContextVar("variable", default="nobody")

    def identify() -> Iterator[None]:
        token = variable.set("user")
        yield
        variable.reset(token)

    def work(_: None = Depends(identify)) -> str:
        return variable.get()

    assert (await way.outcome(work)).result == b'"user"'
    assert variable.get() == "nobody"


async def test_a_test_can_override_a_dependency(way):
    def session() -> str:
        return "real"

    def fake(of: str = Depends(lambda: "made up")) -> str:
        return of

    def work(db: str = Depends(session)) -> str:
        return db

    way.hooks.overrides = {session: fake}
    assert (await way.outcome(work)).result == b'"made up"'
    way.hooks.overrides = {}
    assert (await way.outcome(work)).result == b'"real"'


async def test_an_async_override_of_a_sync_task_is_the_attempts_failure():
    async def fake() -> str:
        return "fake"

    def session() -> str:
        return "real"

    def work(db: str = Depends(session)) -> str:
        return db

    way = Way("thread")
    way.hooks.overrides = {session: fake}
    outcome = await way.outcome(work)

    assert outcome.kind is OutcomeKind.RETRY
    assert outcome.reason is not None
    assert "is async and the task is not" in outcome.reason


# --- what goes wrong ----------------------------------------------------------------------------


async def test_what_the_handler_raises_is_raised_in_each_dependency(way):
    def work(a: str = Depends(way.resource("a")), b: str = Depends(way.resource("b"))) -> None:
        raise ValueError("no")

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.RETRY, "ValueError: no")
    assert way.said == ["a made", "b made", "b undone: ValueError", "a undone: ValueError"]
    assert outcome.error is not None
    assert outcome.error.traceback is not None
    assert "in work" in outcome.error.traceback
    assert "penstock/worker" not in outcome.error.traceback


async def test_a_dependency_that_swallows_the_error_has_only_cleaned_up(way):
    def work(
        a: str = Depends(way.resource("a")), b: str = Depends(way.resource("b", swallows=True))
    ) -> None:
        raise ValueError("no")

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.RETRY, "ValueError: no")
    assert way.said[2:] == ["b undone: ValueError", "a undone: ValueError"]


async def test_a_clean_up_that_fails_fails_the_attempt_and_undoes_the_others(way):
    def session() -> Iterator[None]:
        yield
        raise OSError("commit failed")

    def work(a: str = Depends(way.resource("a")), b: None = Depends(session)) -> str:
        return "done"

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.RETRY, "OSError: commit failed")
    assert way.said == ["a made", "a undone: OSError"]


async def test_a_clean_up_that_fails_after_a_failure_shows_both(way):
    def session() -> Iterator[None]:
        try:
            yield
        finally:
            raise OSError("rollback failed")

    def work(db: None = Depends(session)) -> None:
        raise ValueError("no")

    outcome = await way.outcome(work)

    assert outcome.reason == "OSError: rollback failed"
    assert outcome.error is not None
    assert outcome.error.traceback is not None
    assert "ValueError: no" in outcome.error.traceback


async def test_a_dependency_that_cannot_be_made_is_the_attempts_failure(way):
    def session() -> None:
        raise OSError("refused")

    def work(a: str = Depends(way.resource("a")), b: None = Depends(session)) -> None:
        way.said.append("never")

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.RETRY, "OSError: refused")
    assert way.said == ["a made", "a undone: OSError"]


@pytest.mark.parametrize("payload", [b'{"id":"five"}', b"[1]"])
async def test_nothing_is_made_for_arguments_that_do_not_fit(way, payload):
    def work(id: int, a: str = Depends(way.resource("a"))) -> None: ...

    outcome = await way.outcome(work, payload)

    assert outcome.kind is (OutcomeKind.FAILED if payload == b"[1]" else OutcomeKind.RETRY)
    assert way.said == []


async def test_a_signal_undoes_if_raised_and_keeps_if_returned(way):
    def raising(a: str = Depends(way.resource("a"))) -> None:
        raise Cancel("not needed")

    def returning(b: str = Depends(way.resource("b"))) -> Retry:
        return Retry("1m")

    outcomes = [await way.outcome(raising), await way.outcome(returning)]

    assert [each.kind for each in outcomes] == [OutcomeKind.CANCELLED, OutcomeKind.RETRY]
    assert way.said == ["a made", "a undone: Cancel", "b made", "b kept"]


def never() -> Iterator[None]:
    yield from ()


def twice() -> Iterator[None]:
    yield
    yield


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (never, "it ended without a yield; let it yield once, whatever happens before"),
        (twice, "it yielded twice; let it yield once, and clean up after that"),
    ],
)
async def test_a_generator_yields_once(way, maker, message):
    def work(a: str = Depends(way.resource("a")), b: None = Depends(maker)) -> str:
        return "done"

    outcome = await way.outcome(work)

    assert outcome.kind is OutcomeKind.RETRY
    name = f"{__name__}.{maker.__name__}"
    assert outcome.reason == (f"penstock.errors.BadHook: {name} cannot be a dependency: {message}")
    assert way.said == ["a made", "a undone: BadHook"]


async def test_stop_iteration_passes_as_it_is_in_a_thread():
    def work(a: str = Depends(Way("thread").resource("a"))) -> None:
        raise StopIteration("end")

    assert (await Way("thread").outcome(work)).reason == "StopIteration: end"


# --- being stopped ------------------------------------------------------------------------------

STOPPED = {
    Ending.TIMEOUT: OutcomeKind.RETRY,
    Ending.STALL: OutcomeKind.RETRY,
    Ending.CANCEL: OutcomeKind.CANCELLED,
    Ending.SHUTDOWN: OutcomeKind.RELEASED,
    Ending.LOST: None,
}


@pytest.mark.parametrize("ending", list(Ending))
async def test_a_handler_is_not_called_if_the_attempt_must_end_while_it_is_prepared(way, ending):
    def slow() -> str:
        way.end(ending)
        return "too late"

    def work(a: str = Depends(way.resource("a")), b: str = Depends(slow)) -> None:
        way.said.append("never")

    outcome = await way.run(work)

    assert (outcome.kind if outcome else None) == STOPPED[ending]
    assert way.said == ["a made", "a undone: Interrupted"]


@pytest.mark.parametrize("ending", [each for each in Ending if each is not Ending.LOST])
async def test_what_comes_during_the_clean_up_comes_too_late(way, ending):
    def session() -> Iterator[Context]:
        assert way.attempt is not None
        yield way.attempt.context
        assert way.attempt.is_cleaning
        way.end(ending)
        way.said.append(way.attempt.context.cancelled)

    def work(db: Context = Depends(session)) -> str:
        return "done"

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, b'"done"')
    assert way.said == [True]


async def test_a_failure_stays_one_whatever_comes_during_its_clean_up(way):
    def session() -> Iterator[None]:
        try:
            yield
        finally:
            way.end(Ending.SHUTDOWN)

    def work(db: None = Depends(session)) -> str:
        raise ValueError("no")

    outcome = await way.outcome(work)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.RETRY, "ValueError: no")


async def test_nobody_wants_to_know_of_a_job_that_was_lost_during_the_clean_up(way):
    def session() -> Iterator[None]:
        yield
        way.end(Ending.LOST)

    def work(db: None = Depends(session)) -> str:
        return "done"

    assert await way.run(work) is None


# --- on a loop ----------------------------------------------------------------------------------


class Loop:
    """Runs attempts of coroutines in a task that can be cancelled, as a slot is."""

    def __init__(self) -> None:
        self.hooks = Hooks()
        self.said: list[str] = []
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def start(self, function: Any, **fields: Any) -> asyncio.Task[Outcome | None]:
        task = spec(function, "work", hooks=self.hooks, **fields)
        self.attempt = Attempt(make_job("j1"), task, 1, 0.0)
        runner = Runner(lambda: 1000.0, lambda: "w1", chance=lambda: 0.0)
        self.task = asyncio.ensure_future(runner.run(self.attempt))
        return self.task

    def stop(self, ending: Ending) -> None:
        self.attempt.end(ending)
        self.task.cancel()

    async def session(self) -> AsyncIterator[str]:
        """A dependency whose clean-up waits."""
        self.said.append("made")
        try:
            yield "session"
        except BaseException as error:
            self.said.append(f"undone: {type(error).__name__}")
            raise
        finally:
            await asyncio.sleep(0)
            self.said.append("left")


@pytest.fixture
def loop():
    return Loop()


async def test_async_dependencies_serve_async_tasks(loop):
    async def user(db: str = Depends(loop.session)) -> str:
        await asyncio.sleep(0)
        return f"user of {db}"

    async def work(user: str = Depends(user), plain: str = Depends(lambda: "plain")) -> str:
        await asyncio.sleep(0)
        return f"{user}, {plain}"

    outcome = await soon(loop.start(work))

    assert outcome is not None
    assert outcome.result == b'"user of session, plain"'
    assert loop.said == ["made", "left"]


async def test_a_coroutine_that_only_the_call_shows_is_awaited(loop):
    async def fetch() -> str:
        await asyncio.sleep(0)
        return "fetched"

    async def work(found: str = Depends(lambda: fetch())) -> str:
        return found

    outcome = await soon(loop.start(work))

    assert outcome is not None
    assert outcome.result == b'"fetched"'


async def test_a_coroutine_that_only_the_call_shows_is_refused_in_a_thread():
    async def fetch() -> str:
        return "fetched"

    def work(found: str = Depends(lambda: fetch())) -> str:
        return found

    outcome = await Way("thread").outcome(work)

    assert outcome.kind is OutcomeKind.RETRY
    assert outcome.reason is not None
    assert "is async and the task is not" in outcome.reason


@pytest.mark.parametrize("ending", list(Ending))
async def test_a_coroutine_that_is_cancelled_leaves_its_session_in_order(loop, ending):
    async def work(db: str = Depends(loop.session)) -> None:
        loop.reached.set()
        await asyncio.Event().wait()

    run = loop.start(work)
    await soon(loop.reached.wait())
    loop.stop(ending)
    outcome = await soon(run)

    assert (outcome.kind if outcome else None) == STOPPED[ending]
    assert loop.said == ["made", "undone: CancelledError", "left"]


async def test_a_set_up_that_waits_can_be_cancelled(loop):
    async def slow(db: str = Depends(loop.session)) -> None:
        loop.reached.set()
        await asyncio.Event().wait()

    async def work(a: None = Depends(slow)) -> None:
        loop.said.append("never")

    run = loop.start(work, timeout=5.0)
    await soon(loop.reached.wait())
    loop.stop(Ending.TIMEOUT)
    outcome = await soon(run)

    assert outcome is not None
    assert outcome.reason == "TimeoutError: ran longer than its timeout, 5s"
    assert loop.said == ["made", "undone: CancelledError", "left"]


async def test_a_handler_that_cancels_its_own_task_does_not_hit_the_clean_up(loop):
    async def work(db: str = Depends(loop.session)) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    outcome = await soon(loop.start(work))

    assert outcome is not None
    assert outcome.result == b'"done"'
    assert loop.said == ["made", "left"]


async def test_a_clean_up_that_must_be_cancelled_is_no_success(loop):
    async def session() -> AsyncIterator[None]:
        yield
        loop.reached.set()
        await asyncio.Event().wait()

    async def work(db: str = Depends(loop.session), slow: None = Depends(session)) -> str:
        return "done"

    run = loop.start(work)
    await soon(loop.reached.wait())
    loop.stop(Ending.SHUTDOWN)
    outcome = await soon(run)

    assert outcome is not None
    assert outcome.kind is OutcomeKind.RELEASED
    assert loop.said == ["made", "undone: CancelledError", "left"]


async def test_an_attempt_that_is_abandoned_ends_and_undoes_what_needs_no_loop(loop):
    def pool() -> Iterator[None]:
        try:
            yield
        finally:
            loop.said.append("pool left")

    async def work(pool: None = Depends(pool)) -> None:
        loop.reached.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                loop.said.append("ignored")

    run = loop.start(work)
    await soon(loop.reached.wait())
    loop.stop(Ending.SHUTDOWN)
    await asyncio.sleep(0)
    loop.attempt.is_abandoned = True
    loop.stop(Ending.LOST)

    assert await soon(run) is None
    assert loop.said == ["ignored", "pool left"]


async def test_an_async_generator_yields_once(loop):
    async def twice() -> AsyncIterator[None]:
        yield
        yield

    async def work(db: str = Depends(loop.session), a: None = Depends(twice)) -> str:
        return "done"

    outcome = await soon(loop.start(work))

    assert outcome is not None
    assert outcome.reason is not None
    assert outcome.reason.endswith("it yielded twice; let it yield once, and clean up after that")
    assert loop.said == ["made", "undone: BadHook", "left"]
