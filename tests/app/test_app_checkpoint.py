"""Progress and checkpoints, as they are in the store when a worker has run a task."""

from __future__ import annotations

import threading

import pytest

from penstock import INJECTED, Context, Penstock, Retry
from penstock.errors import JobFailed
from penstock.testing import Sandbox


def work(ctx: Context = INJECTED) -> int:
    """Fails twice on its way; each attempt goes on where the one before has stopped."""
    rows: list[int] = []
    for row in range(ctx.saved or 0, 10):
        if row == 3 * ctx.attempt and row < 9:
            raise Retry(0, f"row {row} is locked")
        rows.append(row)
        ctx.checkpoint(row + 1)
        ctx.progress((row + 1) / 10, f"row {row}")
    return len(rows)


async def awork(ctx: Context = INJECTED) -> int:
    return work(ctx)


@pytest.mark.every_engine
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_task_goes_on_where_it_stopped_and_its_last_progress_is_kept(
    app: Penstock, kind: str
) -> None:
    function = awork if kind == "coroutine" else work
    task = app.task(name="work")(function)
    with app.worker_thread():
        handle = task.enqueue()
        assert handle.result(timeout=60) == 4  # of the third attempt: rows 6 to 9
    job = handle.status()
    assert (job.progress, job.note) == (1.0, "row 9")
    assert (job.attempt, job.failures, job.checkpoint) == (3, 2, 10)


@pytest.mark.every_engine
def test_progress_right_before_a_failure_is_kept_too(app: Penstock) -> None:
    @app.task(name="fail", retries=0)
    def fail(ctx: Context = INJECTED) -> None:
        ctx.progress(0.9, "nearly")
        ctx.checkpoint("here")
        raise ValueError("no")

    with app.worker_thread():
        handle = fail.enqueue()
        with pytest.raises(JobFailed):
            handle.result(timeout=60)
    job = handle.status()
    assert (job.progress, job.note, job.checkpoint) == (0.9, "nearly", "here")


@pytest.mark.every_engine
def test_a_job_that_a_person_sends_back_goes_on_where_it_stopped(app: Penstock) -> None:
    @app.task(name="seen", retries=0)
    def seen(ctx: Context = INJECTED) -> int:
        if ctx.saved is None:
            ctx.checkpoint(7)
            raise ValueError("no")
        return int(ctx.saved)

    with app.worker_thread():
        handle = seen.enqueue()
        with pytest.raises(JobFailed):
            handle.result(timeout=60)
        handle.retry()
        assert handle.result(timeout=60) == 7


def test_progress_can_be_read_while_the_task_runs(app: Penstock) -> None:
    goes_on = threading.Event()

    @app.task(name="slow")
    def slow(ctx: Context = INJECTED) -> None:
        ctx.progress(0.25, "a quarter")
        ctx.checkpoint(1)
        goes_on.wait(60)

    with app.worker_thread():
        handle = slow.enqueue()
        try:
            deadline = app.clock.monotonic() + 60
            while (job := handle.status()).progress is None:
                assert app.clock.monotonic() < deadline
                threading.Event().wait(0.01)
        finally:
            goes_on.set()
        assert (job.progress, job.note, job.checkpoint) == (0.25, "a quarter", 1)


def test_a_sandbox_keeps_them_as_a_store_does(memory: Penstock) -> None:
    task = memory.task(name="work")(work)
    with Sandbox(memory) as t:
        handle = task.enqueue()
        t.drain()
        job = handle.status()
        assert (job.progress, job.checkpoint, job.attempt) == (1.0, 10, 3)
        assert handle.result() == 4


def test_what_was_saved_before_a_crash_is_there_after_it(memory: Penstock) -> None:
    saw: list[object] = []

    @memory.task(name="saves")
    def saves(ctx: Context = INJECTED) -> None:
        saw.append(ctx.saved)
        ctx.checkpoint(ctx.attempt)

    with Sandbox(memory) as t:
        saves.enqueue()
        t.crash(saves, at="after")
        t.drain()
        t.advance("1m")
    assert saw == [None, 1]
