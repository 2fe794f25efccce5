"""Many results at once: ``gather`` and ``as_completed``, blocking and awaited."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from penstock import Penstock, agather, as_completed, gather
from penstock.context import CURRENT, Context
from penstock.core.job import Job as StoredJob
from penstock.core.job import State
from penstock.errors import (
    BadDuration,
    BadOption,
    JobCancelled,
    JobFailed,
    JobGone,
    ResultTimeout,
    WrongTask,
    WrongThread,
)
from penstock.testing import Sandbox
from penstock.testing.errors import NobodyRuns


@dataclass
class Receipt:
    cents: int


@pytest.fixture
def pay(app):
    @app.task(name="pay", retries=0)
    def pay(cents: int) -> Receipt:
        if cents < 0:
            raise ValueError("no such amount")
        return Receipt(cents)

    return pay


def receipt(cents: int) -> bytes:
    return b'{"cents":%d}' % cents


@pytest.mark.every_engine
def test_results_are_gathered_in_the_order_of_the_handles(app, pay):
    handles = pay.enqueue_many([(each,) for each in range(20)])
    app.run_worker(until_empty=True)
    assert gather(reversed(handles)) == [Receipt(each) for each in reversed(range(20))]


@pytest.mark.every_engine
async def test_results_are_gathered_by_async_code(app, pay, hand):
    async with app:
        handles = await pay.aenqueue_many([(each,) for each in range(3)])
        waiting = asyncio.create_task(agather(handles, timeout="20s"))
        for each in range(3):
            await hand.asucceeds(receipt(each))
        assert await waiting == [Receipt(0), Receipt(1), Receipt(2)]


def test_jobs_that_end_while_a_thread_gathers_them_are_waited_for(pay, hand, in_thread):
    handles = pay.enqueue_many([(1,), (2,)])
    waiting = in_thread(gather, handles, timeout=20)
    hand.succeeds(receipt(1))
    hand.succeeds(receipt(2))
    assert waiting.result(20) == [Receipt(1), Receipt(2)]


def test_nothing_to_gather_is_an_empty_list(app):
    assert gather([]) == []
    assert list(as_completed([])) == []


def test_the_same_job_may_be_gathered_twice(app, pay, hand):
    handle = pay.enqueue(1)
    hand.succeeds(receipt(1))
    assert gather([handle, pay.job(handle.id), handle]) == [Receipt(1)] * 3


def test_the_first_failure_is_raised_at_once(pay, hand):
    failed, waits = pay.enqueue_many([(1,), (2,)])
    hand.fails("ValueError: no money")
    with pytest.raises(JobFailed) as caught:
        gather([waits, failed], timeout=20)
    assert caught.value.job == failed.id
    assert waits.status().state is State.READY


@pytest.mark.every_engine
def test_errors_may_stand_in_the_place_of_results(app, pay, hand):
    good, bad, stopped = pay.enqueue_many([(1,), (2,), (3,)])
    hand.succeeds(receipt(1))
    hand.fails("ValueError: no money")
    stopped.cancel("not any more")
    handles = [good, bad, stopped, app.job("nobody")]
    first, *errors = gather(handles, return_exceptions=True)
    assert first == Receipt(1)
    assert [type(each) for each in errors] == [JobFailed, JobCancelled, JobGone]
    assert str(errors[1]) == f"job {stopped.id} was cancelled: not any more"


def test_gathering_takes_no_longer_than_it_is_told(pay, hand):
    ended, waits = pay.enqueue_many([(1,), (2,)])
    hand.succeeds(receipt(1))
    for call in (
        lambda: gather([ended, waits], timeout=0.01),
        lambda: gather([ended, waits], timeout=0.01, return_exceptions=True),
        lambda: list(as_completed([ended, waits], timeout=0.01)),
    ):
        with pytest.raises(ResultTimeout) as caught:
            call()
        assert str(caught.value) == (
            f"job {waits.id} is still ready after 0.01 s; it goes on: wait longer, or look with "
            "`handle.status()`"
        )
    assert gather([ended], timeout=0) == [Receipt(1)]


async def test_awaited_gathering_takes_no_longer_than_it_is_told(app, pay):
    async with app:
        handles = await pay.aenqueue_many([(1,), (2,)])
        with pytest.raises(ResultTimeout):
            await agather(handles, timeout=0.01)
        with pytest.raises(ResultTimeout):
            async for _ in as_completed(handles, timeout=0.01):
                pass


@pytest.mark.every_engine
def test_handles_come_as_their_jobs_end(pay, hand):
    first, second, third = pay.enqueue_many([(1,), (2,), (3,)])
    amounts = {third: 3, second: 2, first: 1}
    coming = iter(as_completed(amounts, timeout=20))
    seen = []
    for each in (1, 2):
        hand.succeeds(receipt(each))
        handle = next(coming)
        seen.append((amounts[handle], handle.result(timeout=0)))
    third.cancel()
    last = next(coming)
    assert seen == [(1, Receipt(1)), (2, Receipt(2))]
    assert last is third
    with pytest.raises(JobCancelled):
        last.result()
    assert list(coming) == []


@pytest.mark.every_engine
async def test_async_code_gets_handles_as_their_jobs_end(app, pay, hand):
    async with app:
        first, second = await pay.aenqueue_many([(1,), (2,)])
        seen = []
        await hand.asucceeds(receipt(1))
        async for handle in as_completed([second, first], timeout=20):
            seen.append((handle.id, await handle.aresult()))
            if handle is first:
                await hand.asucceeds(receipt(2))
        assert seen == [(first.id, Receipt(1)), (second.id, Receipt(2))]


def test_handles_of_two_apps_are_not_waited_for_together(pay):
    with Penstock("memory://") as other:
        stranger = other.enqueue("elsewhere")
        for call in (gather, as_completed):
            with pytest.raises(BadOption) as caught:
                call([pay.enqueue(1), stranger])
            assert str(caught.value) == (
                f"handles=<Handle {stranger.id}>: it belongs to another app; wait for the jobs of "
                "each app by themselves"
            )


def test_what_is_not_a_handle_is_refused(pay):
    with pytest.raises(BadOption, match="give handles, as enqueue returns them"):
        gather([pay.enqueue(1).id])  # type: ignore[list-item]
    with pytest.raises(BadDuration):
        as_completed([pay.enqueue(1)], timeout="soon")


async def test_an_async_task_does_not_block_its_loop(app, pay):
    handle = await pay.aenqueue(1)
    job = StoredJob(
        id="x", task="x", payload=b"{}", queue="q", priority=5, state=State.RUNNING, enqueued_at=0.0
    )
    token = CURRENT.set(Context(job))
    try:
        with pytest.raises(WrongThread, match="gather would wait for itself"):
            gather([handle])
        with pytest.raises(WrongThread, match="as_completed would wait for itself"):
            list(as_completed([handle]))
    finally:
        CURRENT.reset(token)
    await app.aclose()


def test_a_sandbox_runs_what_is_gathered_inline_and_refuses_to_wait_otherwise(app, pay):
    with Sandbox(app, mode="inline"):
        handles = pay.enqueue_many([(1,), (2,)])
        assert gather(handles) == [Receipt(1), Receipt(2)]
        assert [each.result().cents for each in as_completed(handles)] == [1, 2]
    with Sandbox(app):
        with pytest.raises(NobodyRuns):
            gather([pay.enqueue(1)])


def test_a_failure_that_was_gathered_is_not_unseen(app, pay):
    with Sandbox(app) as t:
        handle = pay.enqueue(-1)
        t.drain()
        (error,) = gather([handle], return_exceptions=True)
        assert isinstance(error, JobFailed)


# --- the jobs of one task -----------------------------------------------------------------------


def test_a_task_makes_the_handle_of_one_of_its_jobs(pay, hand):
    id = pay.enqueue(1).id
    hand.succeeds(receipt(1))
    assert pay.job(id).result() == Receipt(1)
    assert pay.using(queue="other").job(id).status().result == Receipt(1)
    with pytest.raises(BadOption):
        pay.job("")


def test_a_job_of_another_task_is_not_read_as_one_of_this(app, pay, hand):
    id = app.enqueue("elsewhere").id
    hand.succeeds(b"5")
    for read in (pay.job(id).status, pay.job(id).result):
        with pytest.raises(WrongTask) as caught:
            read()
        assert str(caught.value) == (
            f"job {id} is of the task elsewhere, not of pay; get its handle with "
            "elsewhere.job(id), or with app.job(id)"
        )
    assert app.job(id).result() == 5
