"""Law 1: an exchange is one round trip but several steps, each seeing the one before."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from conformance.steps import (
    ask,
    claim_one,
    enqueue_jobs,
    everything,
    ids,
    joined,
    outcome,
    put,
    stored,
)
from penstock.core.job import State, Verdict
from penstock.engines import reads
from penstock.engines.records import QueueSettings


async def turn(engine, job, kind, *queues, want=1, **fields):
    """Settle ``job`` and claim more in one exchange."""
    one_turn = ask(job.worker, *queues, want=want)
    return await engine.exchange(replace(one_turn, outcomes=(outcome(job, kind, **fields),)))


async def test_a_job_released_in_an_exchange_can_be_claimed_in_it(engine):
    await put(engine)
    job = await claim_one(engine)
    answer = await turn(engine, job, "released")
    assert answer.verdicts == (Verdict.DONE,)
    assert [(again.id, again.attempt) for again in answer.jobs] == [(job.id, 2)]


async def test_a_retry_without_delay_can_be_claimed_in_the_same_exchange(engine):
    await put(engine)
    job = await claim_one(engine)
    answer = await turn(engine, job, "retry")
    assert [(again.id, again.attempt) for again in answer.jobs] == [(job.id, 2)]


async def test_the_room_that_a_settlement_makes_is_used_in_the_same_exchange(engine):
    await engine.set_queue("default", QueueSettings(max_running=1))
    first, second = await put(engine), await put(engine)
    job = await claim_one(engine)
    assert job.id == first
    answer = await turn(engine, job, "succeeded", want=5)
    assert ids(answer.jobs) == [second]


async def test_a_claimer_promotes_what_is_due(engine, store):
    id = await put(engine, delay=60)
    store.clock.advance(61)
    assert (await claim_one(engine)).id == id


async def test_an_exchange_that_wants_nothing_promotes_too(engine, store):
    id = await put(engine, delay=60)
    store.clock.advance(61)
    await engine.exchange(ask(await joined(engine), want=0))
    assert (await stored(engine, id)).state is State.READY


async def test_an_exchange_promotes_only_so_many_and_the_next_one_goes_on(engine, store):
    jobs = await enqueue_jobs(engine, 15, delay=60)
    store.clock.advance(61)
    worker = await joined(engine)
    await engine.exchange(replace(ask(worker, want=0), promote=10))
    states = Counter(job.state for job in await everything(engine))
    assert states == {State.READY: 10, State.SCHEDULED: 5}
    answer = await engine.exchange(ask(worker, want=15))
    assert ids(answer.jobs) == jobs


async def test_an_exchange_lets_only_so_many_expire_and_the_next_one_goes_on(engine, store):
    await enqueue_jobs(engine, 15, expires_in=60)
    store.clock.advance(61)
    worker = await joined(engine)
    left = []
    for _ in range(3):
        await engine.exchange(replace(ask(worker, want=0), promote=10))
        left.append(sum(job.state is State.READY for job in await everything(engine)))
    assert left == [5, 0, 0]


async def test_a_key_that_becomes_active_in_an_exchange_is_claimed_in_it(engine):
    await engine.set_queue("default", QueueSettings(fair=True))
    id = await put(engine, key="a")
    assert (await claim_one(engine)).id == id


async def test_what_falls_due_in_a_fair_queue_is_promoted_and_claimed_at_once(engine, store):
    await engine.set_queue("default", QueueSettings(fair=True))
    id = await put(engine, key="a", delay=60)
    store.clock.advance(61)
    assert (await claim_one(engine)).id == id


async def test_a_job_that_began_and_ended_between_two_turns_ends(engine):
    await put(engine)
    job = await claim_one(engine, slots=0)
    one_turn = ask(job.worker, want=0, begun=((job.id, 1),), outcomes=(outcome(job, "succeeded"),))
    assert (await engine.exchange(one_turn)).verdicts == (Verdict.DONE,)
    assert (await stored(engine, job.id)).state is State.SUCCEEDED


async def test_verdicts_are_in_the_order_of_the_outcomes(engine):
    await put(engine), await put(engine)
    worker = await joined(engine)
    answer = await engine.exchange(ask(worker, want=2))
    first, second = answer.jobs
    stale = replace(outcome(second, "succeeded"), claim=7)
    outcomes = (outcome(second, "succeeded"), stale, outcome(first, "failed"))
    answer = await engine.exchange(ask(worker, want=0, outcomes=outcomes))
    assert answer.verdicts == (Verdict.DONE, Verdict.STALE, Verdict.DONE)
    assert (await stored(engine, first.id)).state is State.FAILED
    assert (await stored(engine, second.id)).state is State.SUCCEEDED


async def test_a_claim_shows_exactly_what_is_stored(engine):
    await put(engine)
    job = await claim_one(engine)
    assert job == await stored(engine, job.id)
    assert (job.state, job.attempt) == (State.RUNNING, 1)


async def test_an_exchange_gives_no_more_than_is_wanted(engine):
    for _ in range(5):
        await put(engine)
    answer = await engine.exchange(ask(await joined(engine), want=3))
    assert len(answer.jobs) == 3


async def test_jobs_beyond_the_free_slots_are_not_started(engine):
    await enqueue_jobs(engine, 3)
    answer = await engine.exchange(ask(await joined(engine), want=3, slots=2))
    assert [job.started for job in answer.jobs] == [True, True, False]
    assert answer.jobs == tuple([await stored(engine, job.id) for job in answer.jobs])


async def test_an_exchange_that_wants_nothing_gets_nothing(engine):
    await put(engine)
    assert (await engine.exchange(ask(await joined(engine), want=0))).jobs == ()


async def test_an_exchange_gives_only_jobs_of_the_queues_asked_for(engine):
    await put(engine, queue="other")
    assert (await engine.exchange(ask(await joined(engine), "default", want=5))).jobs == ()


async def test_an_exchange_says_when_the_next_job_of_its_queues_falls_due(engine):
    worker = await joined(engine)
    assert (await engine.exchange(ask(worker))).due_in is None
    await put(engine, delay=900)
    await put(engine, delay=300)
    await put(engine, delay=60, queue="other")
    assert 290 < (await engine.exchange(ask(worker))).due_in <= 300


async def test_an_exchange_says_what_time_it_is(engine):
    before = await reads.now(engine)
    answer = await engine.exchange(ask(await joined(engine)))
    assert before <= answer.now <= await reads.now(engine)
