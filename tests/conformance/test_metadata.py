"""What a job remembers for people: its name, tags, correlation id, who enqueued it and when."""

from __future__ import annotations

from typing import Any

from conformance.steps import about, bury, claim_one, put, settle, stored
from penstock.core.job import State
from penstock.engines import changes, reads

FACTS: dict[str, Any] = {
    "name": "welcome mail",
    "tags": ("mail", "tenant:7", "b"),
    "correlation_id": "request-9",
    "enqueued_by": "web-1:4711",
    "key": "tenant-7",
}


def facts(job):
    return {name: getattr(job, name) for name in FACTS}


async def test_a_job_remembers_what_its_caller_said(engine):
    now = await reads.now(engine)
    job = await stored(engine, await put(engine, **FACTS))
    assert facts(job) == FACTS
    assert job.enqueued_at == about(now)


async def test_a_worker_sees_what_the_caller_said(engine):
    await put(engine, **FACTS, payload=b'{"n":1}')
    job = await claim_one(engine)
    assert facts(job) == FACTS
    assert job.payload == b'{"n":1}'


async def test_nothing_of_it_changes_over_a_jobs_life(engine, store):
    id = await put(engine, **FACTS, payload=b'{"n":1}')
    born = await stored(engine, id)
    store.clock.advance(60)
    await settle(engine, await claim_one(engine), "retry")
    await bury(engine, (await claim_one(engine)).worker)
    await settle(engine, await claim_one(engine), "released")
    await settle(engine, await claim_one(engine), "failed")
    await changes.retry(engine, [id])
    await settle(engine, await claim_one(engine), "succeeded")
    job = await stored(engine, id)
    assert (job.state, job.attempt) == (State.SUCCEEDED, 5)
    assert facts(job) == FACTS
    assert (job.enqueued_at, job.payload) == (born.enqueued_at, b'{"n":1}')


async def test_all_of_it_may_be_left_out(engine):
    job = await stored(engine, await put(engine))
    assert facts(job) == {
        "name": None,
        "tags": (),
        "correlation_id": None,
        "enqueued_by": "",
        "key": None,
    }


async def test_tags_keep_their_order(engine):
    tags = tuple("zyxabc")
    assert (await stored(engine, await put(engine, tags=tags))).tags == tags
