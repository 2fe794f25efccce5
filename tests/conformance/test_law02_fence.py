"""Law 2: the fence is (job, claim, worker); nothing from outside it is written."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conformance.steps import (
    ask,
    bury,
    claim_one,
    everything,
    joined,
    outcome,
    put,
    rejoined,
    running,
    settle,
    stored,
)
from penstock.core.job import Outcome, OutcomeKind, State, Verdict
from penstock.engines import changes
from penstock.errors import LeaseLost

KINDS = list(OutcomeKind)


async def reclaimed(engine, job):
    """Another worker's attempt of a job that waits in a queue of its own."""
    return await claim_one(engine, job.queue)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_owner_of_an_attempt_settles_it(engine, kind):
    job = await running(engine)
    assert await settle(engine, job, kind) is Verdict.DONE
    assert (await stored(engine, job.id)).state is not State.RUNNING


@pytest.mark.parametrize("kind", KINDS)
async def test_another_worker_cannot_settle_an_attempt(engine, kind):
    job = await running(engine)
    stranger = await joined(engine)
    assert await settle(engine, job, kind, by=stranger) is Verdict.STALE
    assert await stored(engine, job.id) == job


@pytest.mark.parametrize("attempt", [0, 2, -1])
async def test_an_attempt_that_does_not_run_cannot_be_settled(engine, attempt):
    job = await running(engine)
    assert await settle(engine, replace(job, claim=attempt), "succeeded") is Verdict.STALE
    assert await stored(engine, job.id) == job


async def test_a_job_that_was_never_claimed_cannot_be_settled(engine):
    id = await put(engine)
    before = await stored(engine, id)
    assert await settle(engine, before, "succeeded", by=await joined(engine)) is Verdict.STALE
    assert await stored(engine, id) == before


async def test_a_job_that_is_not_in_the_store_cannot_be_settled(engine):
    nothing = Outcome(job="nothing", claim=1, kind=OutcomeKind.SUCCEEDED)
    answer = await engine.exchange(ask(await joined(engine), outcomes=(nothing,)))
    assert answer.verdicts == (Verdict.STALE,)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_repeated_by_its_owner_is_done_and_changes_nothing(engine, store, kind):
    job = await running(engine)
    await settle(engine, job, kind, delay=60)
    after = await stored(engine, job.id)
    store.clock.advance(10)
    assert await settle(engine, job, kind, delay=60) is Verdict.DONE
    assert await stored(engine, job.id) == after


@pytest.mark.parametrize("kind", KINDS)
async def test_another_outcome_of_an_attempt_that_has_ended_changes_nothing(engine, kind):
    job = await running(engine)
    await settle(engine, job, "failed", reason="first")
    after = await stored(engine, job.id)
    assert await settle(engine, job, kind, result=b"2", reason="second") is Verdict.DONE
    assert await stored(engine, job.id) == after


async def test_of_two_outcomes_in_one_exchange_the_first_counts(engine):
    job = await running(engine)
    both = (outcome(job, "succeeded", result=b"1"), outcome(job, "failed"))
    answer = await engine.exchange(ask(job.worker, want=0, outcomes=both))
    assert answer.verdicts == (Verdict.DONE, Verdict.DONE)
    assert (await stored(engine, job.id)).state is State.SUCCEEDED


async def test_an_ended_attempt_repeated_by_another_worker_is_stale(engine):
    job = await running(engine)
    await settle(engine, job, "succeeded")
    stranger = await joined(engine)
    assert await settle(engine, job, "succeeded", by=stranger) is Verdict.STALE


@pytest.mark.parametrize("kind", ["retry", "snooze", "released", "crashed"])
async def test_an_outcome_repeated_after_another_worker_claimed_changes_nothing(engine, kind):
    """Its reply was lost, and the job did not wait for that: the outcome is done all the same."""
    first = await running(engine)
    await settle(engine, first, kind)
    second = await reclaimed(engine, first)
    assert await settle(engine, first, kind) is Verdict.DONE
    assert await stored(engine, first.id) == second


async def test_an_outcome_repeated_while_the_same_worker_runs_the_next_attempt_changes_nothing(
    engine,
):
    first = await running(engine)
    await settle(engine, first, "retry")
    second = await claim_one(engine, first.queue, worker=first.worker)
    assert await settle(engine, first, "retry") is Verdict.DONE
    assert await stored(engine, first.id) == second


async def test_an_older_attempt_is_stale_for_the_worker_that_runs_the_next(engine):
    first = await running(engine)
    await settle(engine, first, "retry")
    second = await reclaimed(engine, first)
    assert await settle(engine, first, "succeeded", by=second.worker) is Verdict.STALE
    assert await stored(engine, first.id) == second


async def test_a_rescued_attempt_is_stale_even_for_a_worker_that_came_back(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    after = await stored(engine, job.id)
    await rejoined(engine, job.worker)
    assert await settle(engine, job, "succeeded") is Verdict.STALE
    assert await stored(engine, job.id) == after


async def test_a_rescued_attempt_is_stale_once_another_worker_runs_the_next(engine):
    first = await running(engine)
    await bury(engine, first.worker)
    second = await reclaimed(engine, first)
    await rejoined(engine, first.worker)
    assert await settle(engine, first, "succeeded") is Verdict.STALE
    assert await stored(engine, first.id) == second


@pytest.mark.parametrize("kind", KINDS)
async def test_no_outcome_of_the_past_reaches_a_job_that_a_person_sent_back(engine, kind):
    job = await running(engine)
    await settle(engine, job, "failed")
    await changes.retry(engine, [job.id])
    after = await stored(engine, job.id)
    await settle(engine, job, kind)
    assert await stored(engine, job.id) == after


async def test_a_stale_outcome_does_not_hinder_its_neighbours(engine):
    mine, other = await running(engine), await running(engine)
    outcomes = (outcome(other, "failed"), outcome(mine, "succeeded"))
    answer = await engine.exchange(ask(mine.worker, want=0, outcomes=outcomes))
    assert answer.verdicts == (Verdict.STALE, Verdict.DONE)
    assert (await stored(engine, mine.id)).state is State.SUCCEEDED
    assert await stored(engine, other.id) == other


@pytest.mark.parametrize("left", [True, False], ids=["left", "buried"])
async def test_without_its_lease_a_worker_cannot_exchange_and_nothing_is_written(engine, left):
    job = await running(engine)
    await put(engine, delay=-1)
    await engine.leave(job.worker) if left else await bury(engine, job.worker)
    before = await everything(engine)
    everything_at_once = ask(
        job.worker, want=5, outcomes=(outcome(job, "succeeded"),), begun=((job.id, 1),)
    )
    with pytest.raises(LeaseLost):
        await engine.exchange(everything_at_once)
    assert await everything(engine) == before


async def test_a_worker_that_never_joined_cannot_exchange(engine):
    id = await put(engine)
    with pytest.raises(LeaseLost) as caught:
        await engine.exchange(ask("stranger"))
    assert caught.value.worker == "stranger"
    assert (await stored(engine, id)).state is State.READY


async def test_a_refused_exchange_does_not_promote(engine, store):
    id = await put(engine, delay=60)
    store.clock.advance(61)
    with pytest.raises(LeaseLost):
        await engine.exchange(ask("stranger"))
    assert (await stored(engine, id)).state is State.SCHEDULED


async def test_what_has_begun_is_marked_inside_the_fence_only(engine):
    mine, other = await _prefetched(engine), await _prefetched(engine)
    begun = ((mine.id, 2), (other.id, 1), ("nothing", 1))
    await engine.exchange(ask(mine.worker, want=0, begun=begun))
    assert not (await stored(engine, mine.id)).started
    assert not (await stored(engine, other.id)).started
    await engine.exchange(ask(mine.worker, want=0, begun=((mine.id, 1),)))
    assert (await stored(engine, mine.id)).started


async def test_what_has_begun_is_marked_whatever_its_id_looks_like(engine):
    """Else one that is rescued would pass for one that never started, and run once too often."""
    worker = await joined(engine)
    ids = [await put(engine, id) for id in ("a\x1fb", "c,d", 'e"{f}', "g\nh", "i")]
    jobs = (await engine.exchange(ask(worker, want=5, slots=0))).jobs
    begun = tuple((job.id, job.claim) for job in jobs)
    await engine.exchange(ask(worker, want=0, begun=begun))
    assert [(await stored(engine, id)).started for id in ids] == [True] * 5


async def _prefetched(engine):
    """A job that waits in its worker's hands."""
    id = await put(engine, queue=(queue := f"only-{await joined(engine)}"))
    job = await claim_one(engine, queue, slots=0)
    assert job.id == id
    assert not job.started
    return job
