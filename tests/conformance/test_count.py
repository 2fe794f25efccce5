"""``count``: how many jobs fit, by the same conditions as ``find`` and ``purge``."""

from __future__ import annotations

import pytest

from conformance.steps import enqueue_jobs, finished, ids, put, running
from penstock.core.job import State
from penstock.engines import reads
from penstock.engines.records import Filter


async def counted(engine, **fields):
    return await reads.count(engine, Filter(**fields))


async def test_an_empty_store_has_no_jobs(engine):
    assert await counted(engine) == 0


async def test_every_job_counts_whatever_its_state(engine):
    await put(engine)
    await put(engine, delay=60)
    await running(engine)
    await finished(engine, "failed")
    assert await counted(engine) == 4


async def test_more_jobs_are_counted_than_a_page_has(engine):
    await enqueue_jobs(engine, 1000)
    await enqueue_jobs(engine, 500)
    assert await counted(engine) == 1500


async def test_only_what_fits_counts(engine):
    await put(engine, queue="a", task="mail", key="ada", tags=("x", "y"), correlation_id="c")
    chosen = await put(engine, queue="b", task="mail", key="bob", tags=("x",))
    await finished(engine, "failed")
    assert await counted(engine, states=(State.FAILED,)) == 1
    assert await counted(engine, states=(State.READY, State.FAILED)) == 3
    assert await counted(engine, queues=("a", "b"), tasks=("mail",)) == 2
    assert await counted(engine, keys=("ada",)) == 1
    assert await counted(engine, tag="x") == 2
    assert await counted(engine, tag="y", queues=("b",)) == 0
    assert await counted(engine, correlation_id="c") == 1
    assert await counted(engine, ids=(chosen, "nobody")) == 1


@pytest.mark.parametrize("verb", ["find", "count", "purge"])
async def test_jobs_are_chosen_by_when_they_were_enqueued(engine, store, verb):
    """From the first instant on, and before the second."""
    jobs, instants = [], []
    for _ in range(3):
        jobs.append(await put(engine))
        instants.append((await engine.get(jobs[-1:]))[0].enqueued_at)
        store.clock.advance(10)
    which = Filter(since=instants[1], until=instants[2])
    match verb:
        case "find":
            assert ids((await engine.find(which, None, 10)).jobs) == [jobs[1]]
        case "count":
            assert await reads.count(engine, which) == 1
            assert await counted(engine, since=instants[1]) == 2
            assert await counted(engine, until=instants[1]) == 1
        case "purge":
            assert (await engine.purge(which, 10)).jobs == 1
            assert await engine.get([jobs[1]]) == [None]
