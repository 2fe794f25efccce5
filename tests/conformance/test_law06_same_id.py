"""Law 6: "same id" is decided by the ledger, in the same atomic step as the job."""

from __future__ import annotations

import pytest

from conformance.steps import created, draft, everything, finished, known, put, running, stored
from penstock.core.job import State
from penstock.engines import changes
from penstock.engines.records import Filter, Receipt

WEEK = 7 * 86400.0
KNOWN = known("order-1")


async def test_enqueuing_a_known_id_changes_nothing_and_says_so(engine):
    await put(engine, "order-1", remember=WEEK, payload=b'{"first":1}')
    before = await everything(engine)
    again = draft("order-1", remember=WEEK, payload=b'{"second":2}', queue="other")
    assert await engine.enqueue([again]) == [KNOWN]
    assert await everything(engine) == before


async def test_a_generated_id_that_is_in_the_store_is_known_too(engine):
    """A caller that repeats a call whose reply was lost gets the same job."""
    await put(engine, "order-1", remember=0)
    assert await engine.enqueue([draft("order-1", remember=0)]) == [KNOWN]


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled"])
async def test_the_id_of_a_job_that_has_ended_is_known(engine, kind):
    await finished(engine, kind, id="order-1", remember=WEEK)
    assert await engine.enqueue([draft("order-1", remember=WEEK)]) == [KNOWN]


async def test_the_id_of_a_running_job_is_known(engine):
    job = await running(engine, "order-1")
    assert await engine.enqueue([draft("order-1")]) == [KNOWN]
    assert await stored(engine, "order-1") == job


async def test_inside_one_batch_the_first_of_an_id_wins(engine):
    twice = [draft("order-1", payload=b'{"n":1}'), draft("order-1", payload=b'{"n":2}')]
    first, second = await engine.enqueue(twice)
    assert (first, second) == (created("order-1"), KNOWN)
    (job,) = await everything(engine)
    assert job.payload == b'{"n":1}'


async def test_an_id_outlives_its_job_when_it_was_purged(engine):
    await put(engine, "order-1", remember=WEEK)
    assert (await engine.purge(Filter(ids=("order-1",)), 10)).jobs == 1
    assert await engine.enqueue([draft("order-1", remember=WEEK)]) == [KNOWN]
    assert await everything(engine) == ()


async def test_an_id_outlives_its_job_when_it_was_pruned(engine, store):
    await finished(engine, "succeeded", id="order-1", remember=WEEK, keep=60.0)
    store.clock.advance(3600)
    assert (await engine.prune(100)).jobs == 1
    assert await engine.enqueue([draft("order-1", remember=WEEK)]) == [KNOWN]
    assert await everything(engine) == ()


async def test_only_an_id_that_a_person_chose_is_looked_up_in_the_ledger(engine):
    await put(engine, "order-1", remember=WEEK)
    await engine.purge(Filter(), 10)
    assert await engine.enqueue([draft("order-1", remember=0)]) == [created("order-1")]


async def test_an_id_is_free_again_when_its_time_is_over_and_it_was_pruned(engine, store):
    await finished(engine, "succeeded", id="order-1", remember=3600, keep=60.0)
    store.clock.advance(3601)
    pruned = await engine.prune(100)
    assert (pruned.jobs, pruned.ids) == (1, 1)
    await put(engine, "order-1", remember=3600)
    assert (await stored(engine, "order-1")).state is State.READY


async def test_an_id_whose_time_is_not_over_is_not_pruned(engine, store):
    await finished(engine, "succeeded", id="order-1", remember=WEEK)
    store.clock.advance(WEEK - 60)
    assert (await engine.prune(100)).ids == 0
    assert await engine.enqueue([draft("order-1", remember=WEEK)]) == [KNOWN]


async def test_an_id_stays_known_with_its_job_even_after_its_time(engine, store):
    await put(engine, "order-1", remember=60)
    store.clock.advance(3600)
    await engine.prune(100)
    assert await engine.enqueue([draft("order-1", remember=60)]) == [KNOWN]


async def test_generated_ids_are_not_in_the_ledger(engine, store):
    await finished(engine, "succeeded", remember=0)
    store.clock.advance(10 * WEEK)
    pruned = await engine.prune(100)
    assert (pruned.jobs, pruned.ids) == (1, 0)


async def test_a_draft_that_was_not_stored_does_not_use_up_its_id(engine):
    owner = await put(engine, unique="invoice")
    refused = draft("order-1", remember=WEEK, unique="invoice")
    assert await engine.enqueue([refused]) == [Receipt(owner, created=False, because="unique")]
    await changes.cancel(engine, [owner], "make room")
    assert await engine.enqueue([refused]) == [created("order-1")]


async def test_one_handle_knows_what_another_enqueued(store):
    first, second = await store.open(), await store.open()
    await put(first, "order-1", remember=WEEK)
    assert await second.enqueue([draft("order-1")]) == [KNOWN]


async def test_an_id_is_compared_to_the_letter(engine):
    await put(engine, "order-1", remember=WEEK)
    await put(engine, "Order-1", remember=WEEK)
    await put(engine, "order-1 ", remember=WEEK)
    assert len(await everything(engine)) == 3
