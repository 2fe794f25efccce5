"""Priorities: a lower number runs first, whatever came before."""

from __future__ import annotations

from conformance.steps import claim, enqueue_jobs, ids, put, settle


async def test_lower_numbers_run_first(engine):
    numbers = [5, -1000, 7, 0, 1000, -1]
    by_number = {number: await put(engine, priority=number) for number in numbers}
    assert ids(await claim(engine, want=9)) == [by_number[number] for number in sorted(numbers)]


async def test_an_urgent_job_overtakes_all_that_wait(engine):
    waiting = await enqueue_jobs(engine, 5)
    urgent = await put(engine, priority=0)
    assert ids(await claim(engine, want=2)) == [urgent, waiting[0]]


async def test_jobs_of_one_priority_run_in_order(engine):
    low = await enqueue_jobs(engine, 3, priority=9)
    high = await enqueue_jobs(engine, 3, priority=1)
    assert ids(await claim(engine, want=9)) == high + low


async def test_a_delayed_urgent_job_does_not_block(engine):
    await put(engine, priority=0, delay=60)
    normal = await put(engine)
    assert ids(await claim(engine, want=9)) == [normal]


async def test_a_retry_keeps_its_priority(engine):
    urgent = await put(engine, priority=0)
    (job,) = await claim(engine)
    normal = await put(engine)
    await settle(engine, job, "retry")
    assert ids(await claim(engine, want=9)) == [urgent, normal]


async def test_a_released_job_keeps_its_priority(engine):
    low = await put(engine, priority=9)
    (job,) = await claim(engine)
    normal = await put(engine)
    await settle(engine, job, "released")
    assert ids(await claim(engine, want=9)) == [normal, low]
