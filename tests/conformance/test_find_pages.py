"""``get`` and ``find``: jobs by id, and page by page, newest first."""

from __future__ import annotations

from itertools import chain

import pytest

from conformance.steps import (
    claim,
    claim_one,
    enqueue_jobs,
    finished,
    ids,
    put,
    running,
    settle,
    stored,
)
from penstock.core.job import Hold, State
from penstock.engines import changes
from penstock.engines.records import Filter, Page
from penstock.errors import BadOption


async def found(engine, **fields):
    """The ids of all jobs that fit, newest first."""
    return ids((await engine.find(Filter(**fields), None, 1000)).jobs)


async def pages(engine, limit, which=None, between=None):
    """All pages one after the other; ``between`` happens after each."""
    cursor, turned = None, []
    while True:
        page = await engine.find(which or Filter(), cursor, limit)
        turned.append(ids(page.jobs))
        if page.cursor is None:
            return turned
        assert len(turned) < 100
        cursor = page.cursor
        if between is not None:
            await between()


async def test_get_answers_in_the_order_asked(engine):
    a, b = await put(engine), await put(engine)
    jobs = await engine.get([b, "nothing", a, b])
    assert [job and job.id for job in jobs] == [b, None, a, b]


async def test_get_finds_jobs_in_every_state(engine):
    waiting, runs = await put(engine), await running(engine)
    ended = await finished(engine, "failed")
    jobs = await engine.get([waiting, runs.id, ended.id])
    assert [job.state for job in jobs] == [State.READY, State.RUNNING, State.FAILED]


async def test_get_of_nothing_is_nothing(engine):
    assert await engine.get([]) == []


async def test_get_takes_many_ids(engine):
    jobs = await enqueue_jobs(engine, 1000)
    assert ids(await engine.get(jobs)) == jobs


async def test_an_empty_filter_means_all(engine):
    jobs = await enqueue_jobs(engine, 3)
    assert await found(engine) == jobs[::-1]


async def test_an_empty_store_has_one_empty_page(engine):
    assert await engine.find(Filter(), None, 10) == Page((), None)


async def test_found_jobs_are_whole(engine):
    job = await running(engine, tags=("a",), key="k", unique="u")
    assert (await engine.find(Filter(), None, 10)).jobs == (job,)
    assert await stored(engine, job.id) == job


@pytest.mark.parametrize("limit", [1, 3, 4, 7, 10])
async def test_pages_together_have_every_job_once_newest_first(engine, limit):
    jobs = await enqueue_jobs(engine, 10)
    turned = await pages(engine, limit)
    assert list(chain(*turned)) == jobs[::-1]
    assert all(len(page) == limit for page in turned[:-1])


async def test_a_job_enqueued_between_two_pages_is_in_neither(engine):
    jobs = await enqueue_jobs(engine, 6)
    turned = await pages(engine, 2, between=lambda: put(engine))
    assert turned == [jobs[5:3:-1], jobs[3:1:-1], jobs[1::-1]]


async def test_a_job_that_changes_between_two_pages_keeps_its_place(engine):
    """Order is by entry into the store, not by ticket, state or id."""
    jobs = await enqueue_jobs(engine, 6)

    async def work():
        await settle(engine, await claim_one(engine), "retry")
        await settle(engine, await claim_one(engine), "failed")

    assert list(chain(*await pages(engine, 2, between=work))) == jobs[::-1]


async def test_a_job_that_a_person_sent_back_keeps_its_place(engine):
    first, second = await enqueue_jobs(engine, 2)
    await changes.cancel(engine, [first], "enough")
    await changes.retry(engine, [first])
    assert await found(engine) == [second, first]


async def test_a_job_that_is_deleted_between_two_pages_is_missing_only_itself(engine):
    jobs = await enqueue_jobs(engine, 6)

    async def delete():
        await engine.purge(Filter(ids=(jobs[4],)), 1)

    assert list(chain(*await pages(engine, 2, between=delete))) == jobs[::-1]


async def test_pages_of_a_filter_have_only_what_fits(engine):
    fitting = []
    for _ in range(5):
        fitting.append(await put(engine, queue="a"))
        await put(engine, queue="b")
    turned = await pages(engine, 2, Filter(queues=("a",)))
    assert list(chain(*turned)) == fitting[::-1]


# --- each field of the filter ---------------------------------------------------------------------


async def test_by_id(engine):
    a, _b, c = await enqueue_jobs(engine, 3)
    assert await found(engine, ids=(a, c, "nothing")) == [c, a]


async def test_by_state(engine):
    ready, scheduled = await put(engine), await put(engine, delay=60)
    runs = await running(engine)
    ended = [await finished(engine, kind) for kind in ("succeeded", "failed", "cancelled")]
    by_state = [ready, scheduled, runs.id, *ids(ended)]
    states = [State.READY, State.SCHEDULED, State.RUNNING]
    states += [State.SUCCEEDED, State.FAILED, State.CANCELLED]
    for state, id in zip(states, by_state, strict=True):
        assert await found(engine, states=(state,)) == [id]
    assert await found(engine, states=(State.READY, State.FAILED)) == [ended[1].id, ready]


async def test_by_queue(engine):
    a, b, _c = [await put(engine, queue=name) for name in "abc"]
    assert await found(engine, queues=("a", "b")) == [b, a]


async def test_by_task(engine):
    a, b, _c = [await put(engine, task=name) for name in "abc"]
    assert await found(engine, tasks=("a", "b")) == [b, a]


async def test_by_key(engine):
    a, b, _c, _none = [await put(engine, key=name) for name in ("a", "b", "c", None)]
    assert await found(engine, keys=("a", "b")) == [b, a]


async def test_by_hold(engine):
    job = await running(engine)
    await settle(engine, job, "released", hold=Hold.RATE, hold_cause="api", delay=60)
    moving = await put(engine)
    await changes.hold(engine, [moving], Hold.MOVING, "another store")
    await put(engine)
    assert await found(engine, holds=(Hold.RATE,)) == [job.id]
    assert await found(engine, holds=(Hold.RATE, Hold.MOVING)) == [moving, job.id]


async def test_by_tag(engine):
    both = await put(engine, tags=("a", "b"))
    one = await put(engine, tags=("b",))
    await put(engine, tags=("ab",))
    await put(engine)
    assert await found(engine, tag="b") == [one, both]
    assert await found(engine, tag="a") == [both]


@pytest.mark.parametrize("tag", ['say "hi"', "50%", "a_b", "[x]", "a,b", "\\", ""])
async def test_by_a_tag_with_strange_letters(engine, tag):
    id = await put(engine, tags=("x", tag))
    await put(engine, tags=("other", "5000", "aXb", "x", "a", "b"))
    assert await found(engine, tag=tag) == [id]


async def test_by_correlation_id(engine):
    id = await put(engine, correlation_id="request-1")
    await put(engine, correlation_id="request-2")
    await put(engine)
    assert await found(engine, correlation_id="request-1") == [id]


async def test_all_fields_must_fit(engine):
    id = await put(engine, queue="a", task="t", key="k", tags=("x",))
    await put(engine, queue="b", task="t", key="k", tags=("x",))
    await put(engine, queue="a", task="u", key="k", tags=("x",))
    await put(engine, queue="a", task="t", key="l", tags=("x",))
    await put(engine, queue="a", task="t", key="k", tags=("y",))
    assert await found(engine, queues=("a",), tasks=("t",), keys=("k",), tag="x") == [id]


async def test_finding_changes_nothing(engine):
    await enqueue_jobs(engine, 3)
    before = (await engine.find(Filter(), None, 10)).jobs
    assert (await engine.find(Filter(), None, 10)).jobs == before
    assert len(await claim(engine, want=5)) == 3


@pytest.mark.parametrize("limit", [0, -1, -2])
async def test_a_page_of_no_size_is_empty_and_moves_nothing(engine, limit):
    await enqueue_jobs(engine, 3)
    first = await engine.find(Filter(), None, 1)
    assert await engine.find(Filter(), first.cursor, limit) == Page((), first.cursor)


@pytest.mark.parametrize("cursor", ["", "abc", "-1", "1.5", "9" * 40, "\u0663"])
async def test_a_cursor_that_no_page_had_is_refused(engine, cursor):
    with pytest.raises(BadOption, match="page before"):
        await engine.find(Filter(), cursor, 1)
