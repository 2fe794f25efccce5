"""Workers inside an application: beside a loop, in a thread, and as the whole process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from penstock import INJECTED, Context, Penstock, State, current, events
from penstock.context import NoContext
from penstock.errors import (
    BadDuration,
    BadOption,
    BadPriority,
    CannotHost,
    EngineReadOnly,
    JobFailed,
)


@pytest.fixture
def double(app):
    @app.task(name="double", queue="numbers")
    def double(number: int) -> int:
        return 2 * number

    return double


# --- beside a loop ------------------------------------------------------------------------------


@pytest.mark.every_engine
async def test_a_worker_beside_a_loop_has_its_lease_when_the_block_begins(app, double):
    async with app.worker() as worker:
        (known,) = await app.aworkers()
        assert known.id == worker.id
        assert known.queues == ("default", "numbers")
        assert await (await double.aenqueue(21)).aresult(timeout=30) == 42
    assert await app.aworkers() == []


@pytest.mark.every_engine
async def test_async_tasks_run_on_the_loop_and_may_enqueue_others(app, double):
    @app.task(name="chain")
    async def chain(number: int) -> int:
        first = await double.aenqueue(number)
        return 1 + await first.aresult(timeout=30)

    async with app.worker(concurrency=2, threads=1):
        assert await (await chain.aenqueue(5)).aresult(timeout=30) == 11


@pytest.mark.every_engine
async def test_a_worker_drains_when_its_block_ends(app):
    begun, go_on = threading.Event(), threading.Event()

    @app.task(name="slow")
    def slow() -> str:
        begun.set()
        assert go_on.wait(30)
        return "done"

    async with app.worker():
        handle = await slow.aenqueue()
        await asyncio.to_thread(begun.wait, 30)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert (await handle.astatus()).state is State.SUCCEEDED


async def test_a_block_that_fails_gives_back_what_runs(app):
    begun = asyncio.Event()

    @app.task(name="slow")
    async def slow() -> None:
        begun.set()
        await asyncio.Event().wait()

    handle = await slow.aenqueue()
    with pytest.raises(ZeroDivisionError):
        async with app.worker():
            await begun.wait()
            raise ZeroDivisionError
    assert (await handle.astatus()).state is State.READY


async def test_a_worker_that_cannot_open_its_store_says_so(tmp_path):
    (tmp_path / "jobs.db").write_text("no database, but text of some length " * 100)
    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        with pytest.raises(Exception, match="is damaged or no Penstock store"):
            async with app.worker():
                pytest.fail("it began")


async def test_what_ends_a_worker_inside_its_block_is_logged_then_and_raised_at_its_end(
    memory, monkeypatch
):
    async def breaks(turns):
        raise AssertionError("it was told to")

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            noticed.set()

    noticed, listener = asyncio.Event(), Listener()
    with pytest.raises(AssertionError, match="it was told to"):
        async with memory.worker():
            monkeypatch.setattr(logging.getLogger("penstock"), "handlers", [listener])
            monkeypatch.setattr("penstock.worker.claim_loop.ClaimLoop._turn", breaks)
            await memory.aenqueue("any")
            async with asyncio.timeout(60):
                await noticed.wait()


async def test_a_worker_knows_only_the_queues_it_is_told(app, double):
    async with app.worker(queues="numbers", name="counter") as worker:
        assert worker.settings.queues == ("numbers",)
        assert worker.id.startswith("counter-")
    async with app.worker(queues="mail,default") as worker:
        assert worker.settings.queues == ("mail", "default")
    async with app.worker(queues=["a", "b"], lease="20s", drain="1m", poll=0.5) as worker:
        found = worker.settings
        assert (found.queues, found.lease, found.drain, found.poll) == (("a", "b"), 20.0, 60.0, 0.5)


async def test_a_worker_has_the_settings_of_its_app(url):
    async with Penstock(url, lease="20s", drain=2, threads=3, keep_finished="1d") as app:
        async with app.worker() as worker:
            found = worker.settings
    assert (found.lease, found.drain, found.threads) == (20.0, 2.0, 3)
    assert found.keep_finished == 86400.0


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"que": 1},
            BadOption,
            "que=1: no such option of a worker; there are queues, exclude_queues, concurrency, "
            "threads, children, "
            "reserve, prefetch, patience, lease, drain, grace, stall_limit, max_jobs, max_memory, "
            "poll, leads, name",
        ),
        ({"queues": []}, BadOption, "queues=(): name at least one queue"),
        ({"queues": [""]}, BadOption, "queues='': it is empty; give at least one character"),
        ({"queues": 5}, BadOption, "queues=5: give a word or a list of words"),
        ({"concurrency": 0}, BadOption, "concurrency=0: give a number from 1 up"),
        ({"concurrency": "5"}, BadOption, "concurrency='5': give a whole number"),
        ({"threads": True}, BadOption, "threads=True: give a whole number"),
        ({"prefetch": 0.5}, BadOption, "prefetch=0.5: give a whole number"),
        ({"reserve": "hi=2"}, BadPriority, "unknown priority 'hi'; use one of high, normal, low"),
        ({"reserve": "high"}, BadOption, "reserve='high': give priorities and slots, such as"),
        ({"reserve": "high=0"}, BadOption, "reserve='high=0': give priorities and slots, such as"),
        ({"reserve": {"high": 1.5}}, BadOption, "reserve={'high': 1.5}: give priorities and"),
        ({"leads": "yes"}, BadOption, "leads='yes': give True or False"),
        ({"lease": "long"}, BadDuration, "'long' is not a duration: lease has no number"),
    ],
)
def test_a_worker_that_cannot_work_is_refused(memory, options, kind, message):
    with pytest.raises(kind) as caught:
        memory.worker_thread(**options)
    assert str(caught.value).startswith(message)


# --- in a thread --------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_worker_in_a_thread_serves_blocking_code(double, app):
    with app.worker_thread() as worker:
        assert double.enqueue(21).result(timeout=30) == 42
        assert worker.is_alive
    assert not worker.is_alive


def test_a_worker_in_a_thread_stops_when_nothing_is_left(app, double):
    handles = double.enqueue_many([(number,) for number in range(50)])
    later = double.using(delay="1h").enqueue(1)
    worker = app.worker_thread().start()
    worker.stop_when_empty()
    assert [handle.status().state for handle in handles] == [State.SUCCEEDED] * 50
    assert later.status().state is State.SCHEDULED


def test_a_worker_in_a_thread_stops_now(app):
    begun = threading.Event()

    @app.task(name="slow")
    async def slow() -> None:
        begun.set()
        await asyncio.Event().wait()

    handle = slow.enqueue()
    worker = app.worker_thread().start()
    assert begun.wait(30)
    worker.stop(0)
    assert handle.status().state is State.READY


def test_a_worker_whose_start_up_hangs_can_be_stopped(memory):
    hangs = threading.Event()

    @memory.task(name="work")
    def work() -> None: ...

    @memory.startup
    async def hang() -> None:
        hangs.set()
        await asyncio.Event().wait()

    worker = memory.worker_thread().start()
    assert hangs.wait(30)
    worker.stop(0)
    assert not worker.is_alive


def test_a_worker_that_was_made_before_a_fork_starts_and_stops_after_it(process):
    service = process("""
        import os
        worker = app.worker_thread()
        child = os.fork()
        if child == 0:
            worker.start()
            fast.enqueue().result(timeout=60)
            assert worker.is_alive
            worker.stop()
            names = [thread.name for thread in threading.enumerate()]
            assert "penstock worker" not in names and not worker.is_alive
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not worker.is_alive
    """)
    assert ends(service) == "ended\n"


def test_what_a_worker_in_a_thread_imports_is_imported_by_who_starts_it(memory, monkeypatch):
    """A thread that imports uvloop when the main thread has ended would fail."""
    seen = []
    monkeypatch.setattr(
        "penstock.hosting.loop_factory", lambda: seen.append(threading.current_thread())
    )
    with memory.worker_thread():
        pass
    assert seen == [threading.current_thread()]


def test_a_worker_for_which_there_was_no_thread_can_be_started_later(memory, monkeypatch):
    def refuses(thread):
        raise RuntimeError("can't start new thread")

    worker = memory.worker_thread()
    with monkeypatch.context() as scarce, pytest.raises(RuntimeError, match="can't start new"):
        scarce.setattr(threading.Thread, "start", refuses)
        worker.start()
    worker.stop()
    assert not worker.is_alive
    with worker:
        assert worker.is_alive


def test_a_worker_that_was_never_started_is_easily_stopped(memory):
    memory.worker_thread().stop()


def test_what_ended_a_worker_is_told_to_who_stops_it(memory, monkeypatch, caplog):
    async def refuses(engine):
        raise EngineReadOnly("memory", "it was told to")

    monkeypatch.setattr("penstock.engines.memory.engine.MemoryEngine.open", refuses)
    worker = memory.worker_thread().start()
    worker._thread.join(30)
    with pytest.raises(EngineReadOnly):
        worker.stop()
    assert "worker failed error=EngineReadOnly" in caplog.text


# --- inside a task ------------------------------------------------------------------------------


def test_a_job_made_inside_another_belongs_to_the_same_story(app):
    @app.task(name="parent")
    def parent(ctx: Context = INJECTED) -> str:
        assert ctx.id == current().id
        return child.enqueue().id

    @app.task(name="child")
    def child() -> None: ...

    with app.worker_thread():
        first = parent.using(correlation_id="request-9").enqueue()
        job = app.job(first.result(timeout=30)).status()
    assert job.correlation_id == "request-9"
    assert job.enqueued_by == first.status().worker


def test_an_injected_context_is_the_one_of_the_attempt_or_none(memory):
    @memory.task(name="task")
    def task(ctx: Context = INJECTED) -> int:
        return ctx.attempt

    with pytest.raises(NoContext, match="no attempt runs here"):
        task()
    with memory.worker_thread():
        assert task.enqueue().result(timeout=30) == 1


def test_a_failed_job_brings_its_traceback_home(app):
    @app.task(name="task", retries=0)
    def task() -> None:
        raise ValueError("no money")

    with app.worker_thread(), pytest.raises(JobFailed) as caught:
        task.enqueue().result(timeout=30)
    assert caught.value.reason == "ValueError: no money"
    assert 'raise ValueError("no money")' in str(caught.value)


# --- events -------------------------------------------------------------------------------------


def test_listeners_hear_of_what_happens(app, double):
    heard: list[str] = []

    @app.on(events.Succeeded)
    def succeeded(event: events.Succeeded) -> None:
        heard.append(f"succeeded {event.job}")

    enough = threading.Event()
    stop = app.on(events.Enqueued, lambda event: heard.append(f"enqueued {event.job}"))
    app.on(events.Succeeded, lambda event: enough.set())
    with app.worker_thread():
        first = double.enqueue(1)
        assert enough.wait(30)
        stop()
        double.enqueue(2).result(timeout=30)
    assert heard[:2] == [f"enqueued {first.id}", f"succeeded {first.id}"]
    assert [line.split()[0] for line in heard[2:]] == ["succeeded"]


# --- as the whole process -----------------------------------------------------------------------

SCRIPT = """
import asyncio, sys, threading
from penstock import Penstock
app = Penstock(sys.argv[1])

@app.task(name="slow")
async def slow(naps: int) -> None:
    print("begun", flush=True)
    for _ in range(naps):
        await asyncio.sleep(0.01)

@app.task(name="fast")
def fast() -> None: ...

{}
print("ended", flush=True)
"""


@pytest.fixture
def process(tmp_path):
    """Start a script that runs a worker; what it writes to its error output fails the test."""
    running = []

    def start(body: str) -> subprocess.Popen[str]:
        file = tmp_path / "service.py"
        file.write_text(SCRIPT.format(textwrap.dedent(body)))
        running.append(
            subprocess.Popen(
                [sys.executable, str(file), f"sqlite:///{tmp_path}/jobs.db"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield start
    for each in running:
        each.kill()
        each.communicate()


def ends(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker(process, tmp_path, number):
    service = process("slow.enqueue(20)\napp.run_worker()")
    assert service.stdout.readline() == "begun\n"
    service.send_signal(number)
    assert ends(service) == "ended\n"
    assert _states(tmp_path) == ["succeeded"]


def test_a_second_signal_gives_back_what_runs(process, tmp_path):
    service = process("slow.enqueue(6000)\napp.run_worker(drain='1h')")
    assert service.stdout.readline() == "begun\n"
    service.send_signal(signal.SIGINT)
    service.send_signal(signal.SIGTERM)
    assert ends(service) == "ended\n"
    assert _states(tmp_path) == ["ready"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_whose_loop_is_blocked_is_ended_by_signals_that_insist(process, number):
    service = process("""
        import time

        @app.startup
        def blocks():
            print("begun", flush=True)
            while True:
                time.sleep(0.01)

        app.run_worker()
    """)
    assert service.stdout.readline() == "begun\n"
    while service.poll() is None:
        service.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.wait(0.1)
    assert service.returncode == -number


def test_signals_that_are_heard_do_not_end_the_process(process, tmp_path):
    service = process("""
        @app.shutdown
        async def waits():
            print("draining", flush=True)
            while not os.path.exists(sys.argv[1].removeprefix("sqlite:///") + ".end"):
                await asyncio.sleep(0.01)

        import os
        slow.enqueue(6000)
        app.run_worker(drain=0)
    """)
    assert service.stdout.readline() == "begun\n"
    service.send_signal(signal.SIGTERM)
    assert service.stdout.readline() == "draining\n"
    for _ in range(5):
        service.send_signal(signal.SIGINT)
        service.send_signal(signal.SIGTERM)
    (tmp_path / "jobs.db.end").touch()
    assert ends(service) == "ended\n"


def test_a_worker_may_run_until_nothing_is_left(process, tmp_path):
    service = process("fast.enqueue_many([()] * 20)\napp.run_worker(until_empty=True)")
    assert ends(service) == "ended\n"
    assert _states(tmp_path) == ["succeeded"] * 20


def test_signals_are_as_before_when_the_worker_has_ended(process):
    service = process("""
        import signal
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        app.run_worker(until_empty=True)
        assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    """)
    assert ends(service) == "ended\n"


def test_in_another_thread_there_are_no_signals(process):
    service = process("""
        fast.enqueue()
        thread = threading.Thread(target=app.run_worker, kwargs={"until_empty": True})
        thread.start()
        thread.join()
    """)
    assert ends(service) == "ended\n"


def _states(tmp_path) -> list[str]:
    with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        return [job.state for job in app.find().jobs]


async def test_a_worker_cannot_be_the_process_where_a_loop_runs(memory):
    with pytest.raises(CannotHost) as caught:
        memory.run_worker()
    assert str(caught.value) == (
        "run_worker cannot start this worker: a loop runs here; use `async with app.worker()`, "
        "or app.worker_thread()"
    )


def test_a_worker_in_a_thread_is_started_once(memory):
    worker = memory.worker_thread()
    with worker, pytest.raises(CannotHost, match="it was started before; make another with"):
        worker.start()
    with pytest.raises(CannotHost, match="start cannot start this worker"):
        worker.start()
