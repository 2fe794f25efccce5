"""Handles: results, states, and what a person does to one job."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from penstock import State
from penstock.errors import (
    BadDuration,
    BadOption,
    JobCancelled,
    JobFailed,
    JobGone,
    ResultTimeout,
    UniqueConflict,
    Unpicklable,
    WrongState,
)


@dataclass
class Receipt:
    to: str
    cents: int


@pytest.fixture
def pay(app):
    @app.task(name="pay")
    def pay(to: str) -> Receipt:
        return Receipt(to, 5)

    return pay


def test_a_result_comes_back_as_the_annotation_says(pay, hand):
    handle = pay.enqueue("a")
    hand.succeeds(b'{"to":"a","cents":5}')
    assert handle.result(timeout=5) == Receipt("a", 5)


@pytest.mark.every_engine
async def test_a_result_can_be_awaited(app, pay, hand):
    handle = await pay.aenqueue("a")
    await hand.asucceeds(b'{"to":"a","cents":5}')
    assert await handle.aresult(timeout="5s") == Receipt("a", 5)


@pytest.mark.every_engine
def test_a_result_is_waited_for(pay, hand, in_thread):
    handle = pay.enqueue("a")
    waiting = in_thread(handle.result)
    hand.succeeds(b'{"to":"a","cents":5}')
    assert waiting.result(10) == Receipt("a", 5)


def test_a_result_of_nothing_is_none(app, hand):
    @app.task(name="quiet")
    def quiet() -> None: ...

    handle = quiet.enqueue()
    hand.succeeds(b"null")
    assert handle.result(timeout=5) is None


def test_a_job_found_by_its_id_has_the_result_of_its_task(app, pay, hand):
    id = pay.enqueue("a").id
    hand.succeeds(b'{"to":"a","cents":5}')
    assert app.job(id).result(timeout=5) == Receipt("a", 5)


def test_a_job_of_an_unknown_task_has_a_plain_result(app, hand):
    handle = app.enqueue("elsewhere", {"a": 1})
    hand.succeeds(b'{"b":[2]}')
    assert handle.result(timeout=5) == {"b": [2]}


def test_a_failed_job_raises_with_the_remote_traceback(pay, hand):
    handle = pay.enqueue("a")
    hand.fails("ValueError: no money", "Traceback (most recent call last): ...")
    with pytest.raises(JobFailed) as caught:
        handle.result(timeout=5)
    assert str(caught.value) == (
        f"job {handle.id} failed: ValueError: no money\n\nTraceback (most recent call last): ..."
    )
    assert caught.value.job == handle.id


def test_a_cancelled_job_raises_with_the_reason(pay):
    handle = pay.enqueue("a")
    assert handle.cancel("not any more")
    with pytest.raises(JobCancelled) as caught:
        handle.result(timeout=5)
    assert str(caught.value) == f"job {handle.id} was cancelled: not any more"


@pytest.mark.every_engine
def test_a_job_that_takes_too_long_goes_on(pay):
    handle = pay.enqueue("a")
    with pytest.raises(ResultTimeout) as caught:
        handle.result(timeout=0.01)
    assert str(caught.value) == (
        f"job {handle.id} is still ready after 0.01 s; it goes on: wait longer, or look with "
        "`handle.status()`"
    )
    assert isinstance(caught.value, TimeoutError)
    assert handle.status().state is State.READY


@pytest.mark.every_engine
def test_no_time_at_all_is_a_look(pay, hand):
    handle = pay.enqueue("a")
    with pytest.raises(ResultTimeout):
        handle.result(timeout=0)
    hand.succeeds(b'{"to":"a","cents":5}')
    assert handle.result(timeout=0) == Receipt("a", 5)


@pytest.mark.every_engine
async def test_an_awaited_result_times_out_too(pay):
    handle = await pay.aenqueue("a")
    with pytest.raises(ResultTimeout):
        await handle.aresult(timeout=0.01)


def test_a_timeout_that_is_no_duration_is_refused(pay):
    with pytest.raises(BadDuration, match="'soon' is not a duration: timeout has no number"):
        pay.enqueue("a").result(timeout="soon")


def test_a_job_that_is_not_there_is_gone(app, pay):
    handle = pay.enqueue("a")
    app.purge()
    for ask in (handle.status, handle.cancel, handle.retry, lambda: handle.result(timeout=5)):
        with pytest.raises(JobGone) as caught:
            ask()
        assert str(caught.value) == (
            f"job {handle.id} is not in the store: it was pruned, purged or never enqueued here; "
            "raise keep_finished to keep results for longer"
        )


@pytest.mark.every_engine
def test_a_job_that_goes_while_it_is_awaited_is_gone(app, pay, in_thread):
    handle = pay.enqueue("a")
    waiting = in_thread(handle.result)
    app.purge()
    with pytest.raises(JobGone):
        waiting.result(10)


def test_only_the_first_cancel_changes_anything(app, pay):
    handle = pay.enqueue("a")
    assert handle.cancel()
    assert not handle.cancel()
    assert not app.cancel(handle.id)
    assert handle.status().reason == "cancelled by a person"


def test_a_person_sends_a_failed_job_back(pay, hand):
    handle = pay.enqueue("a")
    hand.fails("no")
    handle.retry()
    assert handle.status().state is State.READY


async def test_what_a_person_does_can_be_awaited(pay):
    handle = await pay.aenqueue("a")
    assert await handle.acancel("wrong one")
    await handle.aretry()
    assert (await handle.astatus()).state is State.READY


def test_a_job_that_has_not_ended_cannot_be_retried(pay):
    handle = pay.enqueue("a")
    with pytest.raises(WrongState) as caught:
        handle.retry()
    assert str(caught.value) == f"job {handle.id} is ready: retry does not apply to it"


def test_a_retry_whose_unique_key_is_taken_names_the_owner(pay):
    first = pay.using(unique="a").enqueue("a")
    first.cancel()
    second = pay.using(unique="a").enqueue("a")
    with pytest.raises(UniqueConflict) as caught:
        first.retry()
    assert str(caught.value) == (
        f"job {first.id} cannot be retried: its unique key 'a' is taken by job {second.id}; "
        "cancel that one first, or wait until it is done"
    )


def test_a_handle_of_no_id_is_refused(memory):
    with pytest.raises(BadOption, match="id='': it is empty; give at least one character"):
        memory.job("")


@pytest.mark.parametrize("reason", [None, 5, b"why", "", "a\0b"])
def test_a_reason_that_cannot_be_kept_is_refused(pay, reason):
    job = pay.enqueue("a")
    with pytest.raises(BadOption, match="^reason="):
        job.cancel(reason)
    assert job.status().state == "ready"


def test_a_handle_stays_in_its_process_and_says_what_to_send_instead(memory):
    with pytest.raises(Unpicklable) as caught:
        pickle.dumps(memory.job("x"))
    assert str(caught.value) == (
        "<Handle x> cannot be pickled, for it belongs to this process: pass its id, and make "
        "another there with app.job(id)"
    )


def test_an_async_task_may_not_block_the_loop_that_must_run_what_it_waits_for(app):
    @app.task(name="child")
    async def child() -> int:
        return 7

    @app.task(name="blocks", retries=0)
    async def blocks() -> int:
        return child.enqueue().result()

    @app.task(name="awaits")
    async def awaits() -> int:
        return await (await child.aenqueue()).aresult()

    @app.task(name="waits")
    def waits() -> int:
        return child.enqueue().result()

    with app.worker_thread():
        with pytest.raises(JobFailed, match="WrongThread: result would wait for itself"):
            blocks.enqueue().result(timeout=20)
        assert awaits.enqueue().result(timeout=20) == 7
        assert waits.enqueue().result(timeout=20) == 7
