"""Races: whatever many handles do at once, it is as if one had done it after the other."""

from __future__ import annotations

import asyncio
from collections import Counter

from conformance.steps import (
    ask,
    bury,
    claim,
    draft,
    enqueue_jobs,
    everything,
    ids,
    joined,
    joined_and_lifted,
    outcome,
    put,
    running,
    send,
    settle,
    standing_still,
    stored,
    told,
    uncontested,
)
from penstock.core.job import KEEP, Hold, State, Verdict
from penstock.engines import changes
from penstock.engines.records import Filter, QueueSettings
from penstock.errors import LeaseLost


async def handles(store, count=4):
    return [await store.open() for _ in range(count)]


async def at_once(number, one, other):
    """Let two calls race; on odd turns the second one starts first."""
    if number % 2 == 0:
        return await asyncio.gather(one, other, return_exceptions=True)
    answers = await asyncio.gather(other, one, return_exceptions=True)
    return answers[::-1]


async def in_rounds(engines, want):
    """Batches of claimers that ask at once, until none is given anything: one that is in the way of
    another may get nothing, and is told to come again.
    """
    batches = []
    while any(found := await asyncio.gather(*(claim(engine, want=want) for engine in engines))):
        batches += found
    return batches


async def test_claimers_that_race_never_share_a_job(store):
    """Each ready job goes to exactly one of the workers that ask at once."""
    engines = await handles(store)
    jobs = await enqueue_jobs(engines[0], 100)

    batches = await asyncio.gather(*(claim(engine, want=30) for engine in engines))

    assert sorted(job.id for batch in batches for job in batch) == sorted(jobs)


async def test_claimers_that_race_for_due_jobs_never_share_one(store):
    engines = await handles(store)
    jobs = await enqueue_jobs(engines[0], 40, delay=60)
    store.clock.advance(61)

    batches = await in_rounds(engines, want=15)

    assert sorted(job.id for batch in batches for job in batch) == sorted(jobs)


async def test_claimers_that_race_in_a_fair_queue_serve_each_key_once_per_turn(store):
    """A claim moves on the lines of its keys before the next one chooses."""
    engines = await handles(store)
    await engines[0].set_queue("default", QueueSettings(fair=True))
    jobs = await enqueue_jobs(engines[0], 20, key="a")
    jobs += await enqueue_jobs(engines[0], 20, key="b")

    batches = await in_rounds(engines, want=10)

    assert sorted(job.id for batch in batches for job in batch) == sorted(jobs)
    shares = [Counter(job.key for job in batch) for batch in batches]
    assert max(abs(share["a"] - share["b"]) for share in shares) <= 1


async def test_claimers_that_race_never_overrun_a_limit(store):
    engines = await handles(store)
    await engines[0].set_queue("default", QueueSettings(max_running=3))
    await enqueue_jobs(engines[0], 40)

    for _ in range(5):
        batches = await asyncio.gather(*(claim(engine, want=5) for engine in engines))
        claimed = [job for batch in batches for job in batch]
        assert len(claimed) == 3
        await asyncio.gather(*(settle(engines[0], job, "succeeded") for job in claimed))


async def test_claimers_that_race_for_an_ordered_queue_run_one_job_at_a_time(store):
    engines = await handles(store)
    await engines[0].set_queue("default", QueueSettings(ordered=True))
    jobs = await enqueue_jobs(engines[0], 6)
    done = []

    for number in range(12):
        batches = await asyncio.gather(*(claim(engine, want=5) for engine in engines))
        (job,) = [job for batch in batches for job in batch]
        # Every other attempt is given back: the job comes again before all others.
        await settle(engines[number % 4], job, "succeeded" if number % 2 else "released")
        done.append(job.id)

    assert done == [id for id in jobs for _ in range(2)]


async def test_the_same_id_enqueued_many_times_at_once_is_one_job(store):
    engines = await handles(store)
    order = draft("order-1", remember=3600)

    receipts = await asyncio.gather(*(engine.enqueue([order]) for engine in engines * 3))

    assert sum(receipt.created for (receipt,) in receipts) == 1
    assert {receipt.id for (receipt,) in receipts} == {"order-1"}
    assert len(await everything(engines[0])) == 1


async def test_the_same_purged_id_enqueued_many_times_at_once_is_no_job(store):
    engines = await handles(store)
    order = draft("order-1", remember=3600)
    await engines[0].enqueue([order])
    await engines[1].purge(Filter(), 10)

    receipts = await asyncio.gather(*(engine.enqueue([order]) for engine in engines))

    assert not any(receipt.created for (receipt,) in receipts)


async def test_the_same_unique_key_enqueued_many_times_at_once_is_one_job(store):
    engines = await handles(store)

    receipts = await asyncio.gather(
        *(engine.enqueue([draft(unique="invoice")]) for engine in engines * 3)
    )

    (owner,) = [receipt.id for (receipt,) in receipts if receipt.created]
    assert {receipt.id for (receipt,) in receipts} == {owner}
    assert ids(await everything(engines[0])) == [owner]


async def test_tickets_given_at_once_are_all_different(store):
    engines = await handles(store)

    await asyncio.gather(*(enqueue_jobs(engine, 20) for engine in engines))

    jobs = await everything(engines[0])
    assert len({job.seq for job in jobs}) == len(jobs) == 80


async def test_a_job_is_either_claimed_or_cancelled(store):
    one, other = await handles(store, 2)
    for number in range(10):
        id = await put(one)
        worker = await joined(one)
        claimed, (control,) = await at_once(
            number, claim(one, worker=worker), changes.cancel(other, [id], "enough")
        )
        job = await stored(one, id)
        if claimed:
            assert (job.state, job.cancel_reason) == (State.RUNNING, "enough")
        else:
            assert (job.state, job.worker) == (State.CANCELLED, None)
        assert control.changed
        assert control.state is job.state


async def test_an_attempt_is_either_settled_or_rescued(store):
    one, other = await handles(store, 2)
    for number in range(10):
        job = await running(one)
        sighting = standing_still(job)
        verdict, rescued = await at_once(
            number, settle(one, job, "succeeded"), changes.rescue(other, [sighting], 10)
        )
        after = await stored(one, job.id)
        if rescued:
            assert isinstance(verdict, LeaseLost)
            assert after.state is State.READY
        else:
            assert verdict is Verdict.DONE
            assert after.state is State.SUCCEEDED


async def test_a_beat_and_a_burial_at_once_agree(store):
    one, other = await handles(store, 2)
    for number in range(10):
        job = await running(one)
        sighting = standing_still(job)
        beat, rescued = await at_once(
            number, one.beat(job.worker), changes.rescue(other, [sighting], 10)
        )
        assert isinstance(beat, LeaseLost) == bool(rescued)


async def test_a_dead_workers_job_is_rescued_once(store):
    engines = await handles(store)
    jobs = [await running(engines[0]) for _ in range(10)]
    sightings = [standing_still(job) for job in jobs]

    batches = await asyncio.gather(*(changes.rescue(engine, sightings, 10) for engine in engines))

    assert sorted(id for batch in batches for id in ids(batch)) == sorted(ids(jobs))
    assert {(await stored(engines[0], job.id)).crashes for job in jobs} == {1}


async def test_the_same_outcome_sent_many_times_at_once_counts_once(store):
    engines = await handles(store)
    job = await running(engines[0])

    verdicts = await asyncio.gather(*(settle(engine, job, "retry", delay=60) for engine in engines))

    assert verdicts == [Verdict.DONE] * 4
    assert (await stored(engines[0], job.id)).failures == 1


async def test_of_two_who_run_one_key_at_once_the_later_is_superseded_once(store):
    """A job that wants to wait again races a new one for their key: one of them has it."""
    one, other = await handles(store, 2)
    for number in range(10):
        key = f"key-{number}"
        job = await running(one, unique=key, unique_until="start")
        verdict, (receipt,) = await at_once(
            number,
            told(one, job, "retry", delay=60),
            uncontested(other.enqueue, [draft(unique=key)]),
        )
        assert verdict is Verdict.DONE
        state = (await stored(one, job.id)).state
        assert state is (State.CANCELLED if receipt.created else State.SCHEDULED)


async def test_people_who_send_a_job_back_at_once_send_it_back_once(store):
    engines = await handles(store)
    id = await put(engines[0])
    await changes.cancel(engines[0], [id], "enough")

    answers = await asyncio.gather(*(changes.retry(engine, [id]) for engine in engines))

    assert sum(control.changed for (control,) in answers) == 1


async def test_promoters_that_race_promote_each_job_once(store):
    engines = await handles(store)
    await enqueue_jobs(engines[0], 30, delay=60)
    store.clock.advance(61)

    promoted = await asyncio.gather(*(engine.promote(100) for engine in engines))

    assert sum(each.ready for each in promoted) == 30


async def test_pruners_that_race_count_each_job_once(store):
    engines = await handles(store)
    jobs = await enqueue_jobs(engines[0], 30)
    await changes.cancel(engines[0], jobs, "enough")
    store.clock.advance(KEEP + 1)

    pruned = await asyncio.gather(*(engine.prune(20) for engine in engines))

    assert sum(each.jobs for each in pruned) == 30


async def test_a_hold_is_not_forgotten_when_its_worker_joins_at_once(store):
    """Either the release sees the worker that knows the task, or the worker finds the hold."""
    one, other = await handles(store, 2)
    for number in range(10):
        task = f"new-{number}"
        job = await running(one, task=task)
        held = outcome(job, "released", hold=Hold.UNKNOWN_TASK, hold_cause=task)
        await at_once(number, send(one, job.worker, held), joined_and_lifted(other, tasks=[task]))
        assert (await stored(one, job.id)).hold is None


async def test_nothing_is_lost_or_run_twice_when_everybody_works(store):
    """Producers, workers and a leader at once: every job ends exactly once."""
    engines = await handles(store)
    ran: list[tuple[str, int]] = []
    total = 60

    async def produce(engine):
        for _ in range(3):
            await enqueue_jobs(engine, total // 6, queue="race")

    async def work(engine):
        worker = await joined(engine)
        outcomes: tuple = ()
        while True:
            answer = await engine.exchange(ask(worker, "race", want=4, outcomes=outcomes))
            assert set(answer.verdicts) <= {Verdict.DONE, Verdict.LATER}
            ran.extend((job.id, job.attempt) for job in answer.jobs)
            told = zip(outcomes, answer.verdicts, strict=True)
            later = tuple(each for each, verdict in told if verdict is Verdict.LATER)
            outcomes = later + tuple(
                outcome(job, "succeeded" if job.attempt > 1 else "retry") for job in answer.jobs
            )
            if not outcomes and len(ran) >= 2 * total:
                return
            await asyncio.sleep(0)

    async def tidy(engine):
        for _ in range(10):
            await engine.promote(5)
            await changes.rescue(engine, [], 5)
            await engine.repair(5)
            await changes.repair_holds(engine, 5)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for engine in engines[:2]:
            group.create_task(produce(engine))
        for engine in engines:
            group.create_task(work(engine))
        group.create_task(tidy(engines[3]))

    jobs = await everything(engines[0])
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert sorted(ran) == sorted((job.id, attempt) for job in jobs for attempt in (1, 2))
    assert await bury(engines[0]) == []
