"""Jobs that cannot simply start: of unknown tasks, expired, or more than there is room for."""

from __future__ import annotations

import asyncio
import logging

from penstock.core.job import Hold, State
from worker.rig import soon, spec, specs


async def work() -> None:
    pass


# --- unknown tasks ------------------------------------------------------------------------------


async def test_a_job_of_an_unknown_task_is_held_and_said_once(rig, caplog):
    async with rig.working(specs(work)):
        ids = [await rig.put("mystery") for _ in range(3)]
        jobs = [await rig.when(id, lambda job: job.hold is not None) for id in ids]
        await rig.ended(await rig.put("work"))

    assert {(job.state, job.hold, job.hold_cause) for job in jobs} == {
        (State.READY, Hold.UNKNOWN_TASK, "mystery")
    }
    assert {(job.failures, job.errors) for job in jobs} == {(0, ())}
    said = [record.getMessage() for record in caplog.records if "mystery" in record.getMessage()]
    assert len(said) == 1
    assert "import the module that declares it" in said[0]


async def test_the_names_of_unknown_tasks_are_avoided_for_a_minute(rig):
    async with rig.working(specs(work)):
        id = await rig.put("mystery")
        await rig.when(id, lambda job: job.hold is not None)
        await rig.ended(await rig.put("work"))
        assert rig.main.asks[-1].avoid == {"mystery"}
        await rig.pass_time(70)
        await rig.meanwhile(rig.ended(await rig.put("work")))
        assert rig.main.asks[-1].avoid == frozenset()


async def test_a_worker_that_knows_the_task_gets_the_held_job(rig):
    async with rig.working(specs(work)):
        id = await rig.put("mystery")
        await rig.when(id, lambda job: job.hold is not None)
        async with rig.working(specs(spec(work, "mystery"))):
            (job,) = await rig.ended(id)

    assert job.state is State.SUCCEEDED


async def test_a_worker_that_cannot_lift_holds_has_joined_all_the_same(rig, caplog):
    """A repair lifts them."""
    caplog.set_level(logging.INFO, "penstock.worker")
    async with rig.working(specs(work)) as worker:
        rig.main.fail("find")
        await rig.bury(worker.id)
        await rig.meanwhile(rig.ended(await rig.put("work")))
        assert f"worker joined worker={worker.id}" in caplog.text


# --- expiry -------------------------------------------------------------------------------------


async def test_a_job_that_expires_in_the_workers_hands_never_starts(rig):
    ran, first, go = [], asyncio.Event(), asyncio.Event()

    async def turn(n: int) -> None:
        ran.append(n)
        first.set()
        await go.wait()

    async with rig.working(specs(turn), concurrency=1, patience=1000) as worker:
        await rig.put("turn", b'{"n":1}')
        await soon(first.wait())
        id = await rig.put("turn", b'{"n":2}', expires_in=5.0)
        rig.claim_ahead(worker, 1)
        await rig.in_state(id, State.RUNNING)
        rig.clock.advance(5)
        go.set()
        (job,) = await rig.ended(id)

    assert ran == [1]
    assert (job.state, job.reason) == (State.CANCELLED, "expired")
    assert (job.claim, job.attempt) == (1, 0)


# --- room ---------------------------------------------------------------------------------------


async def test_what_waits_too_long_in_the_workers_hands_is_given_back(rig):
    first, go = asyncio.Event(), asyncio.Event()

    async def turn() -> None:
        first.set()
        await go.wait()

    async with rig.working(specs(turn), concurrency=1) as worker:
        await rig.put("turn")
        await soon(first.wait())
        id = await rig.put("turn")
        rig.claim_ahead(worker, 1)
        await rig.in_state(id, State.RUNNING)
        worker._dispatcher.planner.prefetch.ahead = lambda kind: 0
        job = await rig.meanwhile(rig.in_state(id, State.READY))
        assert (job.claim, job.attempt, job.failures, job.crashes) == (1, 0, 0, 0)
        go.set()
        (job,) = await rig.meanwhile(rig.ended(id))

    assert (job.state, job.claim, job.attempt) == (State.SUCCEEDED, 2, 1)


async def test_what_starts_later_than_its_claim_is_reported_as_begun(rig):
    first, second, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def turn(n: int) -> None:
        (first if n == 1 else second).set()
        await (go.wait() if n == 1 else asyncio.Event().wait())

    async with rig.working(specs(turn), concurrency=1, patience=1000) as worker:
        await rig.put("turn", b'{"n":1}')
        await soon(first.wait())
        id = await rig.put("turn", b'{"n":2}')
        rig.claim_ahead(worker, 1)
        job = await rig.in_state(id, State.RUNNING)
        assert not job.started
        go.set()
        await soon(second.wait())
        await rig.meanwhile(rig.when(id, lambda job: job.started))

    assert (id, 1) in [key for ask in rig.main.asks for key in ask.begun]


async def test_jobs_that_run_at_most_once_are_never_prefetched(rig):
    first, go = asyncio.Event(), asyncio.Event()

    async def turn() -> None:
        first.set()
        await go.wait()

    async with rig.working(specs(turn), concurrency=1) as worker:
        await rig.put("turn")
        await soon(first.wait())
        id = await rig.put("turn", at_most_once=True)
        rig.claim_ahead(worker, 5)
        await rig.clock.settle()
        assert (await rig.job(id)).state is State.READY
        go.set()
        await rig.meanwhile(rig.ended(id))
