"""``max_running``: no more attempts of a queue run at once, over all workers."""

from __future__ import annotations

import pytest

from conformance.steps import bury, claim, enqueue_jobs, ids, put, settle
from penstock.engines import changes
from penstock.engines.records import QueueSettings


async def limited(engine, most, queue="default"):
    await engine.set_queue(queue, QueueSettings(max_running=most))


async def test_one_claim_gets_no_more_than_the_limit(engine):
    await limited(engine, 2)
    jobs = await enqueue_jobs(engine, 5)
    assert ids(await claim(engine, want=5)) == jobs[:2]


async def test_the_attempts_of_all_workers_count(engine):
    await limited(engine, 2)
    await enqueue_jobs(engine, 5)
    assert len(await claim(engine, want=1)) == 1
    assert len(await claim(engine, want=5)) == 1
    assert await claim(engine, want=5) == []


async def test_jobs_that_wait_in_a_workers_hands_count(engine):
    await limited(engine, 2)
    await enqueue_jobs(engine, 5)
    assert len(await claim(engine, want=5, slots=0)) == 2
    assert await claim(engine) == []


@pytest.mark.parametrize("kind", ["succeeded", "failed", "retry", "snooze", "cancelled", "expired"])
async def test_an_attempt_that_ended_makes_room(engine, kind):
    await limited(engine, 1)
    first, second = await enqueue_jobs(engine, 2)
    (job,) = await claim(engine)
    assert job.id == first
    await settle(engine, job, kind, delay=60)
    assert ids(await claim(engine, want=5)) == [second]


async def test_a_rescue_makes_room(engine):
    await limited(engine, 1)
    await put(engine)
    (job,) = await claim(engine)
    await bury(engine, job.worker)
    assert ids(await claim(engine)) == [job.id]


async def test_a_cancelled_attempt_takes_room_until_it_ends(engine):
    await limited(engine, 1)
    await enqueue_jobs(engine, 2)
    (job,) = await claim(engine)
    await changes.cancel(engine, [job.id], "enough")
    assert await claim(engine) == []


async def test_queues_are_counted_apart(engine):
    await limited(engine, 1, "a")
    a, b = await enqueue_jobs(engine, 3, queue="a"), await enqueue_jobs(engine, 3, queue="b")
    assert ids(await claim(engine, "a", "b", want=9)) == [a[0], *b]


async def test_a_limit_lowered_below_what_runs_stops_claims_until_there_is_room(engine):
    await enqueue_jobs(engine, 5)
    jobs = await claim(engine, want=3)
    await limited(engine, 2)
    assert await claim(engine) == []
    await settle(engine, jobs[0], "succeeded")
    assert await claim(engine) == []
    await settle(engine, jobs[1], "succeeded")
    assert len(await claim(engine, want=5)) == 1


async def test_a_limit_lifted_lets_the_rest_start(engine):
    await limited(engine, 1)
    await enqueue_jobs(engine, 5)
    await claim(engine)
    await engine.set_queue("default", QueueSettings())
    assert len(await claim(engine, want=9)) == 4


async def test_a_limit_of_zero_gives_nothing(engine):
    await limited(engine, 0)
    await put(engine)
    assert await claim(engine) == []


async def test_the_most_urgent_get_the_room(engine):
    await limited(engine, 1)
    await put(engine, priority=9)
    urgent = await put(engine, priority=0)
    assert ids(await claim(engine, want=5)) == [urgent]


async def test_a_fair_queue_keeps_its_limit(engine):
    await engine.set_queue("default", QueueSettings(fair=True, max_running=2))
    await enqueue_jobs(engine, 3, key="a")
    await enqueue_jobs(engine, 3, key="b")
    assert len(await claim(engine, want=9)) == 2
    assert await claim(engine) == []
