"""``on_success`` and ``on_failure``: what is enqueued when a job ends, and what it is given."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Cancel, Payload, Penstock, State, events
from penstock.callbacks import check_callbacks
from penstock.errors import BadOption, JobFailed
from penstock.testing import Sandbox


class Book:
    """An app whose callbacks write down what they are given."""

    def __init__(self, app: Penstock) -> None:
        self.app = app
        self.told: list[Any] = []

        @app.task(name="done")
        def done(job_id: str, result: int) -> None:
            self.told.append(("done", job_id, result))

        @app.task(name="failed", queue="alerts")
        def failed(
            job_id: str,
            task: str,
            arguments: dict[str, Any] | None,
            error: str,
            meta: dict[str, Any] | None,
        ) -> None:
            self.told.append(("failed", job_id, task, arguments, error, meta))

        self.done, self.failed = done, failed

        @app.task(name="divide", on_success=done, on_failure=failed, retries=0)
        def divide(a: int, b: int) -> int:
            if b < 0:
                raise Cancel("no debts")
            return a // b

        self.divide = divide


@pytest.fixture
def book(memory: Penstock) -> Book:
    return Book(memory)


@pytest.mark.every_engine
def test_a_worker_enqueues_the_callback_that_fits_the_end(app: Penstock) -> None:
    book = Book(app)
    with app.worker_thread():
        good, bad = book.divide.enqueue(6, 3), book.divide.enqueue(6, 0)
        assert good.result(timeout=60) == 2
        with pytest.raises(JobFailed):
            bad.result(timeout=60)
        # It was stored with the end, so it is there by now.
        callbacks = [job for job in app.find().jobs if job.task in ("done", "failed")]
        assert len(callbacks) == 2
        for each in callbacks:
            app.job(each.id).result(timeout=60)
    said = "ZeroDivisionError: integer division or modulo by zero"
    assert sorted(book.told) == [
        ("done", good.id, 2),
        ("failed", bad.id, "divide", {"a": 6, "b": 0}, said, None),
    ]


def test_a_retry_and_a_cancellation_have_no_callback(book: Book) -> None:
    @book.app.task(name="tries", on_success=book.done, on_failure=book.failed, retries=1)
    def tries() -> None:
        raise ValueError("again")

    with Sandbox(book.app, strict=False) as t:
        job = tries.enqueue()
        book.divide.enqueue(1, -1)
        t.drain()
        assert book.told == []
        t.advance("1h")
        assert [told[:2] for told in book.told] == [("failed", job.id)]
        assert book.told[0][4] == "ValueError: again"


def test_a_sandbox_sees_callbacks_as_it_sees_what_the_test_enqueues(book: Book) -> None:
    with Sandbox(book.app, strict=False) as t:
        handle = book.divide.enqueue(6, 3)
        t.step()
        t.assert_enqueued(book.done, job_id=handle.id, result=2)
        t.assert_not_enqueued(book.failed)
        t.drain()
        assert book.told == [("done", handle.id, 2)]


def test_one_that_was_in_three_crashes_is_told_of(book: Book) -> None:
    with Sandbox(book.app, strict=False) as t:
        handle = book.divide.enqueue(6, 3)
        t.crash(book.divide, times=3)
        t.advance("1h")
        assert handle.status().state is State.FAILED
        (told,) = book.told
        assert told[:3] == ("failed", handle.id, "divide")
        assert told[4] == handle.status().reason
        assert told[4].startswith("crashed 3 times")


def test_one_that_may_have_run_is_told_of_by_whoever_rescues_it(book: Book) -> None:
    @book.app.task(name="once", at_most_once=True, on_failure=book.failed)
    def once() -> None: ...

    with Sandbox(book.app) as t:
        handle = once.enqueue()
        t.crash(once, at="after")
        t.drain()
        assert book.told == []
        t.advance("1m")
        assert book.told == [("failed", handle.id, "once", {}, "may have run", None)]
        t.assert_enqueued(book.failed, job_id=handle.id)


def test_a_callback_has_the_options_of_its_task_and_what_the_job_belongs_to(
    book: Book,
) -> None:
    @book.app.task(
        name="bill", queue="money", priority="high", tags=["b"], key=lambda job_id, *_: job_id[:3]
    )
    def bill(job_id: str, result: str, tries: int = 3) -> None: ...

    @book.app.task(name="order", on_success=bill.using(delay="5m"))
    def order() -> str:
        return "ordered"

    with Sandbox(book.app) as t:
        order.using(correlation_id="c1", id="abcdef").enqueue()
        t.step()
        (entry,) = t.enqueued("bill")
        assert (entry.draft.queue, entry.draft.priority, entry.draft.tags) == ("money", 0, ("b",))
        assert (entry.draft.key, entry.draft.delay) == ("abc", 300.0)
        assert entry.draft.correlation_id == "c1"
        assert entry.arguments == {"job_id": "abcdef", "result": "ordered", "tries": 3}


def test_a_callback_may_take_the_whole_payload(book: Book) -> None:
    seen: list[Any] = []

    @book.app.task(name="any")
    def anything(payload: Payload) -> None:
        seen.append(dict(payload))

    @book.app.task(name="two", on_success=anything)
    def two() -> int:
        return 2

    with Sandbox(book.app) as t:
        handle = two.enqueue()
        t.drain()
    assert seen == [
        {"job_id": handle.id, "task": "two", "arguments": {}, "meta": None, "result": 2}
    ]


def test_a_callback_may_be_declared_later_or_elsewhere(book: Book) -> None:
    @book.app.task(name="early", on_success="later", on_failure="elsewhere", retries=0)
    def early(fails: bool) -> int:
        return 1 // (not fails)

    @book.app.task(name="later")
    def later(result: int) -> None:
        book.told.append(result)

    with Sandbox(book.app, strict=False) as t:
        early.enqueue(False)
        early.enqueue(True)
        t.drain()
        assert book.told == [1]
        (held,) = t.waiting
        assert (held.task, held.hold) == ("elsewhere", "unknown_task")
        assert "ZeroDivisionError" in held.arguments["error"]


def test_a_callback_may_have_a_callback(book: Book) -> None:
    @book.app.task(name="first", on_success="second")
    def first() -> int:
        return 1

    @book.app.task(name="second", on_success=book.done)
    def second(result: int) -> int:
        return result + 1

    with Sandbox(book.app) as t:
        first.enqueue()
        t.drain()
    assert [told[2] for told in book.told] == [2]


def test_one_that_wants_what_it_is_never_given_is_refused(book: Book) -> None:
    with pytest.raises(BadOption) as caught:
        book.app.task(name="bad", on_failure=book.done)(lambda: None)
    assert str(caught.value) == (
        "on_failure='done': its parameter 'result' has no default; "
        "a callback is given job_id, task, arguments, meta, error"
    )

    book.app.task(name="early", on_success="late")(lambda: None)
    book.app.task(name="late")(lambda everything: None)
    with pytest.raises(BadOption, match="on_success='late': its parameter 'everything' has no"):
        check_callbacks(book.app._specs)
    with pytest.raises(BadOption, match="on_success='late'"):
        book.app.run_worker(until_empty=True)


def test_what_is_no_task_is_refused(book: Book) -> None:
    with pytest.raises(BadOption, match="give a task, or the name of one"):
        book.app.task(name="bad", on_success=print)(lambda: None)  # type: ignore[call-overload]


def test_a_success_whose_callback_cannot_be_made_is_a_failure_and_is_told_of(book: Book) -> None:
    def key(job_id: str) -> str:
        raise LookupError("no key")

    book.app.task(name="keyed", key=key)(lambda job_id: None)
    task = book.app.task(name="work", on_success="keyed", on_failure=book.failed)(lambda: 1)
    with Sandbox(book.app, strict=False) as t:
        handle = task.enqueue()
        t.drain()
        assert handle.status().state is State.FAILED
        assert handle.status().reason == "LookupError: no key"
        assert [told[4] for told in book.told] == ["LookupError: no key"]


def test_a_failure_whose_callback_cannot_be_made_says_so(book: Book) -> None:
    def key(job_id: str) -> str:
        raise LookupError("no key")

    book.app.task(name="keyed", key=key)(lambda job_id: None)

    @book.app.task(name="work", on_failure="keyed", retries=0)
    def work() -> None:
        raise ValueError("no")

    with Sandbox(book.app, strict=False) as t:
        handle = work.enqueue()
        t.drain()
        assert handle.status().reason == "ValueError: no; then LookupError: no key"


def test_what_is_no_json_object_is_given_as_none(book: Book) -> None:
    from penstock.core.callbacks import payload_after
    from penstock.core.job import Job

    job = Job(
        id="j",
        task="t",
        payload=b"\xff{",
        queue="q",
        priority=5,
        state=State.FAILED,
        enqueued_at=0.0,
        reason="no",
    )
    assert payload_after(job, ("arguments", "error")) == b'{"arguments":null,"error":"no"}'


@pytest.mark.every_engine
def test_listeners_are_told_of_a_callback_as_of_any_job(app: Penstock) -> None:
    book, heard = Book(app), []
    app.on(events.Enqueued, lambda event: heard.append((event.task, event.queue)))
    with app.worker_thread():
        book.divide.enqueue(6, 3).result(timeout=60)
    assert heard == [("divide", "default"), ("done", "default")]
