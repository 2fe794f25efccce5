"""``CRASHED``: the attempt's process died, and its worker lives to tell."""

from __future__ import annotations

import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    claim_one,
    enqueue_jobs,
    ids,
    outcome,
    put,
    running,
    send,
    settle,
    stored,
)
from penstock.core.job import CRASH_LIMIT, ErrorRecord, State, Verdict
from penstock.engines import changes
from penstock.engines.records import QueueSettings

KILLED = "its process was killed by SIGKILL"


async def crashed(engine, job, **fields):
    """End this attempt as crashed; return the job as it is then."""
    assert await settle(engine, job, "crashed", reason=KILLED, **fields) is Verdict.DONE
    return await stored(engine, job.id)


async def test_the_job_is_ready_again_and_says_why(engine):
    after = await crashed(engine, await running(engine))
    assert (after.state, after.hold, after.started) == (State.READY, None, False)
    assert after.reason == KILLED


async def test_it_counts_as_a_crash_and_not_as_a_failure_or_a_rescue(engine):
    after = await crashed(engine, await running(engine))
    assert (after.crashes, after.failures, after.rescues) == (1, 0, 0)


async def test_the_error_that_its_worker_gives_is_kept(engine):
    job = await running(engine)
    error = ErrorRecord(attempt=1, at=5.0, kind="crash", message=KILLED, worker=job.worker)
    assert (await crashed(engine, job, error=error)).errors == (error,)


async def test_without_an_error_none_is_made_up(engine):
    assert (await crashed(engine, await running(engine))).errors == ()


async def test_it_is_charged_even_if_its_worker_had_not_said_that_it_began(engine):
    await put(engine)
    job = await claim_one(engine, slots=0)
    assert (await crashed(engine, job)).crashes == 1


async def test_it_keeps_its_ticket(engine):
    first, second = await enqueue_jobs(engine, 2)
    job = await claim_one(engine)
    after = await crashed(engine, job)
    assert after.seq == job.seq
    assert ids(await claim(engine, want=2)) == [first, second]


async def test_it_keeps_its_ticket_in_a_fair_queue(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    first, second = await enqueue_jobs(engine, 2, key="a")
    job = await claim_one(engine)
    after = await crashed(engine, job)
    assert (after.seq, after.hold) == (job.seq, None)
    assert ids(await claim(engine, want=2)) == [first, second]


async def test_it_can_be_claimed_in_the_exchange_that_tells_of_it(engine):
    job = await running(engine)
    turn = ask(job.worker, job.queue, outcomes=(outcome(job, "crashed"),))
    (again,) = (await engine.exchange(turn)).jobs
    assert (again.id, again.attempt, again.crashes) == (job.id, 2, 1)


async def test_its_next_attempt_starts_only_when_its_worker_says_so(engine):
    job = await running(engine)
    await crashed(engine, job)
    again = await claim_one(engine, job.queue)
    assert not again.started
    (rescued,) = await bury(engine, again.worker)
    assert rescued.crashes == 1


async def test_the_last_crash_allowed_fails_the_job_and_says_what_happened(engine):
    job = await running(engine)
    for crash in range(1, CRASH_LIMIT):
        assert (await crashed(engine, job)).state is State.READY, crash
        job = await claim_one(engine, job.queue)
    answer = await send(engine, job.worker, outcome(job, "crashed", reason=KILLED))
    after = await stored(engine, job.id)
    assert (after.state, after.crashes, after.failures) == (State.FAILED, CRASH_LIMIT, 0)
    assert after.reason == f"crashed 3 times: {KILLED}"
    assert answer.abandoned == {job.id: after.reason}
    assert answer.overruled == {}


async def test_its_worker_says_how_many_crashes_end_the_job(engine):
    after = await crashed(engine, await running(engine), crash_limit=1)
    assert (after.state, after.reason) == (State.FAILED, f"crashed 1 times: {KILLED}")


async def test_the_last_crash_without_a_reason_is_told_by_its_number(engine):
    job = await running(engine)
    for _ in range(CRASH_LIMIT):
        await settle(engine, job, "crashed")
        after = await stored(engine, job.id)
        if after.state is State.READY:
            job = await claim_one(engine, job.queue)
    assert after.reason == "crashed 3 times"


async def test_crashes_that_its_workers_survived_and_others_add_up(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    await crashed(engine, await claim_one(engine, job.queue))
    after = await crashed(engine, await claim_one(engine, job.queue))
    assert (after.state, after.crashes, after.rescues) == (State.FAILED, 3, 1)


async def test_a_job_that_runs_at_most_once_may_have_run(engine):
    job = await running(engine, at_most_once=True)
    answer = await send(engine, job.worker, outcome(job, "crashed", reason=KILLED))
    after = await stored(engine, job.id)
    assert (after.state, after.crashes, after.reason) == (State.FAILED, 1, "may have run")
    assert answer.abandoned == {job.id: "may have run"}


@pytest.mark.parametrize("once", [False, True])
async def test_a_requested_cancellation_wins(engine, once):
    job = await running(engine, at_most_once=once)
    await changes.cancel(engine, [job.id], "enough")
    answer = await send(engine, job.worker, outcome(job, "crashed", reason=KILLED))
    after = await stored(engine, job.id)
    assert (after.state, after.reason, after.crashes) == (State.CANCELLED, "enough", 1)
    assert (answer.overruled, answer.abandoned) == ({job.id: "enough"}, {})


async def test_repeated_by_its_worker_it_is_done_and_counts_once(engine):
    job = await running(engine)
    after = await crashed(engine, job)
    assert await crashed(engine, job) == after
    assert await claim(engine, job.queue)
    assert (await crashed(engine, job)).crashes == 1


async def test_the_last_one_repeated_by_its_worker_is_done_and_told_again(engine):
    job = await running(engine, at_most_once=True)
    told = outcome(job, "crashed")
    await send(engine, job.worker, told)
    after = await stored(engine, job.id)
    answer = await send(engine, job.worker, told)
    assert (answer.verdicts, answer.abandoned) == ((Verdict.DONE,), {job.id: "may have run"})
    assert await stored(engine, job.id) == after


async def test_from_outside_the_fence_it_changes_nothing(engine):
    job, other = await running(engine), await running(engine)
    assert await settle(engine, job, "crashed", by=other.worker) is Verdict.STALE
    assert await stored(engine, job.id) == job


async def test_it_makes_room_in_its_queue(engine):
    await engine.set_queue("default", QueueSettings(max_running=1))
    await enqueue_jobs(engine, 2)
    job = await claim_one(engine)
    assert await claim(engine) == []
    await crashed(engine, job)
    assert ids(await claim(engine, want=2)) == [job.id]


async def test_a_job_that_crashed_too_often_gives_its_key_back(engine):
    job = await running(engine, unique="invoice", at_most_once=True)
    await crashed(engine, job)
    assert await put(engine, unique="invoice")


async def test_a_person_may_send_it_back_after_its_last_crash(engine):
    job = await running(engine, at_most_once=True)
    await crashed(engine, job)
    await changes.retry(engine, [job.id])
    after = await stored(engine, job.id)
    assert (after.state, after.crashes, after.reason) == (State.READY, 0, None)
