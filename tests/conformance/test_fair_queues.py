"""Fair queues: no key can crowd out another, whatever it brings."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    claim_one,
    enqueue_jobs,
    ids,
    joined,
    outcome,
    put,
    settle,
    stored,
)
from penstock.core.fairness import GREATEST_WEIGHT, LEAST_WEIGHT
from penstock.core.job import Hold
from penstock.engines import changes
from penstock.engines.records import Filter, QueueSettings
from penstock.errors import BadOption


async def fair(engine, queue="default", **settings):
    await engine.set_queue(queue, QueueSettings(fair=True, **settings))


async def keys(engine, want, *queues):
    """The keys of the next jobs, in order."""
    return [job.key for job in await claim(engine, *queues, want=want)]


async def test_a_thousand_jobs_of_one_key_do_not_delay_anothers_single_job(engine):
    await fair(engine)
    await enqueue_jobs(engine, 1000, key="a")
    single = await put(engine, key="b")
    assert single in ids(await claim(engine, want=2))


async def test_a_single_job_that_comes_late_waits_about_one_round(engine):
    await fair(engine)
    await enqueue_jobs(engine, 1000, key="a")
    await claim(engine, want=100)
    single = await put(engine, key="b")
    assert single in ids(await claim(engine, want=2))


async def test_keys_take_turns(engine):
    await fair(engine)
    for key in "abc":
        await enqueue_jobs(engine, 4, key=key)
    claimed = await keys(engine, 12)
    assert [sorted(claimed[start : start + 3]) for start in (0, 3, 6, 9)] == [["a", "b", "c"]] * 4


async def test_the_jobs_of_one_key_keep_their_order(engine):
    await fair(engine)
    a = await enqueue_jobs(engine, 5, key="a")
    await enqueue_jobs(engine, 5, key="b")
    claimed = await claim(engine, want=10)
    assert [job.id for job in claimed if job.key == "a"] == a


async def test_weights_share_the_queue(engine):
    await fair(engine, weights={"a": 3.0})
    await enqueue_jobs(engine, 60, key="a")
    await enqueue_jobs(engine, 60, key="b")
    shares = Counter(await keys(engine, 40))
    assert 29 <= shares["a"] <= 31


async def test_a_small_weight_is_a_small_share_but_not_none(engine):
    await fair(engine, weights={"a": 0.25})
    await enqueue_jobs(engine, 60, key="a")
    await enqueue_jobs(engine, 60, key="b")
    shares = Counter(await keys(engine, 50))
    assert 9 <= shares["a"] <= 12


async def test_a_key_that_was_idle_does_not_get_its_idle_time_back(engine):
    await fair(engine)
    await put(engine, key="b")
    await enqueue_jobs(engine, 200, key="a")
    await claim(engine, want=101)
    await enqueue_jobs(engine, 50, key="b")
    shares = Counter(await keys(engine, 20))
    assert 9 <= shares["a"] <= 11


async def test_a_key_that_comes_in_small_batches_gets_no_more_than_its_share(engine):
    await fair(engine)
    await enqueue_jobs(engine, 100, key="a")
    shares: Counter[str] = Counter()
    for _ in range(10):
        await enqueue_jobs(engine, 4, key="b")
        shares.update(await keys(engine, 4))
    assert 19 <= shares["b"] <= 21


async def test_jobs_without_a_key_share_as_one_key(engine):
    await fair(engine)
    await enqueue_jobs(engine, 50)
    single = await put(engine, key="b")
    assert single in ids(await claim(engine, want=2))


async def test_new_keys_without_end_do_not_pass_one_that_waits(engine):
    """A key that has had its turn gets the next one, however many others come meanwhile."""
    await fair(engine)
    await enqueue_jobs(engine, 3, key="waits")
    served = []
    for number in range(12):
        await put(engine, key=f"new-{number}")
        served += await keys(engine, 1)
    assert served.count("waits") == 3


async def test_a_released_job_is_the_first_of_its_key_again(engine):
    await fair(engine)
    a = await enqueue_jobs(engine, 3, key="a")
    job = await claim_one(engine)
    await put(engine, key="b")
    await settle(engine, job, "released")
    claimed = await claim(engine, want=9)
    assert [job.id for job in claimed if job.key == "a"] == a
    assert (await stored(engine, job.id)).seq == job.seq


async def test_places_are_apart_per_queue(engine):
    await fair(engine, "one")
    await fair(engine, "two")
    await enqueue_jobs(engine, 50, key="a", queue="one")
    await claim(engine, "one", want=50)
    await enqueue_jobs(engine, 2, key="a", queue="two")
    await enqueue_jobs(engine, 2, key="b", queue="two")
    assert sorted(await keys(engine, 2, "two")) == ["a", "b"]


async def test_places_are_apart_per_priority(engine):
    await fair(engine)
    await enqueue_jobs(engine, 50, key="a", priority=0)
    await claim(engine, want=50)
    await enqueue_jobs(engine, 2, key="a", priority=5)
    await enqueue_jobs(engine, 2, key="b", priority=5)
    assert sorted(await keys(engine, 2)) == ["a", "b"]


async def test_priority_comes_before_fairness(engine):
    await fair(engine)
    await put(engine, key="b", priority=5)
    await enqueue_jobs(engine, 5, key="a", priority=0)
    assert await keys(engine, 6) == ["a"] * 5 + ["b"]


async def test_a_retry_of_a_fair_queue_goes_to_the_end_of_its_line(engine):
    await fair(engine)
    await enqueue_jobs(engine, 5, key="a")
    job = await claim_one(engine)
    await settle(engine, job, "retry")
    rest = await claim(engine, want=9)
    assert ids(rest)[-1] == job.id
    assert rest[-1].seq > job.seq


async def test_an_urgent_job_of_a_key_goes_before_its_other_ones(engine):
    await fair(engine)
    low = await enqueue_jobs(engine, 3, key="a", priority=10)
    high = await put(engine, key="a", priority=0)
    assert ids(await claim(engine, want=9)) == [high, *low]


async def test_two_claimers_share_the_keys_between_them(store):
    engines = [await store.open() for _ in range(2)]
    await fair(engines[0])
    for key in "abcd":
        await enqueue_jobs(engines[0], 5, key=key)
    served = []
    for number in range(4):
        served += await keys(engines[number % 2], 4)
    assert [sorted(served[start : start + 4]) for start in (0, 4, 8, 12)] == [list("abcd")] * 4


async def test_a_key_whose_jobs_were_cancelled_holds_up_no_other(engine):
    await fair(engine)
    gone = await enqueue_jobs(engine, 3, key="a")
    await enqueue_jobs(engine, 3, key="b")
    await keys(engine, 1)
    await changes.cancel(engine, gone, "enough")
    assert await keys(engine, 9) == ["b", "b", "b"]


@pytest.mark.parametrize("way", ["purge", "expire", "hold"])
async def test_a_key_whose_jobs_are_gone_holds_up_no_other(engine, store, way):
    await fair(engine)
    gone = await enqueue_jobs(engine, 3, key="a", expires_in=50.0)
    await claim(engine, "default", want=0)
    await enqueue_jobs(engine, 2, key="b")
    if way == "purge":
        await engine.purge(Filter(ids=tuple(gone)), 10)
    elif way == "expire":
        store.clock.advance(60)
    else:
        await changes.hold(engine, gone, Hold.BREAKER, "stripe")
    assert await keys(engine, 9) == ["b", "b"]


async def test_a_job_that_falls_due_stands_in_the_line_of_its_key(engine, store):
    await fair(engine)
    await put(engine, key="b", delay=10)
    await enqueue_jobs(engine, 20, key="a")
    await keys(engine, 10)
    store.clock.advance(11)
    assert "b" in await keys(engine, 2)


async def test_a_rescued_job_stands_in_the_line_of_its_key(engine):
    await fair(engine)
    await put(engine, key="b")
    dead = await claim_one(engine)
    await enqueue_jobs(engine, 20, key="a")
    await bury(engine, dead.worker)
    assert dead.id in ids(await claim(engine, want=3, slots=0))


async def test_several_fair_queues_take_turns(engine):
    for queue in ("one", "two"):
        await fair(engine, queue)
        for key in "ab":
            await enqueue_jobs(engine, 3, key=key, queue=queue)
    jobs = await claim(engine, "one", "two", want=8)
    assert Counter((job.queue, job.key) for job in jobs) == dict.fromkeys(
        [("one", "a"), ("one", "b"), ("two", "a"), ("two", "b")], 2
    )


async def test_a_line_goes_on_where_a_claim_that_took_less_than_was_there_left_it(engine):
    """What another queue was preferred to has not been served."""
    await fair(engine, "fair")
    await enqueue_jobs(engine, 4, key="a", queue="fair")
    await enqueue_jobs(engine, 4, key="b", queue="fair")
    await enqueue_jobs(engine, 4, queue="plain", priority=0)
    first = await claim(engine, "fair", "plain", want=5)
    assert [job.queue for job in first] == ["plain"] * 4 + ["fair"]
    rest = await claim(engine, "fair", want=9)
    assert Counter(job.key for job in [first[-1], *rest[:3]]) == {"a": 2, "b": 2}


async def test_a_worker_that_cannot_have_a_keys_job_has_those_of_others(engine):
    await fair(engine)
    await enqueue_jobs(engine, 3, key="a", task="other")
    mine = await put(engine, key="b")
    jobs = await claim(engine, want=3, avoid=frozenset({"other"}))
    assert ids(jobs) == [mine]
    assert len(await claim(engine, want=9)) == 3


async def test_jobs_that_came_one_by_one_do_not_delay_anothers_single_job(engine):
    """A claim that has not looked at all that has come says so, and gives nothing before."""
    await fair(engine)
    for _ in range(2500):
        await put(engine, key="a")
    single = await put(engine, key="b")
    worker = await joined(engine)
    jobs: list[str] = []
    while not jobs:
        answer = await engine.exchange(ask(worker, want=2))
        jobs = ids(answer.jobs)
        assert jobs or answer.due_in == 0
    assert single in jobs


async def test_keys_that_a_worker_cannot_have_do_not_make_one_pass_the_others(engine):
    await fair(engine)
    await put(engine, key="x", task="other")
    await enqueue_jobs(engine, 5, key="a")
    await put(engine, key="b")
    jobs = await claim(engine, want=2, avoid=frozenset({"other"}))
    assert [job.key for job in jobs] == ["a", "b"]


async def test_a_worker_is_told_where_keys_take_turns(engine):
    """It claims less ahead there: what it holds delays the other keys."""
    await fair(engine, "shared")
    worker = await joined(engine)
    told = [
        (await engine.exchange(ask(worker, *queues, want=1, slots=1))).is_keyed
        for queues in (["plain"], ["plain", "shared"], ["shared"])
    ]
    assert told == [False, True, True]


# --- limits per key -------------------------------------------------------------------------------


async def limited(engine, most, **settings):
    await engine.set_queue("default", QueueSettings(max_running_per_key=most, **settings))


async def test_a_key_runs_no_more_than_its_limit(engine):
    await limited(engine, 2)
    await enqueue_jobs(engine, 5, key="a")
    await enqueue_jobs(engine, 1, key="b")
    assert Counter(await keys(engine, 9)) == {"a": 2, "b": 1}
    assert await keys(engine, 9) == []


@pytest.mark.parametrize("kind", ["succeeded", "failed", "retry", "released", "cancelled"])
async def test_a_job_that_runs_no_more_makes_room_for_the_next_of_its_key(engine, kind):
    await limited(engine, 1)
    await enqueue_jobs(engine, 3, key="a")
    job = await claim_one(engine)
    assert await keys(engine, 9) == []
    await settle(engine, job, kind, delay=60 if kind == "retry" else 0)
    assert await keys(engine, 9) == ["a"]


async def test_a_job_that_ended_with_the_turn_makes_room_in_it(engine):
    await limited(engine, 1)
    await enqueue_jobs(engine, 2, key="a")
    worker = await joined(engine)
    job = await claim_one(engine, worker=worker)
    turn = ask(worker, "default", want=5, slots=5, outcomes=(outcome(job, "succeeded"),))
    assert [each.key for each in (await engine.exchange(turn)).jobs] == ["a"]


async def test_a_rescue_makes_room_for_the_next_of_its_key(engine):
    await limited(engine, 1)
    jobs = await enqueue_jobs(engine, 2, key="a")
    dead = await claim_one(engine)
    await bury(engine, dead.worker)
    assert ids(await claim(engine, want=9)) == [jobs[0]]


async def test_the_limit_of_a_key_counts_all_its_priorities(engine):
    await limited(engine, 1)
    await put(engine, key="a", priority=0)
    await put(engine, key="a", priority=5)
    job = await claim_one(engine)
    assert (job.priority, await keys(engine, 9)) == (0, [])
    await settle(engine, job, "succeeded")
    assert await keys(engine, 9) == ["a"]


async def test_jobs_without_a_key_are_not_limited(engine):
    await limited(engine, 1)
    await enqueue_jobs(engine, 3)
    assert await keys(engine, 9) == [None] * 3


async def test_a_limit_that_is_raised_lets_more_run(engine):
    await limited(engine, 1)
    await enqueue_jobs(engine, 4, key="a")
    await claim_one(engine)
    await limited(engine, 3)
    assert await keys(engine, 9) == ["a", "a"]


async def test_a_limit_per_key_and_one_of_the_queue_both_count(engine):
    await limited(engine, 2, max_running=3)
    for key in "abc":
        await enqueue_jobs(engine, 3, key=key)
    claimed = Counter(await keys(engine, 9))
    assert (claimed.total(), max(claimed.values())) == (3, 1)


async def test_claimers_that_race_do_not_overrun_the_limit_of_a_key(store):
    engines = [await store.open() for _ in range(4)]
    await limited(engines[0], 3)
    await enqueue_jobs(engines[0], 20, key="a")
    batches = await asyncio.gather(*(claim(engine, want=5) for engine in engines))
    assert sum(len(batch) for batch in batches) <= 3


async def test_room_is_found_for_a_job_that_came_while_its_key_was_full(engine):
    """Its line was never active before, and only the key is known to have room again."""
    await limited(engine, 1)
    await put(engine, key="a", priority=5)
    job = await claim_one(engine)
    late = await put(engine, key="a", priority=0)
    assert await keys(engine, 9) == []
    await settle(engine, job, "succeeded")
    assert ids(await claim(engine, want=9)) == [late]


async def test_room_is_found_for_a_job_whose_line_was_forgotten_while_its_key_was_full(engine):
    await limited(engine, 1)
    await put(engine, key="a")
    job = await claim_one(engine)
    for _ in range(3):
        await put(engine, key="b")
        await settle(engine, await claim_one(engine), "succeeded")
    await claim(engine)
    await engine.prune(100)
    late = await put(engine, key="a")
    assert await keys(engine, 9) == []
    await settle(engine, job, "succeeded")
    assert ids(await claim(engine, want=9)) == [late]


async def test_a_limit_counts_what_runs_since_before_it_was_set(engine):
    await enqueue_jobs(engine, 5, key="a")
    jobs = await claim(engine, want=3)
    await limited(engine, 1)
    assert await keys(engine, 9) == []
    for job in jobs[:2]:
        await settle(engine, job, "succeeded")
        assert await keys(engine, 9) == []
    await settle(engine, jobs[2], "succeeded")
    assert await keys(engine, 9) == ["a"]


async def test_a_limit_that_is_lowered_stops_no_claim_of_the_others(engine):
    """Claims have not come to the lines of all keys yet when they meet one with too many."""
    await limited(engine, 3)
    await enqueue_jobs(engine, 300, key="b")
    await enqueue_jobs(engine, 5, key="a")
    assert Counter(await keys(engine, 4)) == {"a": 2, "b": 2}
    await limited(engine, 1)
    await put(engine, key="c")
    assert [await keys(engine, 9) for _ in range(3)].count(["c"]) == 1


async def test_a_job_whose_key_was_full_runs_after_the_limit_was_taken_away_and_set_again(engine):
    await limited(engine, 1)
    await enqueue_jobs(engine, 2, key="a")
    job = await claim_one(engine)
    assert await keys(engine, 9) == []
    await engine.set_queue("default", QueueSettings())
    await settle(engine, job, "succeeded")
    await fair(engine)
    assert await keys(engine, 9) == ["a"]


async def test_a_line_that_gives_less_than_its_share_lets_no_other_pass_the_next_one(engine):
    await limited(engine, 1)
    await put(engine, key="a", priority=0)
    await put(engine, key="a")
    await enqueue_jobs(engine, 2)
    await put(engine, key="b")
    assert await keys(engine, 3) == ["a", None, "b"]


@pytest.mark.parametrize("most", [-1, -5])
def test_a_limit_below_zero_is_refused(most):
    with pytest.raises(BadOption, match="max_running_per_key"):
        QueueSettings(max_running_per_key=most)


# --- fairness off and on --------------------------------------------------------------------------


async def test_a_queue_that_stops_being_fair_gives_in_order_of_arrival(engine):
    await fair(engine)
    a = await enqueue_jobs(engine, 5, key="a")
    b = await enqueue_jobs(engine, 5, key="b")
    await claim(engine, "default", want=0)
    await engine.set_queue("default", QueueSettings())
    assert ids(await claim(engine, want=10)) == a + b


async def test_a_job_that_runs_while_its_queue_stops_being_fair_is_not_lost(engine):
    await fair(engine)
    jobs = await enqueue_jobs(engine, 10, key="a")
    claimed = await claim(engine, want=5)
    await engine.set_queue("default", QueueSettings())
    for job in claimed:
        await settle(engine, job, "released")
    assert ids(await claim(engine, want=10)) == jobs


async def test_a_queue_that_is_fair_again_starts_anew(engine):
    await fair(engine)
    await enqueue_jobs(engine, 50, key="a")
    await claim(engine, want=50)
    await engine.set_queue("default", QueueSettings())
    await fair(engine)
    await enqueue_jobs(engine, 3, key="a")
    await enqueue_jobs(engine, 3, key="b")
    assert sorted(await keys(engine, 2)) == ["a", "b"]


async def test_jobs_that_waited_when_a_queue_became_fair_are_not_lost(engine):
    before = await enqueue_jobs(engine, 3, key="a")
    await fair(engine)
    after = await enqueue_jobs(engine, 3, key="b")
    assert sorted(ids(await claim(engine, want=9))) == sorted(before + after)


async def test_many_jobs_that_waited_when_a_queue_became_fair_come_in_batches(engine):
    """No step is longer than a batch: the worker is told to come back at once."""
    waited = await enqueue_jobs(engine, 700, key="a")
    await fair(engine)
    single = await put(engine, key="b")
    worker = await joined(engine)
    found = []
    for _ in range(50):
        answer = await engine.exchange(ask(worker, "default", want=100, slots=100))
        found += ids(answer.jobs)
        if len(answer.jobs) < 100 and answer.due_in != 0.0:
            break
    assert sorted(found) == sorted([*waited, single])


async def test_new_weights_count_for_what_waits(engine):
    await fair(engine)
    await enqueue_jobs(engine, 60, key="a")
    await enqueue_jobs(engine, 60, key="b")
    await keys(engine, 10)
    await fair(engine, weights={"a": 4.0})
    assert 23 <= Counter(await keys(engine, 30))["a"] <= 25


async def test_idle_keys_are_forgotten_and_come_back_level(engine, store):
    await fair(engine)
    for number in range(5):
        await put(engine, key=f"k{number}")
    await enqueue_jobs(engine, 10, key="a")
    jobs = await claim(engine, want=8)
    for job in jobs:
        await settle(engine, job, "succeeded")
    await engine.prune(100)
    await enqueue_jobs(engine, 10, key="k0")
    shares = Counter(await keys(engine, 10))
    assert 4 <= shares["k0"] <= 6


@pytest.mark.parametrize("weight", [0, -1, 0.001, 1000, float("nan"), float("inf")])
def test_a_weight_that_would_stop_every_claimer_is_refused(weight):
    with pytest.raises(BadOption, match="weight of 'a' must be from"):
        QueueSettings(fair=True, weights={"a": weight})


def test_a_weight_of_a_key_that_cannot_be_is_refused():
    with pytest.raises(BadOption, match="no key has a NUL character"):
        QueueSettings(fair=True, weights={"a\0b": 2.0})


@pytest.mark.parametrize("weight", [LEAST_WEIGHT, GREATEST_WEIGHT])
async def test_the_most_extreme_weights_still_let_everybody_run(engine, weight):
    await fair(engine, weights={"a": weight})
    for _ in range(3):
        await put(engine, key="a")
        await put(engine, key="b")
    assert Counter(await keys(engine, 6)) == {"a": 3, "b": 3}
