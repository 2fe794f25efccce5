"""Jobs in a sandbox run as a worker would run them, when the test says so."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from penstock import Cancel, Context, Depends, Retry, Snooze, State, current, events
from penstock.errors import BadOption, JobCancelled, JobGone, WrongThread
from penstock.testing import (
    NobodyRuns,
    NotDue,
    Runaway,
    Sandbox,
    SandboxBusy,
    SandboxClosed,
    WouldBlock,
)


@dataclass
class Order:
    number: int
    parts: tuple[str, ...] = ()


def test_an_enqueued_job_waits_until_it_is_drained(app):
    ran = []

    @app.task
    def note(word: str) -> str:
        ran.append(word)
        return word.upper()

    with Sandbox(app) as t:
        job = note.enqueue("a")
        assert ran == []
        assert [each.state for each in t.waiting] == [State.READY]
        drained = t.drain()
        assert ran == ["a"]
        assert drained.counts == {"succeeded": 1}
        assert drained.tasks == [note.name]
        assert job.result() == "A"
        assert t.waiting == []
        assert len(t.drain()) == 0


def test_arguments_and_results_really_pass_through_json(app):
    seen = []

    @app.task
    def take(order: Order, loose) -> Order:
        seen.append((order, loose))
        return Order(order.number + 1, ("x",))

    with Sandbox(app) as t:
        given = Order(1, ("a", "b"))
        job = take.enqueue(given, [1, 2])
        t.drain()
        assert seen == [(Order(1, ("a", "b")), [1, 2])]
        assert seen[0][0] is not given
        assert job.result() == Order(2, ("x",))


def test_urgent_jobs_run_first_and_the_rest_in_order(app):
    ran = []

    @app.task
    def note(word: str) -> None:
        ran.append(word)

    with Sandbox(app) as t:
        note.enqueue("a")
        note.using(priority="high").enqueue("b")
        note.enqueue("c")
        t.drain()
    assert ran == ["b", "a", "c"]


def test_what_a_handler_enqueues_runs_in_the_same_drain(app):
    @app.task
    def first() -> None:
        second.enqueue()

    @app.task
    async def second() -> None:
        await third.aenqueue()

    @app.task
    def third() -> None: ...

    with Sandbox(app) as t:
        first.enqueue()
        assert t.drain().tasks == [first.name, second.name, third.name]


def test_a_drain_may_be_of_one_queue_or_of_so_many_attempts(app):
    @app.task
    def note(word: str) -> str:
        return word

    with Sandbox(app) as t:
        for word in "abc":
            note.enqueue(word)
        bulk = note.using(queue="bulk").enqueue("d")
        assert len(t.drain("bulk")) == 1
        assert bulk.result() == "d"
        assert len(t.drain(limit=2)) == 2
        assert len(t.waiting) == 1
        step = t.step()
        assert step is not None
        assert step.job.result == "c"
        assert t.step() is None
        with pytest.raises(BadOption, match="limit"):
            t.drain(limit=0)


def test_a_retry_runs_at_its_own_instant_while_time_advances(app):
    at: list[float] = []

    @app.task(retries=[10, 60])
    def flaky() -> str:
        at.append(app.clock.now())
        if len(at) < 3:
            raise ConnectionError("away")
        return "done"

    with Sandbox(app) as t:
        start = app.clock.now()
        job = flaky.enqueue()
        t.drain()
        assert job.status().state is State.SCHEDULED
        assert t.advance("3d").counts == {"retry": 1, "succeeded": 1}
        assert [instant - start for instant in at] == [0.0, 10.0, 70.0]
        assert t.now == datetime(2026, 1, 4, tzinfo=UTC)
        assert job.result() == "done"
        assert len(t.failures) == 2


def test_what_falls_due_runs_in_the_order_of_time(app):
    ran = []

    @app.task
    def note(word: str) -> None:
        ran.append((word, app.clock.now() - start))
        if word == "b":
            note.using(delay="1h").enqueue("d")

    with Sandbox(app) as t:
        start = app.clock.now()
        note.using(delay="1d").enqueue("c")
        note.using(run_at=t.now + timedelta(minutes=5)).enqueue("b")
        note.using(delay="3d").enqueue("never")
        assert len(t.advance("2d")) == 3
        assert ran == [("b", 300.0), ("d", 3900.0), ("c", 86400.0)]
        assert [job.state for job in t.waiting] == [State.SCHEDULED]


def test_delays_without_jitter_make_the_same_plan_each_time(app):
    @app.task
    def flaky() -> None:
        raise ConnectionError

    plans = []
    for _ in range(2):
        with Sandbox(app) as t:
            flaky.enqueue()
            t.advance("1h")
            plans.append([failure.at - t.clock.now() + 3600 for failure in t.failures])
    assert plans == [[0.0, 2.0, 12.0, 62.0, 312.0, 1562.0]] * 2


def test_signals_mean_what_they_mean_to_a_worker(app):
    @app.task
    def ask(what: str) -> object:
        match what, current().attempt:
            case "snooze", 1:
                raise Snooze("1m")
            case "retry", 1:
                return Retry("5s")
            case "cancel", _:
                raise Cancel("no need")
        return None

    with Sandbox(app) as t:
        jobs = [ask.enqueue(what) for what in ("snooze", "retry", "cancel")]
        assert t.drain().counts == {"snooze": 1, "retry": 1, "cancelled": 1}
        assert t.advance("1m").counts == {"succeeded": 2}
        with pytest.raises(JobCancelled, match="no need"):
            jobs[2].result()
        assert t.failures == ()


def test_expired_jobs_and_unknown_tasks_do_not_run(app):
    ran = []

    @app.task
    def note() -> None:
        ran.append(1)

    with Sandbox(app) as t:
        app.pause("default")
        late = note.using(expires_in="1m").enqueue()
        other = app.enqueue("elsewhere.task", {"a": 1}, queue="other")
        assert len(t.drain()) == 0
        assert [str(job.hold) for job in t.waiting] == ["None", "unknown_task"]
        t.advance("2m")
        app.resume("default")
        assert len(t.drain()) == 0
        assert late.status().state is State.CANCELLED
        assert other.status().state is State.READY
    assert ran == []


def test_one_job_runs_when_its_turn_comes(app):
    ran = []

    @app.task
    def note(word: str) -> None:
        ran.append(word)

    with Sandbox(app) as t:
        note.enqueue("a")
        second = note.enqueue("b")
        note.enqueue("c")
        run = t.run(second)
        assert run.job.id == second.id
        assert ran == ["a", "b"]
        with pytest.raises(NotDue, match="it has ended"):
            t.run(second)
        later = note.using(delay="5m").enqueue("d")
        with pytest.raises(NotDue, match=r"due at \+5m, and it is \+0s; advance"):
            t.run(later)
        with pytest.raises(JobGone):
            t.run("nobody")
        app.pause("slow")
        held = note.using(queue="slow").enqueue("e")
        with pytest.raises(NotDue, match="its queue gives nothing"):
            t.run(held.id)


async def test_one_job_or_one_step_may_be_awaited(app):
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with Sandbox(app) as t:
        job = await double.aenqueue(4)
        assert (await t.arun(job)).outcome == "succeeded"
        await double.using(delay="1m").aenqueue(5)
        assert await t.astep() is None
        assert len(await t.aadvance("1m")) == 1
        assert await job.aresult() == 8


def test_a_task_that_enqueues_itself_for_ever_is_told_so(app):
    @app.task
    def again() -> None:
        again.enqueue()

    with Sandbox(app, max_attempts=50) as t:
        again.enqueue()
        with pytest.raises(Runaway, match="50 attempts have run and more are due") as caught:
            t.drain()
        assert caught.value.tasks == (again.name,)


@pytest.mark.parametrize("run", ["drain", "interleave"])
def test_as_many_attempts_as_may_run_are_not_too_many(app, run):
    @app.task
    def note() -> None: ...

    with Sandbox(app, max_attempts=3) as t:
        note.enqueue_many([()] * 3)
        assert len(getattr(t, run)()) == 3
        note.enqueue_many([()] * 4)
        with pytest.raises(Runaway, match="3 attempts have run and more are due"):
            getattr(t, run)()
        assert [job.state for job in t.waiting] == [State.READY]


# --- threads and loops --------------------------------------------------------------------------


def test_a_sync_handler_runs_in_the_thread_that_drains(app):
    threads = []
    connection = sqlite3.connect(":memory:")  # which refuses every other thread

    @app.task
    def note() -> None:
        connection.execute("SELECT 1")
        threads.append(threading.current_thread())
        asyncio.run(asyncio.sleep(0))  # no loop runs here

    with Sandbox(app) as t:
        note.enqueue()
        t.drain()
    connection.close()
    assert threads == [threading.current_thread()]


async def test_async_handlers_run_on_the_loop_that_drains_and_sync_ones_beside_it(app):
    loops = []

    @app.task
    async def here() -> None:
        loops.append(asyncio.get_running_loop())

    @app.task
    def there() -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return threading.current_thread() is not threading.main_thread()
        return False

    async with Sandbox(app) as t:
        await here.aenqueue()
        job = await there.aenqueue()
        await t.adrain()
        assert loops == [asyncio.get_running_loop()]
        assert await job.aresult() is True


def test_async_handlers_of_sync_tests_share_one_loop(app):
    loops = []

    @app.task
    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    with Sandbox(app) as t:
        for _ in range(2):
            note.enqueue()
            t.drain()
    assert loops[0] is loops[1]
    assert loops[0].is_closed()


async def test_blocking_calls_on_a_loop_are_refused_with_what_to_call_instead(app):
    async with Sandbox(app) as t:
        with pytest.raises(WouldBlock, match=r"use `await t.adrain\(\)`"):
            t.drain()
        with pytest.raises(WouldBlock, match=r"await t.aadvance\(\)"):
            t.advance("1d")
        with pytest.raises(WouldBlock):
            t.interleave()


def test_a_handler_does_not_see_the_variables_of_the_test(app):
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

    @app.task
    def sync() -> str:
        return tenant.get()

    @app.task
    async def coroutine() -> str:
        return tenant.get()

    with Sandbox(app) as t:
        tenant.set("ada")
        jobs = [sync.enqueue(), coroutine.enqueue()]
        t.drain()
        assert [job.result() for job in jobs] == ["nobody", "nobody"]


async def test_nor_does_one_that_runs_on_the_loop_of_the_test(app):
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

    @app.task
    async def coroutine() -> str:
        return tenant.get()

    async with Sandbox(app) as t:
        tenant.set("ada")
        job = await coroutine.aenqueue()
        await t.adrain()
        assert await job.aresult() == "nobody"


def test_a_drain_inside_a_handler_is_refused(app):
    @app.task(retries=None)
    def greedy() -> None:
        t.drain()

    with Sandbox(app) as t:
        greedy.enqueue()
        with pytest.raises(SandboxBusy, match="leave the call out"):
            t.drain(raises=True)


def test_waiting_for_what_nobody_runs_is_refused_at_once(app):
    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        job = note.enqueue()
        with pytest.raises(NobodyRuns, match=r"is ready, and in a sandbox nothing runs"):
            job.result()
        t.drain()
        assert job.result() is None


async def test_an_async_handler_cannot_block_its_own_loop(app):
    @app.task(retries=None)
    async def blocks() -> None:
        other.enqueue().result()

    @app.task
    def other() -> None: ...

    async with Sandbox(app) as t:
        await blocks.aenqueue()
        with pytest.raises(WrongThread):
            await t.adrain(raises=True)


def test_outside_of_its_block_a_sandbox_runs_nothing(app):
    t = Sandbox(app)
    with pytest.raises(SandboxClosed, match="use it inside"):
        t.drain()
    with t:
        assert len(t.drain()) == 0
        with pytest.raises(SandboxClosed):
            t.__enter__()
    with pytest.raises(SandboxClosed):
        t.advance(1)


def test_a_handler_that_never_ends_runs_out_of_its_timeout(app):
    @app.task(timeout=0.05, retries=None)
    async def hangs() -> None:
        await asyncio.Event().wait()

    @app.task(timeout=0.05, retries=None)
    def spins() -> None:
        while True:
            pass

    with Sandbox(app) as t:
        hangs.enqueue()
        spins.enqueue()
        assert t.drain().counts == {"failed": 2}
        assert {str(failure.error) for failure in t.failures} == {
            "ran longer than its timeout, 50ms"
        }


async def test_the_same_on_the_loop_of_the_test(app):
    @app.task(timeout=0.05, retries=None)
    async def hangs() -> None:
        await asyncio.Event().wait()

    async with Sandbox(app) as t:
        await hangs.aenqueue()
        assert (await t.adrain()).counts == {"failed": 1}
        assert isinstance(t.failures[0].error, TimeoutError)
        current_task = asyncio.current_task()
        assert current_task is not None
        assert not current_task.cancelling()


def test_a_keyboard_interrupt_stops_the_test_and_not_the_job(app):
    @app.task
    def interrupted() -> None:
        if current().attempt == 1:
            raise KeyboardInterrupt

    with Sandbox(app) as t:
        job = interrupted.enqueue()
        with pytest.raises(KeyboardInterrupt):
            t.drain()
        assert job.status().state is State.READY
        t.drain()
        assert job.result() is None


# --- what surrounds an attempt ------------------------------------------------------------------


def test_hooks_dependencies_and_middleware_run_as_in_a_worker(app):
    story = []

    @app.startup
    async def begin():
        story.append("start")
        yield
        story.append("end")

    @app.middleware
    def around(ctx: Context):
        story.append(f"> {ctx.task}")
        yield
        story.append("<")

    def session() -> Iterator[str]:
        story.append("open")
        yield "db"
        story.append("close")

    @app.task(name="use")
    def use(db: str = Depends(session)) -> str:
        story.append(db)
        return db

    with Sandbox(app) as t:
        t.drain()
        assert story == []
        use.enqueue()
        t.drain()
        assert story == ["start", "> use", "open", "db", "close", "<", "end"]
        with app.override(session, lambda: "fake"):
            job = use.enqueue()
            t.drain()
        assert job.result() == "fake"


@pytest.mark.parametrize("run", ["drain", "adrain", "interleave", "ainterleave"])
def test_start_up_and_shutdown_are_one_task_of_which_there_is_one(app, run):
    story = []

    @app.startup
    async def begin():
        story.append(asyncio.current_task())
        for _ in range(5):
            await asyncio.sleep(0)
        yield
        story.append(asyncio.current_task())

    @app.task
    async def nap() -> None:
        await asyncio.sleep(0)

    async def awaited(t: Sandbox) -> None:
        await getattr(t, run)()

    with Sandbox(app) as t:
        nap.enqueue_many([()] * 4)
        asyncio.run(awaited(t)) if run.startswith("a") else getattr(t, run)()
        assert t.waiting == []
    first, last = story
    assert first is last


@pytest.mark.parametrize("run", ["drain", "adrain"])
def test_what_start_up_sets_is_seen_by_async_handlers_and_by_no_test(app, run):
    found = ContextVar("found", default="nothing")

    @app.startup
    def begin() -> None:
        found.set("a pool")

    @app.task
    async def use() -> str:
        return found.get()

    async def awaited(t: Sandbox) -> None:
        await t.adrain()
        assert found.get() == "nothing"

    with Sandbox(app) as t:
        job = use.enqueue()
        asyncio.run(awaited(t)) if run == "adrain" else t.drain()
        assert job.result() == "a pool"
        assert found.get() == "nothing"


async def test_a_drain_that_is_cancelled_during_start_up_gives_the_job_back(app):
    reached = asyncio.Event()

    @app.startup
    async def begin():
        reached.set()
        await asyncio.Event().wait()

    @app.task
    async def note() -> None: ...

    async with Sandbox(app) as t:
        job = await note.aenqueue()
        drain = asyncio.create_task(t.adrain())
        await reached.wait()
        drain.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drain
        assert (await job.astatus()).state is State.READY


def test_a_start_up_that_fails_gives_the_job_back(app):
    @app.startup
    def begin() -> None:
        raise OSError("no disk")

    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        job = note.enqueue()
        with pytest.raises(OSError, match="no disk"):
            t.drain()
        assert job.status().state is State.READY


def test_events_tell_of_it(app):
    heard = []
    app.on(events.JobEvent, lambda event: heard.append(type(event).__name__))

    @app.task
    def note() -> None: ...

    with Sandbox(app) as t:
        note.enqueue()
        t.drain()
    assert heard == ["Enqueued", "Claimed", "Succeeded"]


def test_progress_is_stored_and_a_running_job_can_be_cancelled(app):
    @app.task
    def long(ctx: Context) -> None:
        ctx.progress(0.5, "half")
        app.cancel(ctx.id, "enough")
        assert ctx.cancelled

    with Sandbox(app) as t:
        job = long.enqueue()
        assert t.drain().counts == {"cancelled": 1}
        assert job.status().progress == 0.5
        with pytest.raises(JobCancelled, match="enough"):
            job.result()


async def test_a_running_coroutine_is_cancelled_where_it_waits(app):
    @app.task
    async def long(ctx: Context) -> None:
        await app.acancel(ctx.id, "enough")
        await asyncio.Event().wait()

    async with Sandbox(app) as t:
        await long.aenqueue()
        assert (await t.adrain()).counts == {"cancelled": 1}


def test_the_clock_may_begin_where_the_test_wants(app):
    begin = datetime(2024, 2, 29, 12, tzinfo=UTC)
    with Sandbox(app, now=begin) as t:
        assert t.now == begin
        assert app.clock.now() == begin.timestamp()
        t.advance("1d")
        assert t.now.isoformat() == "2024-03-01T12:00:00+00:00"
    with pytest.raises(BadOption, match="no time zone"):
        Sandbox(app, now=datetime(2024, 2, 29))
    with pytest.raises(BadOption, match="'manual' or 'inline'"):
        Sandbox(app, mode="eager")  # type: ignore[arg-type]
