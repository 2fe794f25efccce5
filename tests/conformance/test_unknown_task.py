"""Unknown tasks: a job waits for a worker that knows its task; it never fails, never spins."""

from __future__ import annotations

from conformance.steps import (
    claim,
    claim_one,
    ids,
    joined,
    joined_and_lifted,
    put,
    running,
    settle,
    stored,
)
from penstock.core.job import Hold, State
from penstock.engines import changes
from penstock.engines.records import WorkerInfo


async def held(engine, task="new", **fields):
    """A job whose worker did not know its task."""
    job = await running(engine, task=task, **fields)
    await settle(engine, job, "released", hold=Hold.UNKNOWN_TASK, hold_cause=task)
    return await stored(engine, job.id)


async def test_it_is_held_with_its_task_as_the_cause(engine):
    job = await held(engine)
    assert (job.state, job.hold, job.hold_cause) == (State.READY, Hold.UNKNOWN_TASK, "new")


async def test_it_is_not_claimed_again(engine):
    job = await held(engine)
    assert await claim(engine, job.queue, want=5) == []


async def test_it_did_not_fail(engine):
    job = await held(engine)
    assert (job.failures, job.crashes, job.errors) == (0, 0, ())


async def test_a_worker_that_joins_and_knows_the_task_lifts_the_hold(engine):
    job = await held(engine)
    await joined_and_lifted(engine, tasks=["other", "new"])
    lifted = await stored(engine, job.id)
    assert (lifted.hold, lifted.hold_cause, lifted.hold_until) == (None, None, None)
    assert ids(await claim(engine, job.queue)) == [job.id]


async def test_a_worker_that_does_not_know_the_task_leaves_the_hold(engine):
    job = await held(engine)
    await joined_and_lifted(engine, tasks=["other", "newer", "ne"])
    assert await stored(engine, job.id) == job


async def test_a_worker_that_learned_the_task_lifts_the_hold_by_joining_again(engine):
    job = await held(engine)
    worker = await joined_and_lifted(engine, tasks=["other"])
    await engine.join(WorkerInfo(id=worker, tasks=("other", "new")))
    assert (await stored(engine, job.id)).hold is Hold.UNKNOWN_TASK
    assert await changes.lift_known(engine, ("other", "new")) == 1
    assert (await stored(engine, job.id)).hold is None


async def test_all_jobs_of_the_task_in_all_queues_are_let_go(engine):
    jobs = [await held(engine) for _ in range(3)]
    other = await held(engine, "other")
    await joined_and_lifted(engine, tasks=["new"])
    assert [(await stored(engine, job.id)).hold for job in jobs] == [None] * 3
    assert (await stored(engine, other.id)).hold is Hold.UNKNOWN_TASK


async def test_many_jobs_of_the_task_are_let_go_in_batches(engine):
    jobs = [await held(engine) for _ in range(5)]
    await joined(engine, tasks=["new"])
    assert await changes.lift_known(engine, ["new"], batch=2) == 5
    assert [(await stored(engine, job.id)).hold for job in jobs] == [None] * 5
    assert await changes.lift_known(engine, ["new"], batch=2) == 0


async def test_only_holds_for_the_task_are_lifted(engine):
    job = await running(engine, task="new")
    await settle(engine, job, "released", hold=Hold.BREAKER, hold_cause="new", delay=60)
    await joined_and_lifted(engine, tasks=["new"])
    assert (await stored(engine, job.id)).hold is Hold.BREAKER


async def test_it_is_not_held_while_a_worker_with_a_lease_knows_the_task(engine):
    await joined(engine, tasks=["new"])
    job = await held(engine)
    assert (job.hold, job.hold_cause) == (None, None)
    assert (await claim_one(engine, job.queue)).id == job.id


async def test_it_is_held_when_the_worker_that_knew_the_task_has_left(engine):
    worker = await joined(engine, tasks=["new"])
    await engine.leave(worker)
    assert (await held(engine)).hold is Hold.UNKNOWN_TASK


async def test_it_can_be_cancelled(engine):
    job = await held(engine)
    await changes.cancel(engine, [job.id], "enough")
    assert (await stored(engine, job.id)).state is State.CANCELLED


async def test_a_worker_avoids_tasks_it_does_not_know(engine):
    await put(engine, task="new")
    behind = await put(engine)
    claimed = await claim(engine, want=5, avoid=frozenset({"new"}))
    assert ids(claimed) == [behind]
