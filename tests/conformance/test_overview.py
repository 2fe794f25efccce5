"""An overview for a screen: how the store does now."""

from __future__ import annotations

import pytest

from conformance.steps import claim, enqueue_jobs, finished, ids, joined, put, running, settle
from penstock.core.job import Hold, State
from penstock.engines import changes, reads
from penstock.engines.engine import Engine
from penstock.engines.reads import Traffic
from penstock.engines.records import QueueSettings


async def counted(engine: Engine) -> dict[tuple[str, State, Hold | None], int]:
    seen = await reads.overview(engine, 10, 10)
    return {(count.queue, count.state, count.hold): count.jobs for count in seen.counts}


async def test_an_empty_store_has_nothing_to_show(engine):
    seen = await reads.overview(engine, 10, 10)
    assert seen.now == pytest.approx(await reads.now(engine), abs=2.0)
    assert (seen.counts, seen.traffic, seen.workers) == ((), (), ())
    assert (seen.settings, seen.busy) == ({}, {})
    assert (seen.running, seen.failed) == ((), ())


async def test_it_counts_what_waits_runs_or_has_failed(engine):
    await enqueue_jobs(engine, 3, queue="a")
    await enqueue_jobs(engine, 2, queue="a", delay=60)
    await enqueue_jobs(engine, 6, queue="b")
    jobs = await claim(engine, "b", want=5)
    await settle(engine, jobs[0], "succeeded")
    await settle(engine, jobs[1], "failed")
    await settle(engine, jobs[2], "cancelled")
    await settle(engine, jobs[3], "released", hold=Hold.RATE, hold_cause="api", delay=60)
    assert await counted(engine) == {
        ("a", State.READY, None): 3,
        ("a", State.SCHEDULED, None): 2,
        ("b", State.READY, None): 1,
        ("b", State.READY, Hold.RATE): 1,
        ("b", State.RUNNING, None): 1,
        ("b", State.FAILED, None): 1,
    }


async def test_attempts_of_several_workers_are_counted_together(engine):
    await enqueue_jobs(engine, 3, queue="a")
    (first,) = await claim(engine, "a")
    second = await claim(engine, "a", want=2)
    seen = await reads.overview(engine, 10, 10)
    assert [(count.state, count.jobs) for count in seen.counts] == [(State.RUNNING, 3)]
    assert seen.busy == {first.worker: 1, second[0].worker: 2}


async def test_traffic_is_what_came_and_ended_within_the_window(engine, store):
    await finished(engine, "succeeded", queue="a")
    store.clock.advance(100)
    await enqueue_jobs(engine, 4, queue="a")
    jobs = await claim(engine, "a", want=3)
    await settle(engine, jobs[0], "succeeded")
    await settle(engine, jobs[1], "failed")
    await settle(engine, jobs[2], "cancelled")
    await put(engine, queue="b")
    assert (await reads.overview(engine, 50, 10)).traffic == (
        Traffic(queue="a", entered=4, succeeded=1, failed=1, cancelled=1),
        Traffic(queue="b", entered=1),
    )
    older = (await reads.overview(engine, 500, 10)).traffic
    assert (older[0].entered, older[0].succeeded) == (5, 2)


async def test_the_longest_running_come_first(engine, store):
    first = await running(engine)
    store.clock.advance(5)
    second = await running(engine)
    store.clock.advance(5)
    await running(engine)
    assert ids((await reads.overview(engine, 10, 2)).running) == [first.id, second.id]


async def test_the_latest_failures_come_first_whatever_their_queues(engine, store):
    for queue in "aba":
        await finished(engine, "failed", queue=queue)
        store.clock.advance(5)
    seen = await reads.overview(engine, 10, 2)
    assert [job.queue for job in seen.failed] == ["a", "b"]
    assert (seen.failed[0].finished_at or 0) > (seen.failed[1].finished_at or 0)


async def test_nothing_is_picked_out_below_a_limit_of_one(engine):
    await running(engine)
    await finished(engine, "failed")
    for limit in (0, -1):
        seen = await reads.overview(engine, 10, limit)
        assert (seen.running, seen.failed) == ((), ())
        assert {count.state for count in seen.counts} == {State.RUNNING, State.FAILED}


async def test_a_job_that_a_person_sent_back_is_no_failure_any_more(engine):
    job = await finished(engine, "failed", queue="a")
    await changes.retry(engine, [job.id])
    seen = await reads.overview(engine, 10, 10)
    assert seen.failed == ()
    assert await counted(engine) == {("a", State.READY, None): 1}


async def test_workers_and_settings_are_in_it(engine):
    worker = await joined(engine)
    settings = QueueSettings(paused=True, note="the printer is on fire")
    await engine.set_queue("labels", settings)
    seen = await reads.overview(engine, 10, 10)
    assert [info.id for info in seen.workers] == [worker]
    assert list(seen.workers) == await engine.workers()
    assert seen.settings == {"labels": settings}
