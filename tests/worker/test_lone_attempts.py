"""Law 5: who was in a crash runs apart from the others, and only the killer pays."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from penstock.context import Context
from penstock.core.job import Hold, State
from penstock.engines import changes
from penstock.worker import dispatcher
from penstock.worker.child import process as child_process
from penstock.worker.child.find_task import TaskLocation
from penstock.worker.child.messages import AttemptBegan, RunAttempt
from penstock.worker.child.process import ChildProcess
from penstock.worker.worker import Worker
from worker import victims
from worker.rig import Rig, soon, specs


async def suspects(rig: Rig, *tasks: str) -> list[str]:
    """Jobs that were in one and the same crash."""
    ids = [await rig.put(task) for task in tasks]
    await rig.crash(*ids)
    assert {(await rig.job(id)).crashes for id in ids} == {1}
    return ids


async def suspect(rig: Rig, task: str) -> str:
    """A job that was in a crash."""
    (id,) = await suspects(rig, task)
    return id


@pytest.mark.parametrize(
    ("task", "how"), [("exits", "exited with 7"), ("is_killed", "was killed by SIGKILL")]
)
async def test_a_suspect_that_kills_its_own_process_crashes_to_the_limit_and_the_worker_lives(
    rig, task, how, caplog
):
    id = await suspect(rig, task)
    async with rig.working(victims.ALL):
        (job,) = await rig.meanwhile(rig.ended(id))
        (other,) = await rig.ended(await rig.put("innocent"))

    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors == [f'job given up job={id} reason="crashed 3 times: its process {how}"']

    assert (job.state, job.crashes, job.failures) == (State.FAILED, 3, 0)
    assert [error.kind for error in job.errors] == ["crash"] * 3
    assert [error.message for error in job.errors[1:]] == [f"its process {how}"] * 2
    assert other.result == str(os.getpid()).encode()


async def test_an_innocent_suspect_runs_in_a_child_and_succeeds(rig):
    ids = await suspects(rig, "innocent", "innocent_coroutine")
    async with rig.working(victims.ALL):
        first, second = await rig.ended(*ids)

    assert first.state is second.state is State.SUCCEEDED
    assert first.result != str(os.getpid()).encode()
    assert second.result == f'"{ids[1]}"'.encode()


async def test_of_those_in_one_crash_only_the_killer_pays(rig):
    innocent, killer, other = await suspects(rig, "innocent", "exits", "innocent_coroutine")
    async with rig.working(victims.ALL):
        jobs = await rig.meanwhile(rig.ended(innocent, killer, other))

    assert [job.state for job in jobs] == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED]


async def test_a_suspect_that_fails_in_its_child_is_retried_as_anywhere(rig):
    id = await suspect(rig, "fails")
    async with rig.working(victims.ALL):
        job = await rig.in_state(id, State.SCHEDULED)

    assert (job.failures, job.crashes, job.reason) == (1, 1, "ValueError: as always")
    assert job.errors[1].traceback is not None
    assert "in fails" in job.errors[1].traceback
    assert "runner.py" not in job.errors[1].traceback


async def test_progress_comes_out_of_the_child_and_a_cancellation_that_is_ignored_kills_it(rig):
    id = await suspect(rig, "hangs")
    async with rig.working(victims.ALL) as worker:
        await soon(_until(lambda: _latest(worker)))
        await changes.cancel(rig.engine, [id], "not needed")
        (job,) = await rig.meanwhile(rig.ended(id))

    assert job.state is State.CANCELLED


async def test_a_suspect_in_its_child_can_see_that_it_is_cancelled(rig):
    id = await suspect(rig, "watches")
    async with rig.working(victims.ALL) as worker:
        await soon(_until(lambda: _latest(worker)))
        await changes.cancel(rig.engine, [id], "not needed")
        (job,) = await rig.ended(id)  # without time passing: nobody insists

    assert job.state is State.CANCELLED


def _busy(worker: Worker) -> int:
    return sum(seat.is_told for seat in list(worker._dispatcher._suspects._seats))


def _latest(worker) -> bool:
    return any(attempt.context._latest for attempt in worker._dispatcher.inflight)


async def test_the_timeout_of_a_suspect_kills_its_child(rig):
    id = await suspect(rig, "hangs_briefly")
    async with rig.working(victims.ALL) as worker:
        await soon(_until(lambda: _latest(worker)))
        rig.clock.advance(5)
        job = await rig.in_state(id, State.SCHEDULED)

    assert job.errors[1].message == "ran longer than its timeout, 5s"


async def test_a_shutdown_kills_the_child_and_gives_the_job_back(rig):
    id = await suspect(rig, "hangs")
    async with rig.working(victims.ALL) as worker:
        await soon(_until(lambda: _latest(worker)))
        worker.stop(0)
        job = await rig.in_state(id, State.READY)

    assert (job.crashes, job.failures) == (1, 0)


async def test_suspects_that_find_no_room_wait_under_a_hold_not_in_the_workers_hands(rig):
    ids = await suspects(rig, *["hangs"] * 4)
    async with rig.working(victims.ALL, children=1) as worker:
        held = [await rig.when(id, lambda job: job.hold is Hold.LIMIT) for id in ids[2:]]
        assert worker._dispatcher._suspects.load == 2

    assert {(job.state, job.crashes) for job in held} == {(State.READY, 1)}


async def test_several_suspects_run_at_once_each_in_its_own_child(rig):
    ids = await suspects(rig, *["hangs"] * 3)
    async with rig.working(victims.ALL, children=3) as worker:
        await soon(_until(lambda: _busy(worker) == 3))
        for id in ids:
            await changes.cancel(rig.engine, [id], "enough")
        await rig.meanwhile(rig.ended(*ids))


async def test_a_child_ends_with_its_worker(rig):
    job = await rig.job(await suspect(rig, "hangs"))
    child = ChildProcess()
    location = TaskLocation(victims.__name__, "hangs")
    child.send(RunAttempt(number=1, job=job, location=location, worker="w", ahead=0.0))
    assert await soon(asyncio.to_thread(child.receive)) == AttemptBegan()
    child._close_orders()  # as the death of the worker does

    assert await soon(asyncio.to_thread(child.reap)) == -signal.SIGKILL


async def test_parting_from_a_child_that_died_before_it_listened_is_no_trouble(rig):
    job = await rig.job(await suspect(rig, "hangs"))
    child = ChildProcess()
    child.kill()
    assert await soon(asyncio.to_thread(child.receive)) is None

    child.send(
        RunAttempt(number=1, job=job, location=TaskLocation("none", "none"), worker="w", ahead=0.0)
    )
    child.stop(1)
    await soon(asyncio.to_thread(child.retire))


async def test_a_suspect_whose_own_children_live_on_can_be_cancelled(rig):
    """They have the pipes open by which the worker hears of its death."""
    id = await suspect(rig, "forks_and_hangs")
    async with rig.working(victims.ALL) as worker:
        await soon(_until(lambda: _latest(worker)))
        await changes.cancel(rig.engine, [id], "not needed")
        (job,) = await rig.meanwhile(rig.ended(id))

    assert job.state is State.CANCELLED


async def test_a_suspect_that_dies_before_its_own_children_is_found_out(rig):
    id = await suspect(rig, "forks_and_exits")
    async with rig.working(victims.ALL):
        (job,) = await rig.meanwhile(rig.ended(id))

    assert job.errors[-1].message == "its process exited with 7"


async def test_a_suspect_has_ended_when_its_handler_has_whatever_it_leaves_behind(rig, monkeypatch):
    monkeypatch.setattr(child_process, "LINGER", 0.0)
    id = await suspect(rig, "leaves_a_thread")
    async with rig.working(victims.ALL):
        (job,) = await rig.ended(id)

    assert (job.state, job.result) == (State.SUCCEEDED, b'"done"')


async def test_other_jobs_run_while_a_suspect_is_in_its_child(rig):
    id = await suspect(rig, "hangs")
    async with rig.working(victims.ALL) as worker:
        await soon(_until(lambda: _latest(worker)))
        (job,) = await rig.ended(await rig.put("innocent"))
        assert (await rig.job(id)).state is State.RUNNING

    assert job.state is State.SUCCEEDED


async def test_a_suspect_that_no_child_can_import_runs_alone(rig):
    together, started, go = [], asyncio.Event(), asyncio.Event()
    running = 0

    async def other() -> None:
        nonlocal running
        running += 1
        started.set()
        await go.wait()
        running -= 1

    async def closure() -> None:
        together.append(running)

    async with rig.working(specs(other, closure)) as worker:
        first = await rig.put("other")
        await soon(started.wait())
        id = await suspect(rig, "closure")
        await rig.in_state(id, State.RUNNING)
        await soon(_until(lambda: worker._gate.alone is not None))
        second = await rig.put("other")
        await rig.clock.settle()
        assert together == []
        assert (await rig.job(second)).state is State.READY
        go.set()
        (job, *_) = await rig.meanwhile(rig.ended(id, first, second))

    assert together == [0]
    assert job.state is State.SUCCEEDED


async def test_the_store_knows_that_a_suspect_begins_before_it_runs_in_this_process(rig):
    """If it kills the process, that is charged; so nothing may be lost between claim and start."""
    known = []

    async def closure(ctx: Context) -> None:
        known.append((await rig.job(ctx.id)).started)

    id = await suspect(rig, "closure")
    async with rig.working(specs(closure)):
        await rig.meanwhile(rig.ended(id))

    assert known == [True]


async def test_a_suspect_in_a_child_is_not_said_to_have_begun(rig):
    """What the worker dies of meanwhile is not its doing."""
    id = await suspect(rig, "hangs")
    async with rig.working(victims.ALL) as worker:
        await soon(_until(lambda: _latest(worker)))
        await rig.ended(await rig.put("innocent_coroutine"))
        assert id not in {job for ask in rig.main.asks for job, _ in ask.begun}


async def test_a_suspect_in_a_thread_runs_alone_too_and_can_be_given_back_before_it_starts(rig):
    started, go = threading.Event(), threading.Event()
    ran = []

    def other() -> None:
        started.set()
        assert go.wait(20)

    def closure() -> None:
        ran.append(1)

    async with rig.working(specs(other, closure)) as worker:
        await rig.put("other")
        await soon(asyncio.to_thread(started.wait, 20))
        id = await suspect(rig, "closure")
        await soon(_until(lambda: worker._gate.alone is not None))
        worker.stop(1000)
        job = await rig.in_state(id, State.READY)
        go.set()

    assert ran == []
    assert (job.crashes, job.failures) == (1, 0)


async def test_a_suspect_that_cannot_be_alone_for_long_goes_back_and_others_work_on(rig):
    started, go = asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        started.set()
        await go.wait()

    async def closure() -> None:
        pass

    async with rig.working(specs(endless, closure)) as worker:
        long = await rig.put("endless")
        await soon(started.wait())
        id = await suspect(rig, "closure")
        await soon(_until(lambda: worker._gate.alone is not None))
        other = await rig.put("closure")
        await rig.meanwhile(rig.ended(other))
        held = await rig.job(id)
        go.set()
        (job, *_) = await rig.meanwhile(rig.ended(id, long))

    assert (held.state, held.hold, held.crashes) == (State.READY, Hold.LIMIT, 1)
    assert job.state is State.SUCCEEDED


async def test_two_suspects_that_must_be_alone_run_one_after_the_other(rig):
    running, most = 0, 0

    async def closure() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10):
            await asyncio.sleep(0)
        running -= 1

    ids = await suspects(rig, *["closure"] * 5)
    async with rig.working(specs(closure)):
        jobs = await rig.meanwhile(rig.ended(*ids))

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert most == 1


# --- children that have survived a suspect ------------------------------------------------------


def spares(worker: Worker) -> list[ChildProcess]:
    """The children that wait for the next suspect."""
    seats = list(worker._dispatcher._suspects._seats)
    return [seat.child for seat in seats if seat.child is not None and seat.attempt is None]


async def spare(rig: Rig, worker: Worker) -> ChildProcess:
    """Let a suspect leave its child behind."""
    await rig.ended(await suspect(rig, "innocent"))
    await soon(_until(lambda: len(spares(worker)) == 1))
    return spares(worker)[0]


def is_gone(child: ChildProcess) -> bool:
    """It has ended and was reaped: it is no zombie, and its pipes are closed."""
    process = child._process
    assert process.stdin is not None
    assert process.stdout is not None
    return process.returncode is not None and process.stdin.closed and process.stdout.closed


async def test_the_next_suspect_runs_in_the_child_that_the_last_one_has_left(rig):
    async with rig.working(victims.ALL, children=1) as worker:
        child = await spare(rig, worker)
        (job,) = await rig.ended(await suspect(rig, "innocent"))
        await soon(_until(lambda: spares(worker) == [child]))

    assert job.result == str(child.pid).encode()
    await soon(_until(lambda: is_gone(child)))


async def test_a_child_that_died_while_it_had_nothing_to_do_costs_nobody_anything(rig):
    async with rig.working(victims.ALL, children=1) as worker:
        child = await spare(rig, worker)
        os.kill(child.pid, signal.SIGKILL)
        (job,) = await rig.ended(await suspect(rig, "innocent"))

    assert (job.state, job.crashes, job.failures) == (State.SUCCEEDED, 1, 0)
    assert job.result != str(child.pid).encode()
    assert is_gone(child)


async def test_a_child_that_no_suspect_comes_for_is_let_go(rig, monkeypatch):
    monkeypatch.setattr(dispatcher, "SUSPECT_IDLE", 0.0)
    async with rig.working(victims.ALL) as worker:
        (job,) = await rig.ended(await suspect(rig, "innocent"))
        pid = int(job.result or b"0")
        await soon(_until(lambda: not spares(worker) and not _is_alive(pid)))


async def test_a_worker_that_ends_as_a_child_answers_leaves_none_behind(rig):
    """The answer is on its way to the loop when the worker ends."""
    id = await suspect(rig, "innocent")
    async with rig.working(victims.ALL) as worker:
        seats = worker._dispatcher._suspects._seats
        await soon(_until(lambda: any(seat.child is not None for seat in seats)))
        children = [seat.child for seat in seats if seat.child is not None]
        worker.stop(0)

    assert (await rig.job(id)).state in (State.READY, State.SUCCEEDED)
    for child in children:
        await soon(_until(lambda child=child: is_gone(child)))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def _until(condition) -> None:
    while not condition():  # noqa: ASYNC110  (a child or a thread makes it true)
        await asyncio.sleep(0.001)
