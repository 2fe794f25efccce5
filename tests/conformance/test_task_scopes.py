"""Laws 6 and 13 between tasks: an id belongs to one task, and so does a unique key, unless it is
one for all.
"""

from __future__ import annotations

import pytest

from conformance.steps import (
    bury,
    claim_one,
    created,
    draft,
    everything,
    finished,
    ids,
    known,
    put,
    running,
    settle,
    stored,
)
from penstock.core.job import State
from penstock.engines import changes
from penstock.engines.records import Filter, Receipt

WEEK = 7 * 86400.0


def mail(id=None, **fields):
    """A job of the task ``mail``."""
    return draft(id, task="mail", **fields)


def taken(owner):
    """The receipt of a draft whose unique key this job has."""
    return Receipt(owner, created=False, because="unique")


# --- ids ------------------------------------------------------------------------------------------


async def test_the_receipt_of_a_known_id_names_the_task_that_has_it(engine):
    await put(engine, "order-7", task="charge", remember=WEEK)
    before = await everything(engine)
    assert await engine.enqueue([mail("order-7", remember=WEEK)]) == [known("order-7", "charge")]
    assert await everything(engine) == before


async def test_inside_one_batch_the_task_of_the_first_is_named(engine):
    first = draft("order-7", task="charge", remember=WEEK)
    batch = [first, mail("order-7", remember=WEEK), mail("fine", remember=WEEK)]
    assert await engine.enqueue(batch) == [
        created("order-7"),
        known("order-7", "charge"),
        created("fine"),
    ]
    assert (await stored(engine, "order-7")).task == "charge"


async def test_neighbours_of_an_id_of_another_task_are_stored(engine):
    await put(engine, "order-7", task="charge", remember=WEEK)
    batch = [mail("a", remember=WEEK), mail("order-7", remember=WEEK), mail("b", remember=WEEK)]
    assert await engine.enqueue(batch) == [created("a"), known("order-7", "charge"), created("b")]
    assert ids(await everything(engine)) == ["b", "a", "order-7"]


async def test_the_ledger_knows_the_task_when_the_job_is_long_pruned(engine, store):
    await finished(engine, "succeeded", id="order-7", task="work", remember=WEEK, keep=60.0)
    store.clock.advance(WEEK - 60)
    assert (await engine.prune(100)).jobs == 1
    assert await engine.enqueue([mail("order-7", remember=WEEK)]) == [known("order-7", "work")]
    assert await everything(engine) == ()


async def test_the_ledger_knows_the_task_of_a_purged_job(engine):
    await put(engine, "order-7", task="charge", remember=WEEK)
    await engine.purge(Filter(), 10)
    batch = [mail("a", remember=WEEK), mail("order-7", remember=WEEK)]
    assert await engine.enqueue(batch) == [created("a"), known("order-7", "charge")]


async def test_the_ledger_counts_before_the_job_that_is_there(engine):
    """Only ids that a person chose are in it: this one was purged, and then made by chance."""
    await put(engine, "order-7", task="charge", remember=WEEK)
    await engine.purge(Filter(), 10)
    await put(engine, "order-7", task="ship")
    assert await engine.enqueue([mail("order-7", remember=WEEK)]) == [known("order-7", "charge")]


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled"])
async def test_the_task_of_a_job_that_has_ended_is_named(engine, kind):
    await finished(engine, kind, id="order-7", task="work", remember=60.0)
    assert await engine.enqueue([mail("order-7", remember=60.0)]) == [known("order-7", "work")]


async def test_an_id_is_free_for_another_task_when_its_time_is_over_and_it_was_pruned(
    engine, store
):
    await finished(engine, "succeeded", id="order-7", task="work", remember=60.0, keep=60.0)
    store.clock.advance(61)
    await engine.prune(100)
    assert await engine.enqueue([mail("order-7", remember=60.0)]) == [created("order-7")]


async def test_the_same_task_and_id_is_a_no_op_whatever_the_arguments(engine):
    await put(engine, "order-7", task="mail", remember=WEEK, payload=b'{"to":"ada"}')
    again = mail("order-7", remember=WEEK, payload=b'{"to":"bob"}', queue="other", unique="new")
    assert await engine.enqueue([again]) == [known("order-7", "mail")]
    assert (await stored(engine, "order-7")).payload == b'{"to":"ada"}'


# --- unique keys ----------------------------------------------------------------------------------


async def test_two_tasks_may_have_the_same_key(engine):
    first = await put(engine, task="charge", unique="order-7")
    (second,) = await engine.enqueue([mail(unique="order-7")])
    assert second.created
    assert await engine.enqueue([mail(unique="order-7")]) == [taken(second.id)]
    assert await engine.enqueue([draft(task="charge", unique="order-7")]) == [taken(first)]


async def test_two_tasks_may_have_the_same_key_inside_one_batch(engine):
    batch = [
        draft("a", task="charge", unique="order-7"),
        mail("b", unique="order-7"),
        mail("c", unique="order-7"),
    ]
    assert await engine.enqueue(batch) == [created("a"), created("b"), taken("b")]


async def test_a_key_for_all_tasks_is_one_for_all_tasks(engine):
    first = await put(engine, task="charge", unique="order-7", unique_scope="app")
    assert await engine.enqueue([mail(unique="order-7", unique_scope="app")]) == [taken(first)]


async def test_a_key_for_all_tasks_is_not_that_of_a_task(engine):
    await put(engine, task="mail", unique="order-7", unique_scope="app")
    assert await engine.enqueue([mail("a", unique="order-7")]) == [created("a")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", "b:c"), ("a:b", "c")),
        (("", "a:b"), ("a", "b")),
        (("a", ":b"), ("a:", "b")),
        (("1:a", "b"), ("1", "a:b")),
        (("🜁", "b"), ("🜁:", "b")),
    ],
)
async def test_no_task_and_key_are_taken_for_another_pair(engine, first, second):
    for task, key in (first, second):
        (receipt,) = await engine.enqueue([draft(task=task, unique=key)])
        assert receipt.created
        (job,) = await engine.get([receipt.id])
        assert (job.task, job.unique, job.unique_scope) == (task, key, "task")
    (receipt,) = await engine.enqueue(
        [draft(task="t", unique=f"{len(first[0])}:{first[0]}:{first[1]}", unique_scope="app")]
    )
    assert receipt.created


@pytest.mark.parametrize("scope", ["task", "app"])
async def test_a_job_shows_the_key_as_it_was_given_through_its_life(engine, scope):
    id = await put(engine, unique="order-7", unique_scope=scope, unique_until="start")
    expected = ("order-7", scope)
    for kind in ("retry", "released", "failed"):
        job = await claim_one(engine)
        assert (job.unique, job.unique_scope) == expected
        await settle(engine, job, kind)
    job = await stored(engine, id)
    assert (job.state, job.unique, job.unique_scope) == (State.FAILED, *expected)
    await changes.retry(engine, [id])
    (found,) = await everything(engine)
    assert (found.unique, found.unique_scope) == expected


@pytest.mark.parametrize("scope", ["task", "app"])
async def test_a_job_that_has_ended_gives_its_key_back_in_either_scope(engine, scope):
    job = await running(engine, unique="order-7", unique_scope=scope)
    await settle(engine, job, "succeeded")
    fields = {"unique": "order-7", "unique_scope": scope}
    assert (await engine.enqueue([draft(**fields)]))[0].created


async def test_a_rescued_job_is_superseded_only_by_a_job_of_its_own_task(engine):
    job = await running(engine, unique="order-7", unique_until="start")
    await put(engine, task="mail", unique="order-7", unique_until="start")
    await bury(engine, job.worker)
    assert (await stored(engine, job.id)).state is State.READY
