"""What becomes of an attempt when its child dies, wherever that happens; and of the child."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from penstock.core.job import OutcomeKind
from penstock.worker.child import process as child_process
from penstock.worker.child.messages import FROM_CHILD, AttemptDone, Reader, packed, write
from penstock.worker.inflight import Attempt, Ending
from worker import victims
from worker.process_pool_bench import PATIENCE, Bench

TESTS = Path(__file__).parent.parent


def from_module(name: str) -> victims.Declared:
    """A task as if it were declared in another module."""

    def pid() -> None: ...

    pid.__module__, pid.__qualname__ = name, "pid"
    return victims.isolated(pid, "isolated.pid")


# --- the table ----------------------------------------------------------------------------------


async def test_an_idle_child_that_died_costs_the_next_attempt_nothing(bench: Bench):
    first = await bench.run(victims.PID)
    os.kill(int(first.result or b"0"), signal.SIGKILL)
    second = await bench.run(victims.PID)

    assert second.kind is OutcomeKind.SUCCEEDED
    assert second.result != first.result


async def test_a_child_that_dies_on_the_way_to_its_task_gives_way_to_another(
    bench: Bench, tmp_path, monkeypatch
):
    (tmp_path / "shaky.py").write_text(
        "import os\n"
        "from worker.victims import *\n"
        f"if not os.path.exists({str(tmp_path / 'once')!r}):\n"
        f"    open({str(tmp_path / 'once')!r}, 'w').close()\n"
        "    os._exit(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    outcome = await bench.run(from_module("shaky"))

    assert (tmp_path / "once").exists()
    assert outcome.kind is OutcomeKind.SUCCEEDED


async def test_a_task_that_no_child_lives_to_reach_fails_and_says_how_they_died(
    bench: Bench, tmp_path, monkeypatch
):
    (tmp_path / "deadly.py").write_text(
        f"import os\nopen({str(tmp_path / 'deaths')!r}, 'a').write('x')\nos._exit(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    outcome = await bench.run(from_module("deadly"))

    assert (tmp_path / "deaths").read_text() == "xxx"
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.reason == (
        "penstock.errors.CannotIsolate: isolated.pid cannot run in a child process: "
        "3 in a row died on the way to it, the last one exited with 3; see its standard error"
    )


async def test_a_child_that_never_reaches_its_task_is_killed(bench: Bench, tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(child_process, "START_UP", 0.05)
    outcome = await bench.run(from_module("endless"))

    assert "the last one did not reach the task in 50ms" in (outcome.reason or "")


@pytest.mark.parametrize(
    ("task", "how"),
    [
        (victims.ISOLATED_EXITS, "exited with 7"),
        (victims.ISOLATED_IS_KILLED, "was killed by SIGKILL"),
    ],
    ids=["exits", "is_killed"],
)
async def test_an_attempt_whose_child_dies_in_it_has_crashed(bench: Bench, task, how):
    outcome = await bench.run(task)
    after = await bench.run(victims.PID)

    assert outcome.kind is OutcomeKind.CRASHED
    assert outcome.reason == f"its process {how}"
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.message) == ("crash", f"its process {how}")
    assert after.kind is OutcomeKind.SUCCEEDED


async def test_a_child_that_was_stopped_as_it_told_its_outcome_is_believed(
    bench: Bench, monkeypatch
):
    """The kill comes when the outcome is in the pipe already."""
    receive = child_process.ChildProcess.receive

    def late(self: child_process.ChildProcess, timeout: float | None = None) -> object:
        frame = receive(self, timeout)
        if isinstance(frame, AttemptDone):
            attempt.end(Ending.TIMEOUT)
            bench.pool.interrupt(attempt)
        return frame

    monkeypatch.setattr(child_process.ChildProcess, "receive", late)
    attempt = bench.start(victims.PID)
    first = await bench.outcome(attempt)
    monkeypatch.undo()
    second = await bench.run(victims.PID)

    assert first.kind is second.kind is OutcomeKind.SUCCEEDED
    assert first.result != second.result


async def test_a_child_that_speaks_nonsense_is_killed_and_its_attempt_has_crashed(bench: Bench):
    outcome = await bench.run(victims.WRITES_ANYWHERE)

    assert outcome.kind is OutcomeKind.CRASHED
    assert "wrote what cannot be read" in (outcome.reason or "")


async def test_a_handler_that_closes_all_files_has_crashed(bench: Bench):
    outcome = await bench.run(victims.CLOSES_ALL_FILES)
    after = await bench.run(victims.PID)

    assert outcome.kind is OutcomeKind.CRASHED
    assert after.kind is OutcomeKind.SUCCEEDED


# --- no child to be had -------------------------------------------------------------------------


async def test_a_task_that_cannot_be_imported_fails_and_says_why(bench: Bench):
    outcome = await bench.run(from_module("there.is.none"))
    after = await bench.run(victims.PID)

    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.reason == (
        "penstock.errors.CannotIsolate: isolated.pid cannot run in a child process: "
        "ModuleNotFoundError: No module named 'there'; "
        "a child must be able to import its module, and to start up"
    )
    assert after.kind is OutcomeKind.SUCCEEDED


async def test_a_task_inside_a_function_fails_and_says_why(bench: Bench):
    def closure() -> None: ...

    outcome = await bench.run(victims.isolated(closure))

    assert outcome.reason == (
        "penstock.errors.CannotIsolate: isolated.closure cannot run in a child process: a child "
        "process cannot import it from inside another function; declare it at the top level of "
        "a module"
    )


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EAGAIN])
async def test_no_room_for_a_process_is_a_failure_of_the_attempt(bench: Bench, monkeypatch, number):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    outcome = await bench.run(victims.PID)
    monkeypatch.undo()

    assert outcome.kind is OutcomeKind.FAILED
    assert os.strerror(number) in (outcome.reason or "")
    assert (await bench.run(victims.PID)).kind is OutcomeKind.SUCCEEDED


async def test_an_interpreter_that_is_gone_is_a_failure_of_the_attempt(bench: Bench, monkeypatch):
    monkeypatch.setattr(child_process, "get_executable", lambda: "/there/is/none")
    outcome = await bench.run(victims.PID)

    assert "No such file or directory: '/there/is/none'" in (outcome.reason or "")


async def test_no_room_for_a_thread_is_a_failure_of_the_attempt(bench: Bench, monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    outcome = await bench.run(victims.PID)
    monkeypatch.undo()

    assert "RuntimeError: can't start new thread" in (outcome.reason or "")
    assert (await bench.run(victims.PID)).kind is OutcomeKind.SUCCEEDED


def test_a_pool_whose_loop_is_closed_lets_its_child_end():
    async def begin() -> Bench:
        bench = Bench(1)
        attempt = bench.start(victims.ISOLATED_HANGS)
        await bench.begun(attempt)
        return bench

    bench = asyncio.run(begin())
    (seat,) = bench.pool._seats
    attempt = seat.attempt
    assert attempt is not None
    bench.stop(attempt, Ending.SHUTDOWN)
    (thread,) = bench.pool._threads
    thread.join(PATIENCE)

    assert not thread.is_alive()


# --- the child ends with its worker -------------------------------------------------------------

WORKER = """
import asyncio, json, os, signal, sys
from worker import victims
from worker.process_pool_bench import Bench

async def main(path, then):
    bench = Bench(1)
    payload = json.dumps({"path": path, "then": then}).encode()
    attempt = bench.start(victims.LOCKS, payload=payload)
    await bench.until(lambda: bench.results or os.path.exists(path + ".has"))
    if sys.argv[3] == "fork" and os.fork() == 0:
        os.close(1)
        signal.pause()
    print("ready", os.getpid(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:3]))
"""


@pytest.mark.parametrize("then", ["hang", "return"], ids=["busy", "idle"])
@pytest.mark.parametrize("copy", ["plain", "fork"])
def test_a_child_ends_with_a_worker_that_is_killed_and_takes_along_what_it_started(
    tmp_path, then, copy
):
    """The lock is free when all who have it are dead; a fork of the worker keeps nobody alive."""
    path = tmp_path / "lock"
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", WORKER, str(path), then, copy]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith(b"ready")
        os.kill(worker.pid, signal.SIGKILL)
        try:
            taken = threading.Thread(target=_take, args=(path,), daemon=True)
            taken.start()
            taken.join(PATIENCE)
            assert not taken.is_alive()
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


def _take(path: Path) -> None:
    with open(path) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


# --- races --------------------------------------------------------------------------------------


async def test_kills_that_race_with_success_give_exactly_one_outcome_each(benches):
    """Every attempt ends once: as a success, or as what it was killed for; and a kill never hits
    the attempt that comes after in the same child.
    """
    bench: Bench = benches(size=2)
    chance = Random(7)
    attempts = [
        bench.attempt(victims.SPINS, payload=b'{"rounds": %d}' % chance.randrange(100_000))
        for _ in range(500)
    ]
    killed = set(chance.sample(attempts, 40))

    def kill(attempt: Attempt) -> None:
        if attempt in killed:
            bench.stop(attempt, Ending.TIMEOUT)

    bench.pool._begun = kill
    outcomes = await bench.run_all(attempts)

    assert len(bench.results) == 500
    kinds = {attempt: outcome.kind for attempt, outcome in zip(attempts, outcomes, strict=True)}
    spared = {kinds[attempt] for attempt in attempts if attempt not in killed}
    assert spared == {OutcomeKind.SUCCEEDED}
    assert {kinds[each] for each in killed} <= {OutcomeKind.SUCCEEDED, OutcomeKind.FAILED}


def test_a_message_of_any_length_arrives_whole_through_a_pipe_that_takes_little():
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    sent = AttemptDone(None, None)
    noise = [packed(sent)] * 20_000
    writer = threading.Thread(target=write, args=(theirs, b"".join(noise)))
    writer.start()
    reader = Reader(ours, FROM_CHILD)
    got = [reader.next() for _ in noise]
    writer.join(PATIENCE)
    for pipe in (ours, theirs):
        os.close(pipe)

    assert got == [sent] * 20_000
