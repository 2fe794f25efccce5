"""Callbacks: drafts that come with an outcome are stored in the step that ends the job."""

from __future__ import annotations

import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    claim_one,
    draft,
    enqueue_jobs,
    everything,
    joined,
    outcome,
    put,
    running,
    send,
    settle,
    stored,
)
from penstock.core.callbacks import Callback
from penstock.core.job import Change, Draft, State, Verdict
from penstock.engines import changes
from penstock.engines.records import Ask, Report, Rewrite, WorkerInfo
from penstock.errors import ItemRefused, LeaseLost


def then(**fields):
    return draft(task="tell", queue="callbacks", **fields)


@pytest.mark.parametrize("kind", ["succeeded", "failed"])
async def test_what_follows_is_stored_with_the_end_of_the_job(engine, kind):
    job = await running(engine)
    next = then(payload=b'{"job_id":"j"}', priority=3, key="k", tags=("t",), meta=b'{"a":1}')
    answer = await send(engine, job.worker, outcome(job, kind, then=(next,)))
    assert answer.verdicts == (Verdict.DONE,)
    assert [(each.id, each.created) for each in answer.followers] == [(next.id, True)]
    assert (await stored(engine, job.id)).state is State(kind)
    found = await stored(engine, next.id)
    assert (found.state, found.task, found.queue) == (State.READY, "tell", "callbacks")
    assert (found.payload, found.priority, found.key) == (b'{"job_id":"j"}', 3, "k")
    assert (found.tags, found.meta) == (("t",), b'{"a":1}')
    assert (await claim_one(engine, "callbacks")).id == next.id


async def test_several_follow_in_their_order(engine):
    job = await running(engine)
    some = [then() for _ in range(3)]
    await settle(engine, job, "succeeded", then=tuple(some))
    found = await claim(engine, "callbacks", want=10)
    assert [each.id for each in found] == [each.id for each in some]


async def test_one_that_follows_may_be_claimed_by_the_same_exchange(engine):
    job = await running(engine)
    next = then()
    turn = ask(job.worker, "callbacks", outcomes=(outcome(job, "succeeded", then=(next,)),))
    answer = await engine.exchange(turn)
    assert [each.id for each in answer.jobs] == [next.id]


@pytest.mark.parametrize("kind", ["retry", "snooze", "released", "cancelled", "expired", "crashed"])
async def test_nothing_follows_a_job_that_waits_again_or_is_cancelled(engine, kind):
    job = await running(engine)
    next = then()
    answer = await send(engine, job.worker, outcome(job, kind, delay=60.0, then=(next,)))
    assert (answer.verdicts, answer.followers) == ((Verdict.DONE,), ())
    assert await engine.get([next.id]) == [None]


async def test_a_job_that_has_crashed_too_often_is_followed(engine):
    id = await put(engine)
    for crashes in range(3):
        job = await claim_one(engine)
        next = then()
        answer = await send(engine, job.worker, outcome(job, "crashed", then=(next,)))
        assert [each.id for each in answer.followers] == ([next.id] if crashes == 2 else [])
    assert (await stored(engine, id)).state is State.FAILED
    assert (await stored(engine, next.id)).task == "tell"


async def test_nothing_follows_a_cancellation_that_overrules_a_crash(engine):
    job = await running(engine, at_most_once=True)
    await changes.cancel(engine, [job.id], "enough")
    next = then()
    await settle(engine, job, "crashed", then=(next,))
    assert (await stored(engine, job.id)).state is State.CANCELLED
    assert await engine.get([next.id]) == [None]


async def test_nothing_follows_an_outcome_from_outside_the_fence(engine):
    job, other = await running(engine), await running(engine)
    next = then()
    stale = [outcome(job, "succeeded", then=(next,))]
    answer = await send(engine, other.worker, *stale)
    assert (answer.verdicts, answer.followers) == ((Verdict.STALE,), ())
    with pytest.raises(LeaseLost):
        await send(engine, "nobody", *stale)
    assert await engine.get([next.id]) == [None]


@pytest.mark.parametrize("kind", ["succeeded", "failed"])
async def test_an_outcome_that_is_repeated_has_one_follower(engine, kind):
    """A lost reply: the worker sends the same again, and may even have made the draft anew."""
    job = await running(engine)
    first, second = then(), then()
    for each in (first, first, second):
        assert await settle(engine, job, kind, then=(each,)) is Verdict.DONE
    assert await engine.get([second.id]) == [None]
    assert [each.id for each in await claim(engine, "callbacks", want=10)] == [first.id]


async def test_of_two_outcomes_in_one_exchange_the_first_is_followed(engine):
    job = await running(engine)
    first, second = then(), then()
    both = [outcome(job, kind, then=(d,)) for kind, d in (("failed", first), ("succeeded", second))]
    answer = await send(engine, job.worker, *both)
    assert answer.verdicts == (Verdict.DONE, Verdict.DONE)
    assert [each.id for each in answer.followers] == [first.id]


async def test_a_whole_batch_of_mixed_outcomes_is_followed_each_by_its_own(engine):
    """Plain successes among them take the fast way all the same."""
    await enqueue_jobs(engine, 60)
    worker = await joined(engine)
    jobs = await claim(engine, worker=worker, want=60)
    outcomes, expected = [], {}
    for number, job in enumerate(jobs):
        kind = ("succeeded", "failed", "retry")[number % 3]
        next = then() if number % 4 < 2 else None
        outcomes.append(outcome(job, kind, delay=60.0, then=(next,) if next else ()))
        if next is not None and kind != "retry":
            expected[next.id] = job.id
    answer = await send(engine, worker, *outcomes)
    assert answer.verdicts == (Verdict.DONE,) * 60
    assert sorted(each.id for each in answer.followers) == sorted(expected)
    found = await claim(engine, "callbacks", want=100)
    assert sorted(each.id for each in found) == sorted(expected)


async def test_a_unique_key_keeps_a_second_follower_away(engine):
    one, two = await running(engine), await running(engine)
    first, second = then(unique="refresh"), then(unique="refresh")
    await settle(engine, one, "succeeded", then=(first,))
    answer = await send(engine, two.worker, outcome(two, "succeeded", then=(second,)))
    assert answer.verdicts == (Verdict.DONE,)
    assert [(each.id, each.created, each.because) for each in answer.followers] == [
        (first.id, False, "unique")
    ]
    assert (await stored(engine, two.id)).state is State.SUCCEEDED
    assert await engine.get([second.id]) == [None]


async def test_a_job_gives_its_unique_key_back_before_its_follower_takes_it(engine):
    job = await running(engine, unique="one at a time", unique_scope="app")
    next = then(unique="one at a time", unique_scope="app")
    answer = await send(engine, job.worker, outcome(job, "succeeded", then=(next,)))
    assert [(each.id, each.created) for each in answer.followers] == [(next.id, True)]
    (again,) = await engine.enqueue([draft(unique="one at a time", unique_scope="app")])
    assert (again.id, again.created) == (next.id, False)


async def test_an_id_that_is_known_stores_nothing_again(engine):
    known = await put(engine, "chosen", remember=60.0, queue="elsewhere")
    job = await running(engine)
    answer = await send(
        engine, job.worker, outcome(job, "failed", then=(then(id="chosen", remember=60.0),))
    )
    assert [(each.id, each.because) for each in answer.followers] == [(known, "id")]
    assert (await stored(engine, "chosen")).queue == "elsewhere"


async def test_a_follower_that_cannot_be_stored_refuses_the_whole_exchange(engine):
    good, bad = await running(engine), await running(engine)
    refused = outcome(bad, "succeeded", then=(then(name="nu\0l"),))
    with pytest.raises(ItemRefused):
        await send(engine, bad.worker, refused)
    assert (await stored(engine, bad.id)).state is State.RUNNING
    assert await settle(engine, good, "succeeded") is Verdict.DONE


async def test_a_follower_may_wait_for_its_instant(engine):
    job = await running(engine)
    next = then(delay=60.0)
    await settle(engine, job, "succeeded", then=(next,))
    assert (await stored(engine, next.id)).state is State.SCHEDULED


# --- when its worker is dead -------------------------------------------------------------------


TELLS = Callback(draft=Draft(id="", task="tell", queue="callbacks"), takes=("job_id", "error"))


async def worker_with_callback(engine, id):
    await engine.join(WorkerInfo(id=id, tasks=("work",), callbacks={"work": TELLS}))
    return id


async def test_a_rescue_that_lets_a_job_fail_is_followed_by_what_its_worker_has_told(engine):
    worker = await worker_with_callback(engine, "w1")
    meta, correlation_id = b'{"tenant":"a"}', "c1"
    id = await put(engine, at_most_once=True, meta=meta, correlation_id=correlation_id)
    await claim_one(engine, worker=worker)
    (job,) = await bury(engine, worker)
    assert (job.state, job.reason) == (State.FAILED, "may have run")
    found = await claim_one(engine, "callbacks")
    assert found.payload == b'{"job_id":"%s","error":"may have run"}' % id.encode()
    assert (found.meta, found.correlation_id) == (meta, correlation_id)
    assert await bury(engine) == []
    assert await claim(engine, "callbacks") == []


async def test_a_worker_that_lives_tells_as_well(engine):
    """The leader died between the end of the lease and the rescue."""
    dead = await worker_with_callback(engine, "dead")
    await put(engine, at_most_once=True)
    await claim_one(engine, worker=dead)
    await engine.leave(dead)
    await worker_with_callback(engine, "alive")
    (job,) = await bury(engine)
    assert job.state is State.FAILED
    assert (await claim_one(engine, "callbacks")).task == "tell"


async def test_nothing_follows_a_rescue_after_which_the_job_runs_again(engine):
    worker = await worker_with_callback(engine, "w1")
    await put(engine)
    await claim_one(engine, worker=worker)
    (job,) = await bury(engine, worker)
    assert job.state is State.READY
    assert await claim(engine, "callbacks") == []


async def test_a_rewrite_that_comes_too_late_is_not_followed(engine):
    job = await running(engine)
    ended = await stored(engine, job.id)
    await settle(engine, job, "succeeded")
    next = then()
    late = Rewrite(job=ended, revision=ended.revision, change=Change.RESCUE, then=(next,))
    (answer,) = await engine.rewrite([late])
    assert answer.verdict is Verdict.STALE
    assert await engine.get([next.id]) == [None]


async def test_progress_and_checkpoint_are_stored_with_the_outcome_that_comes_with_them(engine):
    job = await running(engine)
    report = Report(job=job.id, claim=job.claim, fraction=1.0, note="all", checkpoint=b"7")
    ending = outcome(job, "succeeded", then=(then(),))
    await engine.exchange(Ask(worker=job.worker or "", reports=(report,), outcomes=(ending,)))
    after = await stored(engine, job.id)
    assert (after.progress, after.note, after.checkpoint) == (1.0, "all", b"7")
    assert len([each for each in await everything(engine) if each.task == "tell"]) == 1
