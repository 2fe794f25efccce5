"""``cancel``: waiting jobs end at once, running ones are asked to."""

from __future__ import annotations

import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    finished,
    joined,
    outcome,
    put,
    running,
    send,
    settle,
    stored,
)
from penstock.core.job import Hold, State, Verdict
from penstock.engines import changes
from penstock.engines.records import Control, QueueSettings


async def test_a_ready_job_is_cancelled_at_once(engine):
    id = await put(engine)
    assert await changes.cancel(engine, [id], "enough") == [Control(id, True, State.CANCELLED)]
    job = await stored(engine, id)
    assert (job.state, job.reason) == (State.CANCELLED, "enough")
    assert job.finished_at is not None
    assert await claim(engine) == []


async def test_a_scheduled_job_is_cancelled_at_once(engine, store):
    id = await put(engine, delay=60)
    await changes.cancel(engine, [id], "enough")
    store.clock.advance(61)
    assert (await engine.promote(10)).ready == 0
    assert (await stored(engine, id)).state is State.CANCELLED


async def test_a_job_of_a_fair_queue_is_cancelled_at_once(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    id = await put(engine, key="a")
    await changes.cancel(engine, [id], "enough")
    assert await claim(engine) == []
    job = await stored(engine, id)
    assert (job.state, job.hold) == (State.CANCELLED, None)


async def test_a_running_job_is_asked_to_end(engine):
    job = await running(engine)
    assert await changes.cancel(engine, [job.id], "enough") == [
        Control(job.id, True, State.RUNNING)
    ]
    after = await stored(engine, job.id)
    assert (after.state, after.cancel_reason) == (State.RUNNING, "enough")


async def test_the_worker_learns_it_by_its_next_exchange(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    assert (await engine.exchange(ask(job.worker, want=0))).cancels == (job.id,)


async def test_the_worker_is_reminded_until_it_was_told(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    for _ in range(2):
        assert (await engine.exchange(ask(job.worker, want=0))).cancels == (job.id,)
    told = ask(job.worker, want=0, told=frozenset({job.id}))
    assert (await engine.exchange(told)).cancels == ()


async def test_only_the_worker_that_runs_it_learns_it(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    assert (await engine.exchange(ask(await joined(engine), want=0))).cancels == ()


async def test_a_job_settled_in_the_same_exchange_is_not_among_the_cancels(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    turn = ask(job.worker, want=0, outcomes=(outcome(job, "cancelled", reason="asked to"),))
    assert (await engine.exchange(turn)).cancels == ()


async def test_an_attempt_that_succeeds_in_spite_of_it_has_succeeded(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    await settle(engine, job, "succeeded", result=b"1")
    after = await stored(engine, job.id)
    assert (after.state, after.result, after.cancel_reason) == (State.SUCCEEDED, b"1", None)


async def test_an_attempt_that_fails_in_spite_of_it_has_failed(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    await settle(engine, job, "failed", reason="boom")
    after = await stored(engine, job.id)
    assert (after.state, after.reason) == (State.FAILED, "boom")


async def test_an_attempt_that_obeys_is_cancelled_for_its_own_reason(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    await settle(engine, job, "cancelled", reason="stopped at row 7")
    after = await stored(engine, job.id)
    assert (after.state, after.reason) == (State.CANCELLED, "stopped at row 7")


@pytest.mark.parametrize("kind", ["retry", "snooze", "released", "crashed"])
async def test_an_attempt_that_would_wait_again_is_cancelled(engine, kind):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    assert await settle(engine, job, kind, hold=Hold.RATE, delay=60) is Verdict.DONE
    after = await stored(engine, job.id)
    assert (after.state, after.reason) == (State.CANCELLED, "enough")
    assert (after.hold, after.hold_until, after.cancel_reason) == (None, None, None)


@pytest.mark.parametrize("slots", [0, 1], ids=["unstarted", "started"])
async def test_a_rescued_attempt_that_was_asked_to_end_is_cancelled(engine, slots):
    await put(engine)
    (job,) = await claim(engine, slots=slots)
    await changes.cancel(engine, [job.id], "enough")
    (rescued,) = await bury(engine, job.worker)
    assert (rescued.state, rescued.reason) == (State.CANCELLED, "enough")
    assert await stored(engine, job.id) == rescued


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled"])
async def test_a_job_that_has_ended_is_not_changed(engine, kind):
    job = await finished(engine, kind)
    assert await changes.cancel(engine, [job.id], "enough") == [Control(job.id, False, job.state)]
    assert await stored(engine, job.id) == job


async def test_a_job_that_was_asked_already_is_not_changed(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "first")
    assert await changes.cancel(engine, [job.id], "second") == [
        Control(job.id, False, State.RUNNING)
    ]
    assert (await stored(engine, job.id)).cancel_reason == "first"


async def test_an_unknown_id_is_no_error(engine):
    assert await changes.cancel(engine, ["nothing"], "enough") == [Control("nothing", False, None)]


async def test_each_id_has_its_own_answer_in_order(engine):
    job, waiting = await running(engine), await put(engine)
    controls = await changes.cancel(engine, [waiting, "nothing", job.id, waiting], "enough")
    assert controls == [
        Control(waiting, True, State.CANCELLED),
        Control("nothing", False, None),
        Control(job.id, True, State.RUNNING),
        Control(waiting, False, State.CANCELLED),
    ]


async def test_a_job_that_a_person_sent_back_is_not_asked_to_end_again(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "enough")
    await settle(engine, job, "retry")
    await changes.retry(engine, [job.id])
    (job,) = await claim(engine, job.queue)
    assert job.cancel_reason is None
    assert (await engine.exchange(ask(job.worker, want=0))).cancels == ()


@pytest.mark.parametrize("kind", ["retry", "snooze", "released", "crashed"])
async def test_an_attempt_that_may_not_wait_again_is_told_so(engine, kind):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "not wanted")
    for _ in range(2):  # the second time after a lost reply
        answer = await send(engine, job.worker, outcome(job, kind))
        assert (answer.verdicts, answer.overruled) == ((Verdict.DONE,), {job.id: "not wanted"})


async def test_an_attempt_that_ends_as_its_worker_says_is_not_overruled(engine):
    job = await running(engine)
    await changes.cancel(engine, [job.id], "not wanted")
    assert (await send(engine, job.worker, outcome(job, "succeeded"))).overruled == {}
    other = await running(engine)
    assert (await send(engine, other.worker, outcome(other, "retry"))).overruled == {}
