"""Many outcomes at once are settled as each would be alone."""

from __future__ import annotations

import pytest

from conformance.steps import claim, enqueue_jobs, joined, outcome, put, send
from penstock.core.job import State, Verdict

RESULTS = [
    None,
    b"",
    b"null",
    b'"with \\u0000 in it"',
    b'"a \\"quoted\\" word"',
    '"grüße, 你好"'.encode(),
    b"a NUL \x00 in it",
    b"\xff no text",
    b'"' + b"x" * 100_000 + b'"',
]


async def test_results_that_come_together_come_back_unchanged(store):
    engine = await store.open()
    worker = await joined(engine)
    await enqueue_jobs(engine, len(RESULTS))
    jobs = await claim(engine, worker=worker, want=len(RESULTS))

    sent = [outcome(job, "succeeded", result=each) for job, each in zip(jobs, RESULTS, strict=True)]
    answer = await send(engine, worker, *sent)

    assert answer.verdicts == (Verdict.DONE,) * len(RESULTS)
    stored = await engine.get([job.id for job in jobs])
    assert [job and job.state for job in stored] == [State.SUCCEEDED] * len(RESULTS)
    assert [job and job.result for job in stored] == RESULTS


async def test_a_stale_success_changes_nothing_and_spares_those_beside_it(store):
    engine = await store.open()
    worker = await joined(engine)
    await enqueue_jobs(engine, 5)
    jobs = await claim(engine, worker=worker, want=5)
    await put(engine)
    foreign = await claim(engine)

    sent = [outcome(job, "succeeded", result=b"1") for job in (*jobs[:2], *foreign, *jobs[2:])]
    answer = await send(engine, worker, *sent)

    done, stale = Verdict.DONE, Verdict.STALE
    assert answer.verdicts == (done, done, stale, done, done, done)
    (other,) = await engine.get([foreign[0].id])
    assert other is not None
    assert other.state is State.RUNNING


@pytest.mark.parametrize("times", [2, 3])
async def test_successes_that_are_sent_again_are_done(store, times):
    engine = await store.open()
    worker = await joined(engine)
    await enqueue_jobs(engine, 4)
    jobs = await claim(engine, worker=worker, want=4)
    sent = [outcome(job, "succeeded", result=b"1") for job in jobs]

    answers = [await send(engine, worker, *sent) for _ in range(times)]

    assert {verdict for answer in answers for verdict in answer.verdicts} == {Verdict.DONE}


async def test_successes_among_other_outcomes_keep_the_order_they_were_given_in(store):
    """Of two outcomes of one attempt the first stands, also if the second is a success."""
    engine = await store.open()
    worker = await joined(engine)
    await enqueue_jobs(engine, 3)
    first, second, third = await claim(engine, worker=worker, want=3)

    answer = await send(
        engine,
        worker,
        outcome(first, "failed", reason="no"),
        outcome(second, "succeeded", result=b"2"),
        outcome(first, "succeeded", result=b"1"),
        outcome(third, "succeeded", result=b"3"),
    )

    assert answer.verdicts == (Verdict.DONE,) * 4
    stored = await engine.get([first.id, second.id, third.id])
    states = [job and job.state for job in stored]
    assert states == [State.FAILED, State.SUCCEEDED, State.SUCCEEDED]


async def test_successes_with_a_unique_key_give_it_back_also_among_others(store):
    engine = await store.open()
    worker = await joined(engine)
    await enqueue_jobs(engine, 2)
    await put(engine, unique="only")
    jobs = await claim(engine, worker=worker, want=3)

    await send(engine, worker, *[outcome(job, "succeeded") for job in jobs])

    await put(engine, unique="only")
