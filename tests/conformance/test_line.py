"""``line`` and ``hands``: where a job stands, and what the workers have."""

from __future__ import annotations

import pytest

from conformance.steps import (
    bury,
    claim,
    claim_one,
    enqueue_jobs,
    everything,
    joined,
    put,
    settle,
    stored,
)
from penstock.core.job import State
from penstock.engines import records
from penstock.engines.records import Hand, QueueSettings, Standing


async def test_those_before_a_job_are_counted_by_priority_and_ticket(engine):
    await enqueue_jobs(engine, 3)
    id = await put(engine)
    await enqueue_jobs(engine, 2, priority=0)
    await enqueue_jobs(engine, 4)
    await enqueue_jobs(engine, 4, priority=10)
    await enqueue_jobs(engine, 4, queue="other", priority=0)
    found = await engine.line(id)
    assert (found.ahead, found.more_urgent, found.keys) == (5, 2, (("", 5),))
    assert found.job == await stored(engine, id)


async def test_what_is_not_in_line_has_nobody_before_it(engine):
    await put(engine)
    later = await put(engine, delay=60)
    assert (await engine.line(later)).ahead == 0
    job = await claim_one(engine)
    assert (await engine.line(job.id)).ahead == 0


async def test_what_cannot_start_now_or_any_more_is_not_before_a_job(engine, store):
    await put(engine, delay=60)
    await put(engine, expires_in=1)
    id = await put(engine)
    assert (await engine.line(id)).ahead == 1
    store.clock.advance(2)
    assert (await engine.line(id)).ahead == 0


async def test_no_more_are_counted_than_the_limit_and_one(engine, monkeypatch):
    for module in ("memory.reads", "sqlite.reads", "postgres.reads"):
        monkeypatch.setattr(f"penstock.engines.{module}.LINE_LIMIT", 3)
    await enqueue_jobs(engine, 9)
    id = await put(engine)
    assert (await engine.line(id)).ahead == 4
    assert records.LINE_LIMIT == 10_000


async def test_the_keys_before_a_job_of_a_fair_queue_are_named_by_how_many_they_have(engine):
    await engine.set_queue("fair", QueueSettings(fair=True))
    await enqueue_jobs(engine, 3, queue="fair", key="big")
    await enqueue_jobs(engine, 2, queue="fair", key="small")
    await engine.mend()
    last = [job.id for job in sorted(await everything(engine), key=lambda job: job.order)][-1]
    found = await engine.line(last)
    assert (found.ahead, found.keys) == (4, (("big", 2), ("small", 2)))


async def test_an_open_job_blocks_the_others_of_an_ordered_queue(engine):
    await engine.set_queue("default", QueueSettings(ordered=True))
    first, second = await enqueue_jobs(engine, 2)
    job = await claim_one(engine)
    assert job.id == first
    assert (await engine.line(second)).blockers == ()
    await settle(engine, job, "retry", delay=60)
    assert (await engine.line(second)).blockers == (first,)
    assert (await engine.line(first)).blockers == ()
    await engine.set_queue("default", QueueSettings())
    assert (await engine.line(second)).blockers == ()


async def test_an_open_job_is_blocked_by_the_open_ones_that_are_ready_before_it(engine):
    first, second, third = await enqueue_jobs(engine, 3)
    for job in await claim(engine, want=3):
        delay = 60 if job.id == first else 0
        await settle(engine, job, "retry" if delay else "released", delay=delay)
    await engine.set_queue("default", QueueSettings(ordered=True))
    assert (await engine.line(third)).blockers == (second,)
    assert (await engine.line(second)).blockers == ()


async def test_an_open_job_that_has_expired_blocks_nobody(engine, store):
    await engine.set_queue("default", QueueSettings(ordered=True))
    await put(engine, expires_in=30)
    id = await put(engine)
    await settle(engine, await claim_one(engine), "retry", delay=60)
    store.clock.advance(31)
    assert (await engine.line(id)).blockers == ()


async def test_an_id_is_known_by_the_ledger_after_the_job_has_gone(engine, store):
    now = store.clock.now()
    await put(engine, "mine", remember=100)
    assert (await engine.line("mine")).remembered_until == now + 100
    await settle(engine, await claim_one(engine), "succeeded")
    store.clock.advance(10)
    await engine.prune(5, 10)
    gone = Standing(now=now + 10, remembered_until=now + 100)
    assert await engine.line("mine") == gone
    store.clock.advance(90)
    assert (await engine.line("mine")).remembered_until is None


async def test_what_was_decided_about_the_queue_comes_along(engine):
    id = await put(engine, queue="mail")
    assert (await engine.line(id)).settings == QueueSettings()
    decided = QueueSettings(paused=True, note="later", fair=True)
    await engine.set_queue("mail", decided)
    assert (await engine.line(id)).settings == decided


async def test_an_unknown_id_stands_nowhere(engine, store):
    assert await engine.line("nobody") == Standing(now=store.clock.now())


async def test_hands_tell_what_each_worker_has(engine, store):
    now = store.clock.now()
    one, two = sorted([await joined(engine), await joined(engine)])
    first = await put(engine, task="a")
    await claim(engine, worker=one)
    store.clock.advance(5)
    await put(engine, task="a")
    await claim(engine, worker=one, slots=0)
    store.clock.advance(5)
    urgent = await put(engine, task="b", queue="mail", priority=0)
    await claim_one(engine, "mail", worker=two)
    assert await engine.hands() == [
        Hand(
            worker=one,
            queue="default",
            task="a",
            priority=5,
            jobs=2,
            started=1,
            first=first,
            since_at=now,
        ),
        Hand(
            worker=two,
            queue="mail",
            task="b",
            priority=0,
            jobs=1,
            started=1,
            first=urgent,
            since_at=now + 10,
        ),
    ]


async def test_hands_tell_of_workers_without_a_lease_until_their_jobs_are_rescued(engine):
    await put(engine)
    job = await claim_one(engine)
    await engine.leave(job.worker)
    assert [hand.worker for hand in await engine.hands()] == [job.worker]
    assert [each.state for each in await bury(engine)] == [State.READY]
    assert await engine.hands() == []


@pytest.mark.parametrize("rehearse", [True, False])
async def test_mending_may_be_rehearsed(engine, rehearse):
    await engine.set_queue("fair", QueueSettings(fair=True))
    id = await put(engine, queue="fair")
    before = await stored(engine, id)
    assert (await engine.mend(rehearse=rehearse)).placed == 1
    assert (await stored(engine, id) == before) is rehearse
