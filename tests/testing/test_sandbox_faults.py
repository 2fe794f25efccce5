"""What a test lets go wrong goes wrong as it would in earnest, and only what it asked for."""

from __future__ import annotations

import asyncio

import pytest

from penstock import EngineUnavailable, JobFailed, Retry, State, current
from penstock.errors import BadOption
from penstock.testing import Crash, NotReached, Sandbox, UnseenFailure, UnusedFault

# --- failures -----------------------------------------------------------------------------------


def test_a_failure_that_nobody_looked_at_fails_the_test(app):
    @app.task(retries=None)
    def broken() -> None:
        raise ValueError("no")

    with pytest.raises(UnseenFailure) as caught:
        with Sandbox(app) as t:
            broken.enqueue()
            t.drain()
    assert isinstance(caught.value.__cause__, ValueError)
    lines = str(caught.value).splitlines()
    assert lines[0] == "an attempt failed and the test did not look:"
    assert lines[1].endswith("attempt 1: ValueError: no (the job has failed)")
    assert lines[2] == "if that is right, say so: read t.failures, or give strict=False"


def test_so_does_one_that_is_tried_again(app):
    @app.task
    def flaky() -> None:
        raise ValueError("no")

    with pytest.raises(UnseenFailure, match="it is tried again"):
        with Sandbox(app) as t:
            flaky.enqueue()
            t.drain()
    with Sandbox(app, strict=False) as t:
        flaky.enqueue()
        t.drain()


def test_looking_is_enough(app):
    @app.task(retries=None)
    def broken(number: int) -> None:
        raise ValueError(number)

    with Sandbox(app) as t:
        broken.enqueue(1)
        t.drain()
        (failure,) = t.failures
        assert isinstance(failure.error, ValueError)
        assert failure.error.__traceback__ is not None
        assert failure.is_final
        assert (failure.task, failure.attempt) == (broken.name, 1)
        job = broken.enqueue(2)
        t.drain()
        with pytest.raises(JobFailed):
            job.result()
        broken.enqueue(3)
        with pytest.raises(ValueError, match="3"):
            t.drain(raises=True)


def test_what_a_test_fails_of_itself_says_which_jobs_failed_too(app):
    @app.task
    def flaky() -> None:
        raise ValueError("no")

    with pytest.raises(AssertionError) as caught:
        with Sandbox(app) as t:
            flaky.enqueue()
            t.drain()
            raise AssertionError("the page is empty")
    assert caught.value.args == ("the page is empty",)
    assert "1 attempts failed" in caught.value.__notes__[0]
    assert "ValueError: no" in caught.value.__notes__[0]


def test_raises_stops_at_the_first_failure(app):
    ran = []

    @app.task
    def note(number: int) -> None:
        ran.append(number)
        if number == 2:
            raise ValueError("two")

    with Sandbox(app) as t:
        note.enqueue_many([(1,), (2,), (3,)])
        with pytest.raises(ValueError, match="two"):
            t.drain(raises=True)
        assert ran == [1, 2]
        t.drain()
        with pytest.raises(ValueError, match="two"):
            t.advance("1h", raises=True)


async def test_awaited_it_raises_too(app):
    @app.task
    async def broken() -> None:
        raise ValueError("no")

    async with Sandbox(app) as t:
        await broken.aenqueue()
        with pytest.raises(ValueError, match="no"):
            await t.adrain(raises=True)
        await broken.aenqueue()
        await t.adrain()
        assert len(t.failures) == 2


def test_a_handler_can_be_made_to_fail(app):
    @app.task(retries=[1, 2, 3])
    def charge(cents: int) -> int:
        return cents

    with Sandbox(app) as t:
        job = charge.enqueue(5)
        t.fail(charge, ConnectionError("away"), times=2)
        t.fail(charge, TimeoutError)
        counts = t.advance("1m").counts
        assert counts == {"retry": 3, "succeeded": 1}
        assert [failure.error.__class__.__name__ for failure in t.failures] == [
            "ConnectionError",
            "ConnectionError",
            "TimeoutError",
        ]
        assert job.result() == 5


async def test_an_async_handler_too_and_for_ever(app):
    @app.task(retries=[1])
    async def charge() -> None: ...

    async with Sandbox(app) as t:
        await charge.aenqueue()
        t.fail(charge, times=None)
        assert (await t.aadvance("1m")).counts == {"retry": 1, "failed": 1}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_time_out_ends_the_handler_before_its_first_line(app, kind):
    ran = []

    @app.task(name="sync", timeout="30s", retries=[5])
    def sync() -> None:
        ran.append(1)

    @app.task(name="async", timeout="30s", retries=[5])
    async def coroutine() -> None:
        ran.append(1)

    with Sandbox(app) as t:
        job = app.enqueue(kind)
        t.time_out(kind)
        assert t.drain().counts == {"retry": 1}
        assert ran == []
        assert job.status().reason == "TimeoutError: ran longer than its timeout, 30s"
        assert t.advance("5s").counts == {"succeeded": 1}


def test_a_task_without_a_timeout_cannot_run_out_of_it(app):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        with pytest.raises(BadOption, match="has no timeout"):
            t.time_out(note)


# --- crashes ------------------------------------------------------------------------------------


def test_after_a_crash_the_job_is_rescued_when_the_lease_has_run_out(app):
    mails = []

    @app.task
    def send(to: str) -> str:
        mails.append(to)
        return "sent"

    with Sandbox(app) as t:
        job = send.enqueue("ada")
        t.crash(send)
        assert t.drain().counts == {"crashed": 1}
        assert mails == ["ada"]
        assert job.status().state is State.RUNNING
        assert len(t.advance("14s")) == 0
        assert t.advance("1s").counts == {"succeeded": 1}
        assert mails == ["ada", "ada"]  # which is what an idempotent task must be ready for
        found = job.status()
        assert (found.attempt, found.crashes, found.failures) == (2, 1, 0)
        assert found.errors[0].kind == "crash"


@pytest.mark.parametrize(
    ("at", "done"),
    [("before", ""), (1, ""), ("during", "a"), (2, "a"), (3, "ab"), ("after", "abc")],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_process_dies_exactly_where_it_is_told(app, kind, at, done):
    lines = []

    @app.task(name="sync")
    def sync() -> None:
        lines.append("a")
        lines.append("b")
        lines.append("c")

    @app.task(name="async")
    async def coroutine() -> None:
        lines.append("a")
        await asyncio.sleep(0)
        lines.append("c")

    with Sandbox(app) as t:
        app.enqueue(kind)
        t.crash(kind, at)
        t.drain()
        expected = done.replace("b", "") if kind == "async" else done
        assert "".join(lines) == expected
        lines.clear()
        t.advance("15s")
        assert "".join(lines) == ("ac" if kind == "async" else "abc")


def test_a_handler_of_one_line_dies_after_it(app):
    lines = []

    @app.task
    def one() -> None:
        lines.append("a")

    with Sandbox(app) as t:
        one.enqueue()
        t.crash(one, "during")
        t.advance("15s")
    assert lines == ["a", "a"]


def test_a_crash_is_no_exception_that_a_handler_would_handle(app):
    handled = []

    @app.task
    def careful() -> None:
        try:
            handled.append("try")
            handled.append("never reached the first time")
        except Exception:
            handled.append("except")

    with Sandbox(app) as t:
        careful.enqueue()
        t.crash(careful, 3)
        t.drain()
        assert handled == ["try"]
        t.advance("15s")
        assert issubclass(Crash, BaseException)
        assert not issubclass(Crash, Exception)
        assert t.failures == ()


def test_a_line_that_is_never_reached_is_told(app):
    @app.task
    def short() -> None:
        return None

    with Sandbox(app) as t:
        short.enqueue()
        t.crash(short, 5)
        with pytest.raises(NotReached, match="before its line 5 and has run only 1"):
            t.drain()


def test_the_third_crash_is_the_last(app):
    @app.task
    def killer() -> None: ...

    with Sandbox(app) as t:
        job = killer.enqueue()
        t.crash(killer, times=3)
        assert t.drain().counts == {"crashed": 1}
        t.advance("15s")  # alone in a child process, whose death its worker survives
        found = job.status()
        assert (found.crashes, found.state) == (3, State.FAILED)
        assert "crashed 3 times" in (found.reason or "")


def test_a_job_that_runs_at_most_once_does_not_run_again(app):
    ran = []

    @app.task(at_most_once=True)
    def pay() -> None:
        ran.append(1)

    with Sandbox(app) as t:
        job = pay.enqueue()
        t.crash(pay)
        t.advance("1m")
        assert ran == [1]
        assert job.status().reason == "may have run"


def test_a_worker_that_died_writes_nothing(app):
    """A handler that is not idempotent is found out: what it did stays, what it returned does
    not.
    """
    account = {"balance": 100}

    @app.task
    def withdraw(cents: int) -> int:
        account["balance"] -= cents
        return current().attempt

    with Sandbox(app) as t:
        job = withdraw.enqueue(10)
        t.crash(withdraw)
        t.advance("15s")
        assert job.result() == 2
        assert account["balance"] == 80


def test_a_fault_that_never_happens_fails_the_test(app):
    @app.task
    def note() -> None: ...

    with pytest.raises(UnusedFault, match="a crash of .* was asked for and never happened"):
        with Sandbox(app) as t:
            t.crash(note)
    with pytest.raises(UnusedFault, match="a failure of .* asked for 2 times more"):
        with Sandbox(app) as t:
            note.enqueue()
            t.fail(note, times=3)
            t.drain()


@pytest.mark.parametrize("at", [0, True, "soon", -1])
def test_a_crash_at_no_known_point_is_refused(app, at):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        with pytest.raises(BadOption, match="'before', 'during', 'after', or a line"):
            t.crash(note, at)
        with pytest.raises(BadOption, match="times"):
            t.fail(note, times=0)


# --- the store ----------------------------------------------------------------------------------


def test_a_store_that_is_down_refuses_everything(app):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        note.enqueue()
        with t.store_down():
            with pytest.raises(EngineUnavailable):
                note.enqueue()
            with pytest.raises(EngineUnavailable):
                t.drain()
        note.enqueue()
        assert len(t.drain()) == 2


def test_a_store_that_goes_down_while_a_handler_runs_fails_what_it_enqueues(app):
    @app.task(retries=[5])
    def outer() -> None:
        if current().attempt == 1:
            with t.store_down():
                inner.enqueue()
        inner.enqueue()

    @app.task
    def inner() -> None: ...

    with Sandbox(app) as t:
        outer.enqueue()
        t.advance("1m")
        assert isinstance(t.failures[0].error, EngineUnavailable)
        t.assert_enqueued(inner, count=1)


def test_after_a_lost_reply_the_job_is_there_and_its_id_makes_it_one(app):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        t.lose_reply()
        with pytest.raises(EngineUnavailable):
            note.using(id="order-1").enqueue()
        again = note.using(id="order-1").enqueue()
        assert not again.created
        t.assert_enqueued(note, count=1)


# --- what a worker would do, too -----------------------------------------------------------------


class Halt(BaseException):
    """No Exception, and nothing of Python's own."""


@pytest.mark.parametrize("is_once", [False, True])
def test_what_is_no_exception_comes_out_and_counts_as_in_a_worker(app, is_once):
    ran = []

    @app.task(at_most_once=is_once, retries=None if is_once else 3)
    def halt() -> None:
        ran.append(1)
        if len(ran) == 1:
            raise Halt("here")

    with Sandbox(app) as t:
        job = halt.enqueue()
        with pytest.raises(Halt):
            t.drain()
        found = job.status()
        assert found.state is (State.FAILED if is_once else State.SCHEDULED)
        assert found.failures == 1
        assert [error.message for error in found.errors] == ["here"]
        t.advance("1h")
        assert len(ran) == (1 if is_once else 2)


def test_a_retry_that_the_handler_asks_for_is_not_raised(app):
    @app.task(retries=[1])
    def later() -> None:
        raise Retry("5s", reason="not yet")

    with Sandbox(app) as t:
        later.enqueue()
        assert t.drain(raises=True).counts == {"retry": 1}
        with pytest.raises(Retry, match="not yet"):  # there is no third
            t.advance("5s", raises=True)


@pytest.mark.parametrize("verb", ["enqueue", "exchange"])
def test_a_reply_that_was_to_be_lost_and_never_came_fails_the_test(app, verb):
    with pytest.raises(UnusedFault, match=f"the loss of a reply of {verb}"), Sandbox(app) as t:
        t.lose_reply(verb)


def test_a_store_that_is_down_twice_comes_up_once(app):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        with t.store_down():
            with t.store_down():
                pass
            with pytest.raises(EngineUnavailable):
                note.enqueue()
        note.enqueue()


def test_what_no_fault_can_be_is_refused(app):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        with pytest.raises(BadOption, match="give an exception"):
            t.fail(note, "boom")  # type: ignore[arg-type]
        with pytest.raises(BadOption, match="whole number from 1"):
            t.lose_reply(times=0)
