"""The façade among processes: forks at the worst moment, spawned children, signals and exits.

Each test is a script in a process of its own, with a hard time limit; whatever it writes to its
error output fails the test.
"""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from penstock import Penstock

START = """
import asyncio, os, signal, sys, threading
from penstock import Penstock

app = Penstock(sys.argv[1])

@app.task(name="task")
def task(number: int = 0) -> None: ...

def forked(work):
    '''Run work in a forked child that must end well within 20 seconds.'''
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            work()
        except Exception:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        sys.exit(0)
    return child

def ended(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path) -> str:
    """The URL of an empty store, which processes share unless it is in memory."""
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case _:
            return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def script(tmp_path, store):
    """Start a script on a store; by default, wait until it has ended well."""

    def run(source: str, *, url: str = store, waits: bool = True, options: tuple[str, ...] = ()):
        file = tmp_path / "script.py"
        file.write_text(START + textwrap.dedent(source))
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", *options, str(file), url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not waits:
            return process
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert (process.returncode, err) == (0, "")
        return out.strip()

    return run


def jobs_in(url: str) -> int:
    with Penstock(url) as app:
        return sum(count.jobs for count in app.counts())


# --- fork ---------------------------------------------------------------------------------------


def test_parent_and_child_go_on_after_a_fork(script, store):
    script("""
        task.enqueue()
        child = forked(lambda: [task.enqueue() for _ in range(10)])
        ended(child)
        for _ in range(10):
            task.enqueue()
    """)
    assert jobs_in(store) == 21


def test_a_child_of_a_child_goes_on_too(script, store):
    script("""
        task.enqueue()
        ended(forked(lambda: (task.enqueue(), ended(forked(task.enqueue)))))
    """)
    assert jobs_in(store) == 3


def test_forks_while_other_threads_enqueue_lose_nothing(script, store):
    out = script("""
        stop, served = threading.Event(), []

        def enqueues():
            while not stop.is_set():
                served.append(task.enqueue())

        threads = [threading.Thread(target=enqueues) for _ in range(4)]
        for thread in threads:
            thread.start()
        task.enqueue_many([()] * 10)
        for _ in range(20):
            ended(forked(lambda: [task.enqueue() for _ in range(5)]))
        stop.set()
        for thread in threads:
            thread.join()
        print(len(served) + 10 + 20 * 5)
    """)
    assert jobs_in(store) == int(out)


def test_a_fork_while_the_parent_opens_its_store_leaves_the_child_free(script, store):
    script("""
        for _ in range(10):
            app.close()
            thread = threading.Thread(target=task.enqueue)
            thread.start()
            ended(forked(task.enqueue))
            thread.join()
    """)
    assert jobs_in(store) == 20


def test_locks_that_others_held_at_the_fork_are_free_in_the_child(script, store):
    script("""
        task.enqueue()
        with app._facade._lock:
            child = forked(lambda: (task.enqueue(), app.close()))
        ended(child)
    """)
    assert jobs_in(store) == 2


def test_waiting_for_a_result_survives_a_fork_in_the_parent(script):
    script("""
        handle = task.enqueue()
        waiting = threading.Thread(target=lambda: handle.result(timeout=20))
        waiting.start()
        ended(forked(lambda: handle.status()))
        with app.worker_thread():
            waiting.join()
    """)


def test_a_child_that_forgets_leaves_the_parents_handle_alone(script, store):
    script("""
        task.enqueue()
        ended(forked(lambda: None))
        ended(forked(lambda: app.close()))
        task.enqueue()
        app.close()
    """)
    assert jobs_in(store) == 2


def test_jobs_of_a_child_survive_the_end_of_its_parent(script, store):
    script("""
        task.enqueue()
        tell, hear = os.pipe(), os.pipe()

        def child():
            task.enqueue()
            os.write(tell[1], b".")
            os.read(hear[0], 1)
            for _ in range(10):
                task.enqueue()

        pid = forked(child)
        os.read(tell[0], 1)
        app.close()
        os.write(hear[1], b".")
        ended(pid)
    """)
    assert jobs_in(store) == 12


def test_a_fork_inside_a_running_loop_leaves_the_parent_alone(script, store):
    script("""
        async def main():
            await task.aenqueue()
            ended(forked(lambda: (task.enqueue(), app.close(), os._exit(0))))
            await task.aenqueue()

        asyncio.run(main())
    """)
    assert jobs_in(store) == 3


def test_multiprocessing_children_enqueue_through_the_app_they_inherit(script, store):
    script("""
        import multiprocessing

        def enqueues(number):
            return task.enqueue(number).id

        task.enqueue()
        with multiprocessing.get_context("fork").Pool(3) as pool:
            assert len(set(pool.map(enqueues, range(30)))) == 30
    """)
    assert jobs_in(store) == 31


def test_a_store_in_memory_does_not_follow_into_the_child(script):
    script(
        """
        def child():
            assert app.counts() == []
            task.enqueue()
            assert len(app.counts()) == 1

        task.enqueue_many([()] * 3)
        ended(forked(child))
        assert sum(count.jobs for count in app.counts()) == 3
        """,
        url="memory://by-name",
    )


def test_a_worker_thread_stays_with_the_parent(script, store):
    script("""
        with app.worker_thread() as worker:
            task.enqueue().result(timeout=20)
            ended(forked(lambda: (worker.stop(), task.enqueue())))
            task.enqueue().result(timeout=20)
    """)
    assert jobs_in(store) == 3


def test_gunicorn_workers_enqueue_through_the_app_they_were_preloaded_with(tmp_path, store):
    """The master uses the app before it forks; each request is served by a worker's own handle."""
    (tmp_path / "shop.py").write_text(
        START.replace("sys.argv[1]", repr(store))
        + textwrap.dedent("""
            task.enqueue()

            def serve(environ, start_response):
                id = task.enqueue().id
                start_response("200 OK", [("Content-Type", "text/plain")])
                return [f"{os.getpid()} {id}".encode()]
        """)
    )
    path = tmp_path / "gunicorn.sock"
    options = ("--preload", "--workers=2", f"--bind=unix:{path}", "--log-level=warning")
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *options, "shop:serve"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        answers = [_request(str(path)) for _ in range(40)]
    finally:
        server.terminate()
        _, err = server.communicate(timeout=30)
    assert err == ""
    assert {status for status, _ in answers} == {200}
    assert str(server.pid) not in {body.split()[0] for _, body in answers}
    assert len({body.split()[1] for _, body in answers}) == 40
    assert jobs_in(store) == 41


def _request(path: str) -> tuple[int, str]:
    """Ask a server on a socket, as soon as it is there."""
    deadline = time.monotonic() + 30
    while True:
        connection = http.client.HTTPConnection("shop")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(30)
        try:
            connection.sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            continue
        connection.request("GET", "/")
        answer = connection.getresponse()
        try:
            return answer.status, answer.read().decode()
        finally:
            connection.close()


# --- spawn --------------------------------------------------------------------------------------


def test_spawned_children_enqueue_through_an_app_of_their_own(script, store):
    script("""
        import multiprocessing

        def enqueues(number):
            return task.enqueue(number).id

        if __name__ == "__main__":
            task.enqueue()
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                assert len(set(pool.map(enqueues, range(10)))) == 10
    """)
    assert jobs_in(store) == 11


# --- exit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"], indirect=True)
def test_an_app_that_is_not_closed_exits_without_a_sound(script):
    script("task.enqueue(); asyncio.run(task.aenqueue())", options=("-X", "dev"))


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_the_last_process_to_exit_leaves_no_log_beside_the_file(script, tmp_path):
    script("task.enqueue()")
    assert not (tmp_path / "jobs.db-wal").exists()


def test_daemon_threads_that_enqueue_do_not_disturb_the_exit(script):
    script("""
        begun = threading.Event()

        def enqueues():
            while True:
                task.enqueue()
                begun.set()

        for _ in range(4):
            threading.Thread(target=enqueues, daemon=True).start()
        begun.wait()
    """)


def test_daemon_threads_that_wait_do_not_disturb_the_exit(script):
    script("""
        handle = task.enqueue()
        threading.Thread(target=handle.result, daemon=True).start()
        handle.status()
    """)


def test_a_last_enqueue_at_exit_is_stored(script, store):
    script("""
        import atexit
        task.enqueue()
        atexit.register(task.enqueue)
    """)
    assert jobs_in(store) == 2


def test_a_first_enqueue_at_exit_is_stored_or_refused_by_name(tmp_path, store):
    """In Python 3.12 no thread can be started then."""
    file = tmp_path / "script.py"
    file.write_text(START + "import atexit\natexit.register(task.enqueue)\n")
    done = subprocess.run(
        [sys.executable, str(file), store], capture_output=True, text=True, timeout=60
    )
    if done.stderr:
        assert f"{store} is not open; open it first" in done.stderr
    else:
        assert jobs_in(store) == 1


def test_a_worker_thread_does_not_keep_the_process_alive(script, store):
    script("""
        @app.task(name="long")
        def long() -> None:
            begun.set()
            threading.Event().wait(60)

        begun = threading.Event()
        app.worker_thread().start()
        long.enqueue()
        begun.wait(20)
    """)
    with Penstock(store) as app:
        assert [job.state for job in app.find().jobs] == ["ready"]


# --- signals ------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_wait_for_a_result(script):
    process = script(
        """
        handle = task.enqueue()
        try:
            print("waiting", flush=True)
            handle.result()
        except KeyboardInterrupt:
            print("interrupted", handle.status().state, flush=True)

        async def who_waits(client):
            for _ in range(20):
                await asyncio.sleep(0)
            return client._results._waiting

        assert app._facade.call(who_waits) == {}
        """,
        waits=False,
    )
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("interrupted ready\n", "", 0)


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"], indirect=True)
def test_interruptions_at_any_moment_leave_everything_in_order(script):
    """As Ctrl-C does: an exception out of nowhere, in the middle of whatever a caller does."""
    out = script("""
        import random

        class Interrupted(BaseException): ...

        def interrupt(*_):
            raise Interrupted

        task.enqueue()
        signal.signal(signal.SIGALRM, interrupt)
        interrupted = 0
        for round in range(1500):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.random() * 0.0003)
                task.enqueue()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert task.enqueue().created
        with Penstock(sys.argv[1]) as other:  # no lock is left behind
            other.enqueue("task")
        print(interrupted)
    """)
    assert int(out) > 100


def test_interruptions_in_a_row_leave_no_lock_behind(script, store):
    """The second comes while the first is being tidied up after, and so does the third."""
    process = script(
        """
        import subprocess, textwrap

        class Interrupted(BaseException): ...

        signals = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM]
        tormentor = textwrap.dedent('''
            import os, random, sys, time
            pid, *signals = map(int, sys.argv[1:])
            for _ in range(1000):
                for signal in signals:
                    os.kill(pid, signal)
                time.sleep(random.random() * 0.001)
        ''')
        left = interrupted = 0

        def interrupt(*_):
            global left, interrupted
            if left > 0:
                left -= 1
                interrupted += 1
                raise Interrupted

        def once():
            global left
            left = len(signals)
            task.enqueue()
            left = 0

        def caught(work):
            global left
            try:
                work()
            except Interrupted:
                left = min(left, 1)

        task.enqueue()
        for number in signals:
            signal.signal(number, interrupt)
        arguments = [str(int(number)) for number in (os.getpid(), *signals)]
        running = subprocess.Popen([sys.executable, "-c", tormentor, *arguments])
        while running.poll() is None:
            caught(lambda: caught(lambda: caught(once)))
            left = 0
        with Penstock(sys.argv[1]) as other:
            assert other.enqueue("task").created
        thread = threading.Thread(target=task.enqueue, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert task.enqueue().created
        print(interrupted)
        """,
        waits=False,
    )
    try:
        out, _ = process.communicate(timeout=60)  # what finalisers say of it is no matter
    finally:
        process.kill()
    assert process.returncode == 0
    assert int(out) > 100


def test_a_time_out_by_signal_is_the_callers_and_not_the_stores(script):
    """The usual alarm raises ``TimeoutError``, which is an ``OSError``, too."""
    script("""
        def alarm(*_):
            raise TimeoutError("enough")

        signal.signal(signal.SIGALRM, alarm)
        task.enqueue()

        passed = []

        def in_the_middle(frame, event, _):
            if event == "call" and "/engines/" in frame.f_code.co_filename:
                passed.append(frame.f_code.co_name)
            if len(passed) == 5:
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGALRM)

        sys.setprofile(in_the_middle)
        try:
            task.enqueue()
        except TimeoutError as error:
            assert str(error) == "enough", error
        else:
            raise AssertionError(f"it was swallowed: {passed}")
        finally:
            sys.setprofile(None)
        assert sum(count.jobs for count in app.counts()) == 1
    """)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_an_interruption_while_a_fork_waits_leaves_no_connection_and_no_lock(script, store):
    script("""
        from penstock.engines.sqlite import connection

        class Interrupted(BaseException): ...

        def interrupt(*_):
            raise Interrupted

        ignored = []
        sys.unraisablehook = lambda caught: ignored.append(caught.exc_type)
        signal.signal(signal.SIGALRM, interrupt)
        task.enqueue()
        engine = app._facade._thread.engine.inner

        class Lock:
            '''One that is interrupted when it is taken for the fork.'''

            def acquire(self):
                if not ignored and not hits:
                    hits.append(1)
                    os.kill(os.getpid(), signal.SIGALRM)
                return lock.acquire()

            def __getattr__(self, name):
                return getattr(lock, name)

            def __enter__(self):
                lock.acquire()

            def __exit__(self, *_):
                lock.release()

        hits, lock = [], engine._connection.lock
        engine._connection.lock = Lock()
        child = os.fork()
        if child == 0:
            os._exit(any(each.raw is not None for each in connection._connections))
        ended(child)
        assert ignored == [Interrupted], ignored
        for _ in range(2):
            ended(forked(task.enqueue))
            task.enqueue()
    """)
    assert jobs_in(store) == 5


def test_a_signal_handler_may_enqueue_while_the_first_use_opens_the_store(script, store):
    source = """
        import penstock.sync

        class LoopThread(penstock.sync.LoopThread):
            def __init__(self, *given):
                if not handled:
                    os.kill(os.getpid(), signal.SIGUSR1)
                super().__init__(*given)

        handled = []

        def handler(*_):
            handled.append(1)
            task.enqueue(1)

        penstock.sync.LoopThread = LoopThread
        signal.signal(signal.SIGUSR1, handler)
        task.enqueue(2)
        print(len(handled), sum(count.jobs for count in app.counts()))
        app.close()
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join(20)
        print(threading.active_count())
    """
    assert script(source).split() == ["1", "2", "1"]
