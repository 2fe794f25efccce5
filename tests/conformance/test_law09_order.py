"""Law 9: priority; among queues of one priority, turns; within a queue, the ticket."""

from __future__ import annotations

from conformance.steps import ask, claim, enqueue_jobs, ids, joined, put, settle


async def test_priority_comes_first(engine):
    low, normal, high = [await put(engine, priority=p) for p in (10, 5, 0)]
    assert ids(await claim(engine, want=3)) == [high, normal, low]


async def test_priority_comes_before_the_turn_of_a_queue(engine):
    first = await put(engine, queue="a", priority=5)
    urgent = await enqueue_jobs(engine, 3, queue="b", priority=0)
    assert ids(await claim(engine, "a", "b", want=4)) == [*urgent, first]


async def test_queues_of_one_priority_take_turns(engine):
    a = await enqueue_jobs(engine, 3, queue="a")
    b = await enqueue_jobs(engine, 3, queue="b")
    turns = [a[0], b[0], a[1], b[1], a[2], b[2]]
    assert ids(await claim(engine, "a", "b", want=6)) == turns


async def test_the_turns_begin_with_the_first_queue_asked_for(engine):
    a = await enqueue_jobs(engine, 2, queue="a")
    b = await enqueue_jobs(engine, 2, queue="b")
    assert ids(await claim(engine, "b", "a", want=3)) == [b[0], a[0], b[1]]
    assert ids(await claim(engine, "a", "b", want=1)) == [a[1]]


async def test_a_queue_that_has_nothing_loses_its_turn(engine):
    a = await enqueue_jobs(engine, 1, queue="a")
    c = await enqueue_jobs(engine, 3, queue="c")
    assert ids(await claim(engine, "a", "b", "c", want=9)) == [a[0], *c]


async def test_turns_go_on_across_priorities(engine):
    urgent = [await put(engine, queue=q, priority=0) for q in ("a", "b", "a")]
    normal = [await put(engine, queue=q, priority=5) for q in ("a", "b")]
    expected = [urgent[0], urgent[1], urgent[2], normal[1], normal[0]]
    assert ids(await claim(engine, "a", "b", want=9)) == expected


async def test_within_a_queue_the_ticket_decides(engine):
    jobs = await enqueue_jobs(engine, 10)
    assert ids(await claim(engine, want=4)) == jobs[:4]
    assert ids(await claim(engine, want=9)) == jobs[4:]


async def test_ids_are_never_used_for_order(engine):
    names = ["z", "a", "m", "0", "Z"]
    for name in names:
        await put(engine, name)
    assert ids(await claim(engine, want=9)) == names


async def test_a_waiting_retry_does_not_block_those_behind_it(engine):
    first, second = await enqueue_jobs(engine, 2)
    (job,) = await claim(engine)
    assert job.id == first
    await settle(engine, job, "retry", delay=60)
    assert ids(await claim(engine, want=9)) == [second]


async def test_a_queue_that_is_named_twice_gives_each_job_once(engine):
    jobs = await enqueue_jobs(engine, 3)
    worker = await joined(engine)
    answer = await engine.exchange(ask(worker, "default", "default", want=9))
    assert sorted(ids(answer.jobs)) == sorted(jobs)


async def test_the_most_urgent_of_many_queues_are_claimed(engine):
    """Far more waits than is wanted, spread over queues and priorities."""
    names = [f"q{number}" for number in range(5)]
    for priority in (9, 3, 6):
        for name in names:
            await enqueue_jobs(engine, 4, queue=name, priority=priority)
    claimed = await claim(engine, *names, want=22)
    assert [job.priority for job in claimed] == [3] * 20 + [6] * 2
    assert [job.queue for job in claimed] == (names * 5)[:22]
