"""``rewrite``: a job is written as it is to be if nothing else has changed it since it was read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conformance.steps import (
    ask,
    claim,
    draft,
    enqueue_jobs,
    finished,
    joined,
    outcome,
    put,
    running,
    send,
    settle,
    stored,
)
from penstock.core import lifecycle
from penstock.core.job import Change, Hold, Job, State, Verdict
from penstock.engines import changes
from penstock.engines.records import Ask, Filter, QueueSettings, Report, Rewrite


def cancelling(job: Job, **more: object) -> Rewrite:
    after = lifecycle.cancelled(job, "enough", job.enqueued_at)
    given = {"job": after, "revision": job.revision, "change": Change.CANCEL, **more}
    return Rewrite(**given)  # type: ignore[arg-type]


async def test_a_job_is_written_as_it_is_to_be(engine):
    job = await stored(engine, await put(engine))
    (answer,) = await engine.rewrite([cancelling(job)])
    assert answer.verdict is Verdict.DONE
    after = await stored(engine, job.id)
    assert after == answer.job
    assert (after.state, after.reason) == (State.CANCELLED, "enough")
    assert after.revision == job.revision + 1


async def test_a_job_that_has_changed_meanwhile_is_not_written(engine):
    before = await stored(engine, await put(engine))
    (job,) = await claim(engine)
    (answer,) = await engine.rewrite([cancelling(before)])
    assert (answer.verdict, answer.owner) == (Verdict.STALE, None)
    assert answer.job == await stored(engine, job.id)
    assert answer.job.state is State.RUNNING


async def test_a_claim_gives_the_revision_that_the_store_has(engine):
    await put(engine)
    (job,) = await claim(engine)
    assert job.revision == (await stored(engine, job.id)).revision


async def test_the_second_rewrite_of_one_job_in_a_call_is_stale(engine):
    job = await stored(engine, await put(engine))
    first, second = await engine.rewrite([cancelling(job)] * 2)
    assert (first.verdict, second.verdict) == (Verdict.DONE, Verdict.STALE)
    assert first.job == second.job


async def test_a_job_that_is_not_there_is_not_made(engine):
    job = await stored(engine, await put(engine))
    await engine.purge(Filter(), 10)
    (answer,) = await engine.rewrite([cancelling(job)])
    assert (answer.verdict, answer.job) == (Verdict.STALE, None)


@pytest.mark.parametrize("kind", ["succeeded", "failed", "retry", "snooze", "released"])
async def test_a_settlement_is_another_revision(engine, kind):
    job = await running(engine)
    await settle(engine, job, kind)
    assert (await stored(engine, job.id)).revision > job.revision


async def test_a_start_and_progress_are_no_other_revision(engine):
    await put(engine)
    (job,) = await claim(engine, want=1, slots=0)
    assert job.worker is not None
    await engine.exchange(Ask(worker=job.worker, begun=((job.id, job.claim),)))
    await engine.exchange(
        Ask(worker=job.worker, reports=(Report(job=job.id, claim=job.claim, fraction=0.5),))
    )
    after = await stored(engine, job.id)
    assert (after.started, after.progress, after.revision) == (True, 0.5, job.revision)


async def test_one_that_is_stale_does_not_keep_its_neighbours(engine):
    one, other = [await stored(engine, await put(engine)) for _ in range(2)]
    stale = cancelling(one, revision=one.revision + 1)
    verdicts = [each.verdict for each in await engine.rewrite([stale, cancelling(other)])]
    assert verdicts == [Verdict.STALE, Verdict.DONE]


async def test_nothing_to_write_is_nothing(engine):
    assert await engine.rewrite([]) == []


# --- what is made of it -------------------------------------------------------------------------


async def test_a_held_job_is_not_claimed_until_its_hold_is_lifted(engine):
    id = await put(engine)
    (control,) = await changes.hold(engine, [id], Hold.BREAKER, "mail")
    assert (control.changed, control.state) == (True, State.READY)
    held = await stored(engine, id)
    assert (held.hold, held.hold_cause) == (Hold.BREAKER, "mail")
    assert not await claim(engine)
    (control,) = await changes.lift(engine, [id], Hold.BREAKER)
    assert control.changed
    assert [job.id for job in await claim(engine)] == [id]


async def test_many_jobs_are_changed_in_steps_of_a_batch(engine, monkeypatch):
    """No step keeps the store for longer than a batch takes."""
    jobs = await enqueue_jobs(engine, 2 * changes.BATCH + 1)
    steps = []
    rewrite = engine.rewrite

    async def counted(rewrites):
        steps.append(len(rewrites))
        return await rewrite(rewrites)

    monkeypatch.setattr(engine, "rewrite", counted)
    told = await changes.cancel(engine, jobs, "enough")
    assert [(each.id, each.changed) for each in told] == [(id, True) for id in jobs]
    assert steps == [changes.BATCH, changes.BATCH, 1]


async def test_a_job_that_loses_its_hold_goes_to_the_end_of_the_line(engine):
    first, second = await put(engine), await put(engine)
    await changes.hold(engine, [first], Hold.BREAKER, "mail")
    await changes.lift(engine, [first], Hold.BREAKER)
    assert [job.id for job in await claim(engine, want=2)] == [second, first]


async def test_a_hold_of_another_kind_is_not_lifted(engine):
    id = await put(engine)
    await changes.hold(engine, [id], Hold.BREAKER, "mail")
    (control,) = await changes.lift(engine, [id], Hold.RATE)
    assert not control.changed
    (control,) = await changes.hold(engine, [id], Hold.RATE, "mail")
    assert not control.changed
    assert (await stored(engine, id)).hold is Hold.BREAKER


async def test_a_scheduled_job_that_is_held_and_lifted_waits_for_its_instant(engine, store):
    id = await put(engine, delay=60.0)
    before = await stored(engine, id)
    await changes.hold(engine, [id], Hold.DEPENDENCY, "parent")
    held = await stored(engine, id)
    assert (held.state, held.run_at) == (State.READY, before.run_at)
    await changes.lift(engine, [id], Hold.DEPENDENCY)
    after = await stored(engine, id)
    assert (after.state, after.run_at) == (State.SCHEDULED, before.run_at)
    store.clock.advance(61.0)
    assert [job.id for job in await claim(engine)] == [id]


async def test_a_hold_with_an_instant_ends_by_itself(engine, store):
    id = await put(engine)
    until = (await engine.cell("any")).now + 60.0
    await changes.hold(engine, [id], Hold.RATE, "mail", until)
    assert not await claim(engine)
    store.clock.advance(61.0)
    assert [job.id for job in await claim(engine)] == [id]


async def test_a_hold_that_ends_before_the_instant_of_its_job_does_not_hasten_it(engine, store):
    scheduled, edited = await put(engine, delay=60.0), await put(engine)
    until = (await engine.cell("any")).now + 10.0
    await changes.hold(engine, [scheduled, edited], Hold.RATE, "mail", until)
    await changes.edit(engine, [edited], run_in=60.0)
    store.clock.advance(11.0)
    assert await claim(engine, want=2) == []
    store.clock.advance(50.0)
    assert [job.id for job in await claim(engine, want=2)] == [scheduled, edited]


async def test_a_waiting_job_can_wait_elsewhere(engine):
    id = await put(engine, queue="mail", priority=9)
    (control,) = await changes.edit(engine, [id], queue="urgent", priority=0)
    assert control.changed
    assert not await claim(engine, "mail")
    (job,) = await claim(engine, "urgent")
    assert (job.id, job.queue, job.priority) == (id, "urgent", 0)


async def test_a_scheduled_job_that_waits_elsewhere_falls_due_there_alone(engine, store):
    id = await put(engine, delay=10)
    await changes.edit(engine, [id], queue="other")
    worker = await joined(engine)
    assert (await engine.exchange(ask(worker))).due_in is None
    store.clock.advance(11)
    assert (await engine.promote(10)).ready == 1


async def test_a_scheduled_job_can_be_due_now_and_a_ready_one_later(engine):
    later, now = await put(engine, delay=60.0), await put(engine)
    await changes.edit(engine, [later], run_in=0.0)
    await changes.edit(engine, [now], run_in=60.0)
    assert [job.id for job in await claim(engine, want=2)] == [later]
    assert (await stored(engine, now)).state is State.SCHEDULED


async def test_a_job_that_does_not_wait_cannot_be_edited_or_held(engine):
    for job in (await running(engine), await finished(engine, "failed")):
        for change in (
            changes.edit(engine, [job.id], priority=0),
            changes.hold(engine, [job.id], Hold.BREAKER, "mail"),
            changes.lift(engine, [job.id], Hold.BREAKER),
        ):
            (control,) = await change
            assert not control.changed


async def test_a_job_that_is_edited_into_a_fair_queue_takes_turns_there(engine):
    await engine.set_queue("fair", QueueSettings(fair=True))
    for _ in range(3):
        await put(engine, queue="fair", key="a")
    id = await put(engine, queue="plain", key="b")
    await changes.edit(engine, [id], queue="fair")
    jobs = await claim(engine, "fair", want=4)
    assert id in [job.id for job in jobs][:2]


# --- from elsewhere -----------------------------------------------------------------------------


def elsewhere(**fields: object) -> Job:
    given = {
        "id": "moved",
        "task": "mail",
        "payload": b'{"to":1}',
        "queue": "default",
        "priority": 5,
        "state": State.READY,
        "enqueued_at": 12.5,
        "enqueued_by": "shop",
        "seq": 77,
        "attempt": 3,
        "failures": 2,
        "key": "tenant",
        "tags": ("a", "b"),
        "name": "welcome",
        "correlation_id": "c",
        "revision": 9,
        **fields,
    }
    return Job(**given)  # type: ignore[arg-type]


async def test_a_job_from_elsewhere_enters_with_its_past_and_a_new_ticket(engine):
    first = await put(engine)
    (answer,) = await changes.adopt(engine, [elsewhere()], 60.0)
    assert answer.verdict is Verdict.DONE
    moved = await stored(engine, "moved")
    assert replace(moved, seq=77, revision=9) == elsewhere()
    assert moved.seq > (await stored(engine, first)).seq
    jobs = await claim(engine, want=2)
    assert [(job.id, job.attempt) for job in jobs] == [(first, 1), ("moved", 4)]
    await send(engine, jobs[1].worker, outcome(jobs[1], "succeeded"))
    assert (await stored(engine, "moved")).state is State.SUCCEEDED


async def test_a_job_that_has_entered_does_not_enter_again(engine):
    await changes.adopt(engine, [elsewhere()], 60.0)
    (again,) = await changes.adopt(engine, [elsewhere(failures=0)], 60.0)
    assert again.verdict is Verdict.STALE
    assert (await stored(engine, "moved")).failures == 2
    await engine.purge(Filter(), 10)
    (again,) = await changes.adopt(engine, [elsewhere()], 60.0)
    assert (again.verdict, again.job) == (Verdict.STALE, None)  # the ledger knows it


async def test_a_job_from_elsewhere_needs_its_unique_key(engine):
    owner = await put(engine, unique="invoice", unique_scope="app")
    (answer,) = await changes.adopt(engine, [elsewhere(unique="invoice", unique_scope="app")], 60.0)
    assert (answer.verdict, answer.owner) == (Verdict.STALE, owner)
    await changes.cancel(engine, [owner], "enough")
    (answer,) = await changes.adopt(engine, [elsewhere(unique="invoice", unique_scope="app")], 60.0)
    assert answer.verdict is Verdict.DONE
    (receipt,) = await engine.enqueue([draft("other", unique="invoice", unique_scope="app")])
    assert (receipt.created, receipt.id) == (False, "moved")


async def test_a_scheduled_job_from_elsewhere_waits_for_its_instant(engine, store):
    now = (await engine.cell("any")).now
    await changes.adopt(engine, [elsewhere(state=State.SCHEDULED, run_at=now + 60.0)], 60.0)
    assert not await claim(engine)
    store.clock.advance(61.0)
    assert [job.id for job in await claim(engine)] == ["moved"]


async def test_what_does_not_wait_does_not_enter(engine):
    assert await changes.adopt(engine, [elsewhere(state=State.FAILED)], 60.0) == []
