"""Law 13: a unique key belongs to one job, until it is done or starts, and through its window."""

from __future__ import annotations

import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    claim_one,
    created,
    draft,
    everything,
    ids,
    known,
    outcome,
    put,
    running,
    send,
    settle,
    stored,
)
from penstock.core.job import ErrorRecord, State, Verdict
from penstock.engines import changes
from penstock.engines.records import Filter, Receipt

FINAL = ["succeeded", "failed", "cancelled", "expired"]
WAITS_AGAIN = ["retry", "snooze", "released", "crashed"]


def one(id=None, **fields):
    """A draft that wants the key ``invoice``."""
    return draft(id, unique="invoice", **fields)


async def is_free(engine, **fields):
    """Nobody has the key; somebody has it now."""
    (receipt,) = await engine.enqueue([one(**fields)])
    return receipt.created


async def owner(engine):
    """The job that has the key."""
    (receipt,) = await engine.enqueue([one()])
    assert (receipt.created, receipt.because) == (False, "unique")
    return receipt.id


# --- who has it -----------------------------------------------------------------------------------


async def test_a_draft_whose_key_is_taken_stores_nothing_and_names_the_owner(engine):
    first = await put(engine, unique="invoice")
    before = await everything(engine)
    receipts = await engine.enqueue([one(queue="other"), draft("fine")])
    assert receipts == [Receipt(first, False, "unique"), created("fine")]
    assert ids(await everything(engine)) == ["fine", *ids(before)]


async def test_inside_one_batch_the_first_of_a_key_wins(engine):
    receipts = await engine.enqueue([one("a"), one("b"), draft("c", unique="other")])
    assert receipts == [
        created("a"),
        Receipt("a", False, "unique"),
        created("c"),
    ]


async def test_an_id_counts_before_a_unique_key(engine):
    await put(engine, "a", unique="invoice")
    await put(engine, "b")
    assert await engine.enqueue([one("a"), one("b")]) == [
        known("a"),
        known("b"),
    ]


async def test_a_draft_whose_id_is_known_does_not_take_a_key(engine):
    await put(engine, "a")
    await engine.enqueue([one("a")])
    assert await is_free(engine)


@pytest.mark.parametrize("place", [{"queue": "other"}, {"key": "tenant"}])
async def test_a_key_is_one_for_all_queues_and_tenants(engine, place):
    first = await put(engine, unique="invoice")
    (receipt,) = await engine.enqueue([one(**place)])
    assert receipt == Receipt(first, False, "unique")


async def test_a_scheduled_job_has_its_key(engine):
    first = await put(engine, unique="invoice", delay=60)
    assert await owner(engine) == first


# --- until it is done -----------------------------------------------------------------------------


async def test_a_running_job_has_its_key_until_it_is_done(engine):
    job = await running(engine, unique="invoice")
    assert await owner(engine) == job.id


@pytest.mark.parametrize("kind", FINAL)
async def test_a_job_that_has_ended_gives_its_key_back(engine, kind):
    job = await running(engine, unique="invoice")
    await settle(engine, job, kind)
    assert await is_free(engine)


@pytest.mark.parametrize("kind", WAITS_AGAIN)
async def test_a_job_that_waits_again_has_its_key(engine, kind):
    job = await running(engine, unique="invoice")
    await settle(engine, job, kind, delay=60)
    assert await owner(engine) == job.id


async def test_a_rescued_job_has_its_key(engine):
    job = await running(engine, unique="invoice")
    await bury(engine, job.worker)
    assert await owner(engine) == job.id


async def test_a_job_that_is_cancelled_while_it_waits_gives_its_key_back(engine):
    await changes.cancel(engine, [await put(engine, unique="invoice")], "enough")
    assert await is_free(engine)


async def test_a_job_that_was_asked_to_end_has_its_key_until_it_ends(engine):
    job = await running(engine, unique="invoice")
    await changes.cancel(engine, [job.id], "enough")
    assert await owner(engine) == job.id
    await settle(engine, job, "retry")
    assert await is_free(engine)


async def test_a_job_that_expires_gives_its_key_back(engine, store):
    await put(engine, unique="invoice", expires_in=60)
    store.clock.advance(61)
    assert (await engine.promote(10)).expired == 1
    assert await is_free(engine)


async def test_a_job_that_crashed_too_often_gives_its_key_back(engine):
    await put(engine, unique="invoice")
    for _ in range(3):
        job = await claim_one(engine)
        await engine.exchange(ask(job.worker, want=0, begun=((job.id, job.claim),)))
        await bury(engine, job.worker)
    assert await is_free(engine)


async def test_a_purged_job_gives_its_key_back(engine):
    await put(engine, unique="invoice")
    await engine.purge(Filter(), 10)
    assert await is_free(engine)


# --- until it starts ------------------------------------------------------------------------------


async def test_a_key_until_start_is_free_once_the_job_is_claimed(engine):
    await put(engine, unique="invoice", unique_until="start")
    await claim_one(engine)
    assert await is_free(engine)


async def test_a_key_until_start_is_taken_while_the_job_waits(engine):
    first = await put(engine, unique="invoice", unique_until="start")
    assert await owner(engine) == first


@pytest.mark.parametrize("kind", WAITS_AGAIN)
async def test_a_job_that_waits_again_takes_its_free_key_again(engine, kind):
    job = await running(engine, unique="invoice", unique_until="start")
    await settle(engine, job, kind, delay=60)
    assert await owner(engine) == job.id


async def test_a_rescued_job_takes_its_free_key_again(engine):
    job = await running(engine, unique="invoice", unique_until="start")
    await bury(engine, job.worker)
    assert await owner(engine) == job.id


@pytest.mark.parametrize("kind", WAITS_AGAIN)
async def test_a_job_that_would_wait_again_is_superseded_if_its_key_is_taken(engine, kind):
    job = await running(engine, unique="invoice", unique_until="start")
    other = await put(engine, unique="invoice", unique_until="start")
    assert await settle(engine, job, kind, delay=60) is Verdict.DONE
    after = await stored(engine, job.id)
    assert (after.state, after.reason) == (State.CANCELLED, f"superseded by {other}")
    assert after.finished_at is not None
    assert await owner(engine) == other


async def test_a_rescued_job_is_superseded_if_its_key_is_taken(engine):
    job = await running(engine, unique="invoice", unique_until="start")
    other = await put(engine, unique="invoice", unique_until="start")
    (rescued,) = await bury(engine, job.worker)
    assert (rescued.state, rescued.reason) == (State.CANCELLED, f"superseded by {other}")
    assert await stored(engine, job.id) == rescued
    assert await owner(engine) == other


async def test_a_superseded_retry_keeps_its_error(engine):
    job = await running(engine, unique="invoice", unique_until="start")
    await put(engine, unique="invoice")
    error = ErrorRecord(attempt=1, at=1.0, kind="E", message="m")
    await settle(engine, job, "retry", error=error)
    after = await stored(engine, job.id)
    assert (after.errors, after.failures) == ((error,), 1)


@pytest.mark.parametrize("kind", FINAL)
async def test_a_job_whose_key_was_taken_ends_as_its_worker_says(engine, kind):
    job = await running(engine, unique="invoice", unique_until="start")
    other = await put(engine, unique="invoice")
    await settle(engine, job, kind)
    expected = State.CANCELLED if kind == "expired" else State(kind)
    assert (await stored(engine, job.id)).state is expected
    assert await owner(engine) == other


async def test_a_requested_cancellation_wins_over_being_superseded(engine):
    job = await running(engine, unique="invoice", unique_until="start")
    await put(engine, unique="invoice")
    await changes.cancel(engine, [job.id], "enough")
    await settle(engine, job, "retry")
    assert (await stored(engine, job.id)).reason == "enough"


# --- the window -----------------------------------------------------------------------------------


async def test_a_key_is_taken_through_its_window_though_its_job_is_done(engine, store):
    job = await running(engine, unique="invoice", unique_for=3600)
    await settle(engine, job, "succeeded")
    store.clock.advance(3500)
    assert await owner(engine) == job.id
    store.clock.advance(200)
    assert await is_free(engine)


async def test_a_key_is_taken_through_its_window_though_its_job_started(engine, store):
    job = await running(engine, unique="invoice", unique_until="start", unique_for=3600)
    store.clock.advance(3500)
    assert await owner(engine) == job.id
    store.clock.advance(200)
    assert await is_free(engine)


async def test_a_window_does_not_end_the_key_of_a_job_that_is_not_done(engine, store):
    job = await running(engine, unique="invoice", unique_for=60)
    store.clock.advance(3600)
    assert await owner(engine) == job.id
    await settle(engine, job, "succeeded")
    assert await is_free(engine)


async def test_a_job_may_wait_again_inside_its_own_window(engine):
    job = await running(engine, unique="invoice", unique_until="start", unique_for=3600)
    await settle(engine, job, "retry", delay=60)
    assert (await stored(engine, job.id)).state is State.SCHEDULED


async def test_a_window_that_is_over_is_pruned(engine, store):
    job = await running(engine, unique="invoice", unique_for=3600)
    await settle(engine, job, "succeeded")
    assert (await engine.prune(100)).keys == 0
    store.clock.advance(3700)
    assert (await engine.prune(100)).keys == 1
    assert (await engine.prune(100)).keys == 0


async def test_a_key_that_is_held_is_not_pruned(engine, store):
    first = await put(engine, unique="invoice", unique_for=60)
    store.clock.advance(3600)
    assert (await engine.prune(100)).keys == 0
    assert await owner(engine) == first


# --- a person sends it back -----------------------------------------------------------------------


async def test_a_job_that_a_person_sends_back_takes_its_key_again(engine):
    id = await put(engine, unique="invoice")
    await changes.cancel(engine, [id], "enough")
    (control,) = await changes.retry(engine, [id])
    assert control.changed
    assert await owner(engine) == id


async def test_a_person_cannot_send_back_a_job_whose_key_another_has(engine):
    id = await put(engine, unique="invoice")
    await changes.cancel(engine, [id], "enough")
    before = await stored(engine, id)
    other = await put(engine, unique="invoice")
    (control,) = await changes.retry(engine, [id])
    assert (control.changed, control.state) == (False, State.CANCELLED)
    assert control.owner == other
    assert await stored(engine, id) == before


async def test_a_person_cannot_send_back_a_job_into_anothers_window(engine):
    id = await put(engine, unique="invoice")
    await changes.cancel(engine, [id], "enough")
    other = await running(engine, unique="invoice", unique_for=3600)
    await settle(engine, other, "succeeded")
    (control,) = await changes.retry(engine, [id])
    assert (control.changed, control.owner) == (False, other.id)


async def test_a_person_can_send_a_job_back_in_its_own_window(engine):
    job = await running(engine, unique="invoice", unique_for=3600)
    await settle(engine, job, "failed")
    (control,) = await changes.retry(engine, [job.id])
    assert (control.changed, control.owner) == (True, None)
    assert ids(await claim(engine, job.queue)) == [job.id]


async def test_of_two_jobs_of_one_key_sent_back_together_the_first_has_it(engine):
    first = await put(engine, unique="invoice")
    await changes.cancel(engine, [first], "enough")
    second = await put(engine, unique="invoice")
    await changes.cancel(engine, [second], "enough")
    one, other = await changes.retry(engine, [first, second])
    assert (one.changed, other.changed, other.owner) == (True, False, first)


async def test_a_job_without_a_key_can_always_be_sent_back(engine):
    await put(engine, unique="invoice")
    id = await put(engine)
    await changes.cancel(engine, [id], "enough")
    (control,) = await changes.retry(engine, [id])
    assert control.changed


async def test_another_handle_respects_the_key(store):
    first, second = await store.open(), await store.open()
    id = await put(first, unique="invoice")
    assert await owner(second) == id
    await changes.cancel(first, [id], "enough")
    assert await is_free(second)


async def test_an_empty_key_is_a_key(engine):
    first = await put(engine, unique="")
    (receipt,) = await engine.enqueue([draft(unique="")])
    assert receipt == Receipt(first, False, "unique")


async def test_an_attempt_whose_key_was_taken_is_told_who_has_it(engine):
    job = await running(engine, unique="k", unique_until="start")
    taker = await put(engine, unique="k")
    answer = await send(engine, job.worker, outcome(job, "retry"))
    assert answer.overruled == {job.id: f"superseded by {taker}"}
