"""``enqueue``: jobs go in as they are described, all or none, in order."""

from __future__ import annotations

import pytest

from conformance.steps import (
    about,
    claim,
    created,
    draft,
    enqueue_jobs,
    everything,
    ids,
    known,
    put,
    stored,
)
from penstock.core.job import State
from penstock.engines import reads


async def test_each_draft_has_a_receipt_in_order(engine):
    drafts = [draft(name) for name in "cab"]
    assert await engine.enqueue(drafts) == [created(name) for name in "cab"]


async def test_a_due_job_is_ready(engine):
    job = await stored(engine, await put(engine))
    assert (job.state, job.hold, job.attempt) == (State.READY, None, 0)


async def test_a_draft_says_everything_about_the_job(engine):
    now = await reads.now(engine)
    described = draft(
        "order-1",
        task="mail.send",
        payload=b'{"to":"a@b.c"}',
        queue="mail",
        priority=-3,
        delay=60,
        expires_in=600,
        key="tenant-7",
        unique="welcome:7",
        unique_until="start",
        at_most_once=True,
        name="welcome",
        tags=("one", "two"),
        correlation_id="request-9",
        enqueued_by="host:42",
    )
    await engine.enqueue([described])
    job = await stored(engine, "order-1")
    same = [
        "id task payload queue priority key unique unique_until at_most_once name tags",
        "correlation_id enqueued_by",
    ]
    for name in " ".join(same).split():
        assert getattr(job, name) == getattr(described, name), name
    assert job.enqueued_at == about(now)
    assert (job.run_at, job.expires_at) == (about(now + 60), about(now + 600))


async def test_a_new_job_has_no_past(engine):
    job = await stored(engine, await put(engine))
    assert (job.attempt, job.failures, job.crashes, job.rescues) == (0, 0, 0, 0)
    assert (job.worker, job.started, job.claimed_at, job.finished_at) == (None, False, None, None)
    assert (job.result, job.reason, job.cancel_reason, job.errors) == (None, None, None, ())
    assert (job.progress, job.note) == (None, None)


async def test_a_large_batch_is_one_call(engine):
    jobs = await enqueue_jobs(engine, engine.traits.max_batch)
    assert ids(await claim(engine, want=len(jobs))) == jobs


async def test_what_is_in_one_batch_is_stored_as_each_says(engine):
    plain = [draft(f"plain-{number}", payload=b'{"n":1}') for number in range(3)]
    mixed = [draft("special", tags=("a",)), draft("other", queue="b")]
    for drafts in (plain, mixed):
        receipts = await engine.enqueue(drafts)
        assert receipts == [created(each.id) for each in drafts]
        for each in drafts:
            job = await stored(engine, each.id)
            assert (job.payload, job.queue, job.tags) == (each.payload, each.queue, each.tags)


async def test_a_batch_that_is_sent_again_stores_nothing(engine):
    batch = [draft("a", remember=60.0), draft("b", remember=60.0)]
    await engine.enqueue(batch)
    receipts = await engine.enqueue(batch)
    assert receipts == [known("a"), known("b")]


async def test_another_handle_sees_a_job_once_enqueue_returned(store):
    first, second = await store.open(), await store.open()
    id = await put(first)
    assert (await stored(second, id)).id == id
    assert ids(await claim(second)) == [id]


async def test_new_and_known_drafts_may_share_a_batch(engine):
    await put(engine, "b")
    receipts = await engine.enqueue([draft("a"), draft("b"), draft("c")])
    assert [receipt.created for receipt in receipts] == [True, False, True]
    assert sorted(ids(await everything(engine))) == ["a", "b", "c"]


@pytest.mark.parametrize("priority", [-1000, -1, 0, 1000])
async def test_every_priority_is_kept(engine, priority):
    assert (await stored(engine, await put(engine, priority=priority))).priority == priority
