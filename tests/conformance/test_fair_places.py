"""Fair queues: no key can crowd out another, whatever it brings."""

from __future__ import annotations

from collections import Counter

import pytest

from conformance.steps import claim, claim_one, enqueue_jobs, ids, joined, put, settle, stored
from penstock.core.job import Hold
from penstock.engines.records import GREATEST_WEIGHT, LEAST_WEIGHT, QueueSettings
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


async def test_the_virtual_time_never_goes_back(engine):
    """An old place that is claimed again must not let newcomers in before those who wait."""
    await fair(engine)
    await enqueue_jobs(engine, 20, key="a")
    worker = await joined(engine)
    claimed = await claim(engine, worker=worker, want=10)
    await settle(engine, claimed[0], "released")
    assert (await claim_one(engine, worker=worker)).id == claimed[0].id
    newcomer = await put(engine, key="b")
    await claim(engine, want=1)
    assert (await stored(engine, newcomer)).place >= claimed[-1].place


async def test_a_place_is_not_changed_once_it_is_given(engine):
    await fair(engine)
    waiting = await enqueue_jobs(engine, 5, key="a")
    await claim_one(engine)
    places = [(await stored(engine, id)).place for id in waiting]
    await enqueue_jobs(engine, 5, key="b")
    await claim(engine, want=3)
    assert [(await stored(engine, id)).place for id in waiting] == places


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


async def test_a_retry_of_a_fair_queue_takes_a_new_place(engine):
    await fair(engine)
    await enqueue_jobs(engine, 5, key="a")
    job = await claim_one(engine)
    await settle(engine, job, "retry")
    rest = await claim(engine, want=9)
    assert ids(rest)[-1] == job.id
    assert rest[-1].place > job.place


async def test_other_queues_pay_nothing(engine):
    id = await put(engine, key="a")
    job = await stored(engine, id)
    assert (job.hold, job.place) == (None, 0)


# --- fairness off and on --------------------------------------------------------------------------


async def test_a_queue_that_stops_being_fair_gives_in_order_of_arrival(engine):
    await fair(engine)
    a = await enqueue_jobs(engine, 5, key="a")
    b = await enqueue_jobs(engine, 5, key="b")
    await claim(engine, "default", want=0)
    await engine.set_queue("default", QueueSettings())
    assert ids(await claim(engine, want=10)) == a + b


async def test_a_queue_that_stops_being_fair_has_no_unplaced_jobs(engine):
    await fair(engine)
    id = await put(engine, key="a")
    await engine.set_queue("default", QueueSettings())
    job = await stored(engine, id)
    assert (job.hold, job.hold_cause, job.place) == (None, None, 0)


async def test_a_job_that_runs_while_its_queue_stops_being_fair_loses_its_place_too(engine):
    """Given back, it stands where it came, not behind everybody."""
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


async def test_new_weights_do_not_unplace_anything(engine):
    await fair(engine)
    id = await put(engine, key="a")
    await claim(engine, "default", want=0)
    assert (await stored(engine, id)).hold is not Hold.UNPLACED
    await fair(engine, weights={"a": 2.0})
    assert (await stored(engine, id)).hold is not Hold.UNPLACED


@pytest.mark.parametrize("weight", [0, -1, 1e-320, float("nan"), float("inf")])
def test_a_weight_that_would_stop_every_claimer_is_refused(weight):
    with pytest.raises(BadOption, match="weight of 'a' must be from"):
        QueueSettings(fair=True, weights={"a": weight})


@pytest.mark.parametrize("weight", [LEAST_WEIGHT, GREATEST_WEIGHT])
async def test_the_most_extreme_weights_still_let_everybody_run(engine, weight):
    await fair(engine, weights={"a": weight})
    for _ in range(3):
        await put(engine, key="a")
        await put(engine, key="b")
    assert Counter(await keys(engine, 6)) == {"a": 3, "b": 3}
