"""Law 3: a lost reply loses nothing, and nothing is claimed before it is cleared up."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.job import State
from penstock.core.lifecycle import expired
from penstock.errors import EngineTimeout
from worker.rig import sent, soon, specs, unavailable


async def work(n: int = 0) -> int:
    return n


@pytest.mark.parametrize("error", [unavailable(), EngineTimeout("memory", "no answer")])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_every_job_ends_when_the_reply_to_a_claim_is_lost(rig, when, error):
    async with rig.working(specs(work)):
        await rig.clock.asleep(3)
        rig.main.fail("exchange", error, when=when)
        ids = [await rig.put("work") for _ in range(5)]
        jobs = await rig.meanwhile(rig.ended(*ids))

    assert {(job.state, job.attempt) for job in jobs} == {(State.SUCCEEDED, 1)}


async def test_a_job_whose_claim_was_lost_runs_once_under_the_same_attempt(rig):
    runs = []

    async def note(n: int) -> None:
        runs.append(n)

    async with rig.working(specs(note)):
        await rig.clock.asleep(3)
        rig.main.fail("exchange", when="after")
        id = await rig.put("note", b'{"n":1}')
        await rig.in_state(id, State.RUNNING)
        assert runs == []
        (job,) = await rig.meanwhile(rig.ended(id))

    assert (runs, job.attempt, job.crashes) == ([1], 1, 0)
    assert rig.main.verbs.count("held") == 1


async def test_outcomes_whose_settlement_was_lost_are_repeated_and_nothing_runs_twice(rig):
    runs = []

    async def note(n: int) -> None:
        runs.append(n)
        if n == 0:
            rig.main.fail("exchange", when="after")

    ids = [await rig.put("note", b'{"n":%d}' % n) for n in range(3)]
    async with rig.working(specs(note), concurrency=1):
        jobs = await rig.meanwhile(rig.ended(*ids))

    assert [job.attempt for job in jobs] == [1, 1, 1]
    assert sorted(runs) == [0, 1, 2]
    settled = [outcome.job for outcome in sent(rig.main)]
    assert settled.count(ids[0]) == 2


async def test_nothing_is_claimed_between_a_lost_reply_and_the_question_what_is_held(rig):
    async with rig.working(specs(work)):
        await rig.clock.asleep(3)
        rig.main.fail("exchange", when="after")
        rig.main.fail("held", times=3)
        await rig.put("work")
        await rig.meanwhile(rig.ended(await rig.put("work")))

    verbs = [verb for verb in rig.main.verbs if verb in ("exchange", "held")]
    first = verbs.index("held")
    assert verbs[first : first + 4] == ["held"] * 4


async def test_a_claim_that_was_lost_with_a_stop_is_given_back(rig):
    async with rig.working(specs(work)) as worker:
        await rig.clock.asleep(3)
        gate = rig.main.block("exchange", when="after")
        rig.main.fail("exchange", when="after")
        id = await rig.put("work")
        await soon(gate.reached.wait())
        worker.stop()
        gate.open()

    job = await rig.job(id)
    assert (job.state, job.claim, job.attempt) == (State.READY, 1, 0)
    assert (job.crashes, job.errors) == (0, ())


async def test_an_attempt_that_the_store_no_longer_says_is_ours_is_stopped(rig):
    started, stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with rig.working(specs(hang, work)):
        id = await rig.put("hang")
        await soon(started.wait())
        # Somebody ended the job behind the worker's back.
        job = await rig.job(id)
        with rig.store.step() as jobs:
            jobs.put(expired(job, rig.clock.now()))
        rig.main.fail("exchange", when="after")
        await rig.put("work")
        await rig.meanwhile(stopped.wait())

    assert [outcome for outcome in sent(rig.main) if outcome.job == id] == []


async def test_a_worker_that_stops_before_a_lost_claim_is_cleared_up_asks_what_it_has_first(rig):
    """With nothing in its hands it could leave; what it never saw would count as a crash."""
    async with rig.working(specs(work)) as worker:
        await rig.clock.asleep(3)
        rig.main.fail("exchange", when="after")
        rig.main.fail("held")
        gate = rig.main.block("held")
        id = await rig.put("work", at_most_once=True)
        await rig.meanwhile(gate.reached.wait(), sleepers=2)
        worker.stop()
        await soon(_until(lambda: worker._dispatcher.is_draining))
        gate.open()

    job = await rig.job(id)
    assert (job.state, job.crashes, job.errors) == (State.READY, 0, ())


async def _until(condition) -> None:
    while not condition():  # noqa: ASYNC110  (another task makes it true)
        await asyncio.sleep(0)
