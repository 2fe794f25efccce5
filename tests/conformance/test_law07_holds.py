"""Law 7: only what could start now is claimed; what is held waits until its cause is removed."""

from __future__ import annotations

import pytest

from conformance.steps import (
    about,
    ask,
    claim,
    claim_one,
    ids,
    joined,
    put,
    running,
    settle,
    stored,
)
from conformance.waiting import gives_in
from penstock.core.job import Hold, State, Verdict
from penstock.engines import changes, reads
from penstock.engines.records import QueueSettings

WITH_AN_INSTANT = sorted(set(Hold) - {Hold.UNKNOWN_TASK})


async def held_back(engine, hold=Hold.RATE, delay=60.0, **fields):
    """A job that its worker gave back because it cannot start now."""
    job = await running(engine, **fields)
    held = await settle(engine, job, "released", hold=hold, hold_cause="why", delay=delay)
    assert held is Verdict.DONE
    return await stored(engine, job.id)


@pytest.mark.parametrize("hold", WITH_AN_INSTANT)
async def test_a_held_job_waits_with_its_cause(engine, hold):
    now = await reads.now(engine)
    job = await held_back(engine, hold)
    assert (job.state, job.hold, job.hold_cause) == (State.READY, hold, "why")
    assert job.hold_until == about(now + 60)


@pytest.mark.parametrize("hold", WITH_AN_INSTANT)
async def test_a_held_job_is_not_claimed(engine, hold):
    job = await held_back(engine, hold)
    assert await claim(engine, job.queue, want=5) == []


async def test_a_held_job_does_not_block_those_behind_it(engine):
    job = await held_back(engine)
    behind = await put(engine, queue=job.queue)
    assert ids(await claim(engine, job.queue, want=5)) == [behind]


async def test_a_hold_with_an_instant_is_lifted_when_it_comes(engine, store):
    job = await held_back(engine)
    store.clock.advance(59)
    assert await claim(engine, job.queue) == []
    store.clock.advance(2)
    claimed = await claim_one(engine, job.queue)
    assert (claimed.id, claimed.hold, claimed.hold_cause) == (job.id, None, None)


async def test_promote_lifts_a_hold_whose_instant_has_come(engine, store):
    job = await held_back(engine)
    assert (await engine.promote(10)).ready == 0
    store.clock.advance(61)
    assert (await engine.promote(10)).ready == 1
    lifted = await stored(engine, job.id)
    assert (lifted.state, lifted.hold, lifted.hold_until) == (State.READY, None, None)


async def test_a_hold_with_an_instant_says_when_it_falls_due(engine):
    job = await held_back(engine)
    worker = await joined(engine)
    assert 50 < (await engine.exchange(ask(worker, job.queue))).due_in <= 60
    assert 50 < await gives_in(engine, ask(worker, job.queue)) <= 60


async def test_a_hold_without_an_instant_waits_for_its_cause_only(engine, store):
    job = await held_back(engine, Hold.UNKNOWN_TASK, delay=0, task="new")
    assert job.hold_until is None
    store.clock.advance(1e6)
    await engine.promote(10)
    assert await claim(engine, job.queue) == []


async def test_a_job_that_is_released_without_a_hold_can_start_at_once(engine):
    job = await running(engine)
    await settle(engine, job, "released")
    assert (await stored(engine, job.id)).hold is None
    assert (await claim_one(engine, job.queue)).id == job.id


async def test_a_held_job_can_be_cancelled(engine):
    job = await held_back(engine)
    await changes.cancel(engine, [job.id], "enough")
    after = await stored(engine, job.id)
    assert (after.state, after.hold, after.hold_cause) == (State.CANCELLED, None, None)
    assert after.hold_until is None


async def test_the_hold_is_gone_when_a_person_sends_the_job_back(engine):
    job = await held_back(engine)
    await changes.cancel(engine, [job.id], "enough")
    await changes.retry(engine, [job.id])
    assert (await claim_one(engine, job.queue)).id == job.id


async def test_a_hold_that_a_pause_outlasts_is_lifted_all_the_same(engine, store):
    job = await held_back(engine)
    await engine.set_queue(job.queue, QueueSettings(paused=True))
    store.clock.advance(61)
    await engine.promote(10)
    assert (await stored(engine, job.id)).hold is None
