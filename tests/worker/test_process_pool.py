"""ProcessPool: attempts run in processes that are reused, stopped, measured and replaced."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from importlib import import_module

import pytest

from penstock.core.job import OutcomeKind
from penstock.worker import process_pool as pool_module
from penstock.worker.child.process import ChildProcess
from penstock.worker.inflight import Ending
from worker import victims
from worker.process_pool_bench import Bench


async def test_attempts_run_in_a_child_which_is_used_again(bench: Bench):
    first = await bench.run(victims.PID)
    second = await bench.run(victims.PID)

    assert first.kind is OutcomeKind.SUCCEEDED
    assert first.result == second.result != str(os.getpid()).encode()


async def test_there_are_never_more_children_than_the_size(benches):
    bench = benches(size=2)
    outcomes = await bench.run_all([bench.attempt(victims.PID) for _ in range(50)])

    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.SUCCEEDED}
    assert len({outcome.result for outcome in outcomes}) <= 2
    assert bench.pool.load == 0
    assert bench.pool.is_quiet


async def test_no_child_is_started_before_it_is_needed(bench: Bench):
    assert bench.children == []


async def test_async_tasks_share_one_loop_for_the_life_of_a_child(bench: Bench):
    loops = [await bench.run(victims.LOOP_OF_COROUTINE) for _ in range(2)]
    process = await bench.run(victims.PID_OF_COROUTINE)

    assert loops[0].result == loops[1].result
    assert process.result != str(os.getpid()).encode()


async def test_an_error_comes_with_its_traceback_from_the_handler_on(bench: Bench):
    outcome = await bench.run(victims.ISOLATED_FAILS)

    assert (outcome.kind, outcome.delay) == (OutcomeKind.RETRY, 1000)
    assert outcome.reason == "ValueError: as always"
    assert outcome.error is not None
    assert "in fails" in (outcome.error.traceback or "")
    assert "penstock" not in (outcome.error.traceback or "")
    assert outcome.error.worker == "worker"


async def test_a_mebibyte_goes_in_and_out(bench: Bench):
    text = "ß" * (1 << 19)
    payload = json.dumps({"text": text}, ensure_ascii=False).encode()
    outcome = await bench.run(victims.ECHOES, payload=payload)

    assert outcome.result is not None
    assert json.loads(outcome.result) == text


async def test_a_handler_that_reads_and_prints_does_not_disturb_the_talk(bench: Bench):
    outcome = await bench.run(victims.READS_AND_PRINTS)

    assert outcome.result == b"[]"


async def test_what_a_handler_leaves_behind_does_not_break_the_next_attempt(bench: Bench):
    before = await bench.run(victims.MISBEHAVES)
    after = [await bench.run(victims.PID), await bench.run(victims.PID_OF_COROUTINE)]

    assert [outcome.result for outcome in after] == [before.result] * 2


async def test_a_handler_that_stops_the_loop_fails_and_the_child_goes_on(bench: Bench):
    outcome = await bench.run(victims.STOPS_ITS_LOOP)
    after = await bench.run(victims.PID_OF_COROUTINE)

    assert (outcome.kind, after.kind) == (OutcomeKind.FAILED, OutcomeKind.SUCCEEDED)
    assert "Event loop stopped" in (outcome.reason or "")


async def test_a_handler_may_have_a_pool_of_forked_processes(bench: Bench):
    outcome = await bench.run(victims.FORKS_A_POOL)

    assert outcome.result == b"3"


async def test_a_handler_can_end_what_it_starts(bench: Bench):
    outcome = await bench.run(victims.TERMINATES_WHAT_IT_STARTS)

    assert outcome.result == str(-signal.SIGTERM).encode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_all_processes_of_a_service_leaves_attempts_alone(
    bench: Bench, tmp_path, number
):
    go = tmp_path / "go"
    attempt = bench.start(victims.SHOWS_LIFE, payload=json.dumps({"to": str(go)}).encode())
    await bench.until(lambda: attempt.context.alive_at is not None)
    os.kill(bench.children[0], number)
    first = attempt.context.alive_at
    await bench.until(lambda: attempt.context.alive_at != first)
    go.touch()

    assert (await bench.outcome(attempt)).kind is OutcomeKind.SUCCEEDED


# --- signs of life ------------------------------------------------------------------------------


async def test_progress_comes_out_of_the_child_while_it_runs(bench: Bench):
    attempt = bench.start(victims.ISOLATED_HANGS)
    await bench.until(lambda: attempt.context._latest == (0.25, "hanging"))
    bench.stop(attempt, Ending.SHUTDOWN)

    assert (await bench.outcome(attempt)).kind is OutcomeKind.RELEASED


async def test_the_last_progress_before_the_end_is_not_lost(bench: Bench):
    attempt = bench.start(victims.REPORTS_ONCE)
    await bench.outcome(attempt)

    report = attempt.context.take_report()
    assert report is not None
    assert (report.fraction, report.note) == (0.75, "almost")


@pytest.mark.parametrize("task", [victims.SHOWS_LIFE, victims.LOGS_LIFE], ids=["alive", "logs"])
async def test_signs_of_life_come_out_of_the_child_again_and_again(bench: Bench, task, tmp_path):
    go = tmp_path / "go"
    attempt = bench.start(task, payload=json.dumps({"to": str(go)}).encode())
    await bench.until(lambda: attempt.context.alive_at is not None)
    first = attempt.context.alive_at
    await bench.until(lambda: attempt.context.alive_at != first)
    go.touch()

    assert (await bench.outcome(attempt)).kind is OutcomeKind.SUCCEEDED


# --- stopping -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending.TIMEOUT, OutcomeKind.FAILED),
        (Ending.STALL, OutcomeKind.FAILED),
        (Ending.SHUTDOWN, OutcomeKind.RELEASED),
        (Ending.LOST, None),
    ],
)
async def test_what_must_end_is_killed_and_the_next_attempt_gets_a_new_child(
    bench: Bench, ending, kind
):
    attempt = bench.start(victims.ISOLATED_HANGS)
    await bench.begun(attempt)
    (old,) = bench.children
    bench.stop(attempt, ending)
    outcome = await bench.ended(attempt)
    after = await bench.run(victims.PID)

    assert (outcome.kind if outcome else None) is kind
    assert int(after.result or b"0") != old


async def test_a_timeout_counts_from_the_moment_the_handler_is_called(bench: Bench):
    attempt = bench.start(victims.ISOLATED_HANGS)
    assert attempt not in bench.began
    await bench.begun(attempt)
    assert bench.began == [attempt]
    bench.stop(attempt, Ending.TIMEOUT)

    outcome = await bench.outcome(attempt)
    assert outcome.reason == "TimeoutError: ran longer than its timeout, 16m40s"


async def test_a_cancelled_handler_sees_it_and_its_child_lives_on(bench: Bench):
    before = await bench.run(victims.PID)
    attempt = bench.start(victims.ISOLATED_WATCHES)
    await bench.until(lambda: attempt.context._latest is not None)
    bench.stop(attempt, Ending.CANCEL)
    outcome = await bench.outcome(attempt)
    after = await bench.run(victims.PID)

    assert outcome.kind is OutcomeKind.CANCELLED
    assert after.result == before.result


async def test_a_cancelled_coroutine_is_cancelled_and_its_child_lives_on(bench: Bench):
    before = await bench.run(victims.PID)
    attempt = bench.start(victims.WAITS)
    await bench.until(lambda: attempt.context._latest is not None)
    bench.stop(attempt, Ending.CANCEL)
    outcome = await bench.outcome(attempt)
    after = await bench.run(victims.PID_OF_COROUTINE)

    assert outcome.kind is OutcomeKind.CANCELLED
    assert after.result == before.result


async def test_a_handler_that_ignores_its_cancellation_is_killed_when_somebody_insists(
    bench: Bench,
):
    attempt = bench.start(victims.ISOLATED_HANGS)
    await bench.begun(attempt)
    bench.stop(attempt, Ending.CANCEL)
    bench.pool.insist(attempt)

    assert (await bench.outcome(attempt)).kind is OutcomeKind.CANCELLED


async def test_an_attempt_that_must_end_while_its_child_starts_never_begins(bench, monkeypatch):
    starting, go = threading.Event(), threading.Event()

    class Slow(ChildProcess):
        def __init__(self) -> None:
            starting.set()
            assert go.wait(60)
            super().__init__()

    monkeypatch.setattr(pool_module, "ChildProcess", Slow)
    attempt = bench.start(victims.ISOLATED_HANGS)
    await bench.until(starting.is_set)
    assert not bench.pool.withdraw(attempt)
    bench.stop(attempt, Ending.CANCEL)
    bench.pool.insist(attempt)
    go.set()

    assert (await bench.outcome(attempt)).kind is OutcomeKind.CANCELLED
    assert bench.began == []
    assert (await bench.run(victims.PID)).kind is OutcomeKind.SUCCEEDED


async def test_stopping_one_attempt_never_hits_the_next_one_in_its_child(bench: Bench):
    first = bench.start(victims.PID)
    child = (await bench.outcome(first)).result
    second = bench.start(victims.ISOLATED_WATCHES)
    await bench.until(lambda: second.context._latest is not None)
    bench.stop(first, Ending.TIMEOUT)
    bench.pool.insist(first)
    bench.stop(second, Ending.CANCEL)

    assert (await bench.outcome(second)).kind is OutcomeKind.CANCELLED
    assert (await bench.run(victims.PID)).result == child


async def test_what_waits_for_a_child_can_be_withdrawn(bench: Bench):
    running = bench.start(victims.ISOLATED_HANGS)
    await bench.begun(running)
    waiting = bench.start(victims.PID)
    assert bench.pool.waiting == [waiting]

    assert bench.pool.withdraw(waiting)
    assert not bench.pool.withdraw(running)
    bench.stop(running, Ending.SHUTDOWN)
    await bench.outcome(running)
    assert [attempt for attempt, _ in bench.results] == [running]


async def test_closing_kills_what_runs_and_nobody_hears_of_it(bench: Bench):
    attempt = bench.start(victims.ISOLATED_HANGS)
    await bench.begun(attempt)
    bench.pool.close()

    assert await bench.ended(attempt) is None


# --- memory, and when a child is replaced -------------------------------------------------------


async def test_an_attempt_that_takes_more_memory_than_it_may_is_killed_and_says_so(bench: Bench):
    outcome = await bench.run(victims.SWELLS)

    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.error is not None
    assert outcome.error.kind == "penstock.errors.MemoryExceeded"
    used, _, rest = outcome.error.message.removeprefix("isolated.swells used ").partition(" ")
    assert int(used) > 150
    assert rest == (
        "MB of max_memory 150 MB and was killed; work in smaller pieces, or raise max_memory"
    )


async def test_a_child_that_kept_too_much_memory_is_not_used_again(bench: Bench, monkeypatch):
    monkeypatch.setattr(pool_module, "resident", lambda pid: 1 << 40)
    task = victims.isolated(victims.pid, "isolated.pid", max_memory=1 << 39)
    first, second = await bench.run(task), await bench.run(task)

    assert first.result != second.result


async def test_a_child_is_replaced_after_its_number_of_jobs(benches):
    bench = benches(size=1, max_jobs=2)
    outcomes = [await bench.run(victims.PID) for _ in range(4)]

    results = [outcome.result for outcome in outcomes]
    assert results[0] == results[1] != results[2] == results[3]


# --- hooks --------------------------------------------------------------------------------------

HOOKED = """
import os
import signal
import sys
from penstock import Penstock

app = Penstock("memory://")

def note(word):
    with open({notes!r}, "a") as notes:
        notes.write(f"{{word}}\\n")

@app.startup
def begin():
    note("begin")
    if os.path.exists({refuse!r}):
        raise OSError("not today")
    yield
    note("end")

@app.task(isolation="process", retries=0)
def work() -> None:
    note("work")

@app.task(isolation="process", retries=0)
async def await_work() -> None:
    note("await")
"""


@pytest.fixture
def hooked(tmp_path, monkeypatch):
    """A module with hooks; and the notes that they take."""
    notes, refuse = tmp_path / "notes", tmp_path / "refuse"
    (tmp_path / "hooked.py").write_text(HOOKED.format(notes=str(notes), refuse=str(refuse)))
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("hooked"), tmp_path
    del sys.modules["hooked"]


async def test_a_child_starts_up_before_its_first_attempt_and_shuts_down_at_its_end(
    bench: Bench, hooked
):
    module, place = hooked
    for task in (module.work, module.await_work, module.work):
        assert (await bench.run(task)).kind is OutcomeKind.SUCCEEDED
    bench.close()

    assert (place / "notes").read_text().split() == ["begin", "work", "await", "work", "end"]


async def test_an_attempt_whose_child_cannot_start_up_fails_and_the_next_one_tries_again(
    bench: Bench, hooked
):
    module, place = hooked
    (place / "refuse").touch()
    refused = await bench.run(module.work)
    (place / "refuse").unlink()
    taken = await bench.run(module.work)

    assert "OSError: not today; a child must be able to" in (refused.reason or "")
    assert taken.kind is OutcomeKind.SUCCEEDED
