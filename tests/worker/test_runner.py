"""One attempt becomes one outcome, whatever the handler does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.context import Context, Retry, Snooze, current
from penstock.core.job import ErrorRecord, Outcome, OutcomeKind
from penstock.core.spec import Spec
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.runner import Runner
from worker.rig import soon, spec
from worker.test_pools import make_job


def attempt_of(task: Spec, **fields: Any) -> Attempt:
    return Attempt(make_job("j1", **fields), task, 1, 0.0)


class Way:
    """The same handler as a coroutine or in a thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runner = Runner(lambda: 1000.0, lambda: "w1", chance=lambda: 0.0)

    def task(self, function: Any, **fields: Any) -> Spec:
        async def run(ctx: Context) -> Any:
            return function(ctx)

        def call(ctx: Context) -> Any:
            return function(ctx)

        return spec(run if self.name == "run" else call, "work", **fields)

    async def run(self, attempt: Attempt) -> Outcome | None:
        if self.name == "run":
            return await self.runner.run(attempt)
        return self.runner.call(attempt)

    async def outcome(self, function: Any, **fields: Any) -> Outcome:
        names = ("retries", "at_most_once", "retry_for", "keep_result")
        options = {key: fields.pop(key) for key in names if key in fields}
        found = await self.run(attempt_of(self.task(function, **options), **fields))
        assert found is not None
        return found


@pytest.fixture(params=["run", "call"])
def way(request):
    return Way(request.param)


def throw(error: BaseException) -> Any:
    def handler(ctx: Context) -> None:
        raise error

    return handler


async def test_a_value_is_a_success(way):
    outcome = await way.outcome(lambda ctx: {"id": ctx.id, "same": current() is ctx}, claim=3)

    assert (outcome.job, outcome.claim, outcome.kind) == ("j1", 3, OutcomeKind.SUCCEEDED)
    assert outcome.result == b'{"id":"j1","same":true}'


async def test_an_error_is_retried_by_the_policy_and_written_down(way):
    outcome = await way.outcome(throw(ValueError("no")), retries=[7, 9], failures=1, attempt=5)

    assert (outcome.kind, outcome.delay) == (OutcomeKind.RETRY, 9.0)
    assert outcome.reason == "ValueError: no"
    error = outcome.error
    assert error is not None
    assert (error.attempt, error.at, error.kind, error.message, error.worker) == (
        5,
        1000.0,
        "ValueError",
        "no",
        "w1",
    )
    assert error.traceback is not None
    assert "in handler" in error.traceback
    assert "penstock/worker" not in error.traceback


async def test_an_error_after_the_last_retry_is_final(way):
    outcome = await way.outcome(throw(ValueError("no")), retries=2, failures=2)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "ValueError: no")


async def test_what_runs_at_most_once_is_never_retried(way):
    for fields in ({"at_most_once": True}, {}):
        task = way.task(throw(ValueError("no")), at_most_once=not fields)
        outcome = await way.run(attempt_of(task, **fields))
        assert outcome is not None
        assert outcome.kind is OutcomeKind.FAILED


async def test_arguments_that_do_not_fit_are_retried(way):
    outcome = await way.outcome(lambda ctx: None, payload=b'{"unknown":1}')

    assert outcome.kind is OutcomeKind.RETRY
    assert outcome.error is not None
    assert outcome.error.kind == "penstock.errors.BadPayload"
    assert outcome.error.traceback is None


async def test_a_payload_that_is_no_object_is_quarantined(way):
    outcome = await way.outcome(lambda ctx: None, payload=b"[1]")

    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.reason is not None
    assert "not a JSON object" in outcome.reason


@pytest.mark.parametrize("value", [object(), "x" * (2 << 20)])
async def test_a_result_that_cannot_be_stored_is_final(way, value):
    outcome = await way.outcome(lambda ctx: value)

    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.reason is not None
    assert outcome.reason.startswith("penstock.errors.")


async def test_a_retry_takes_its_own_delay_but_obeys_the_limit(way):
    first = await way.outcome(throw(Retry("1m", reason="busy")), retries=1)
    second = await way.outcome(throw(Retry("1m", reason="busy")), retries=1, failures=1)
    third = await way.outcome(lambda ctx: Retry(), retries=[5])

    assert (first.kind, first.delay, first.reason) == (OutcomeKind.RETRY, 60.0, "busy")
    assert (second.kind, second.reason) == (OutcomeKind.FAILED, "busy")
    assert (third.kind, third.delay) == (OutcomeKind.RETRY, 5.0)
    assert third.reason == "the task asked for a retry"


def failed_at(*instants: float) -> tuple[ErrorRecord, ...]:
    return tuple(
        ErrorRecord(attempt=n, at=at, kind="ValueError", message="no")
        for n, at in enumerate(instants, 1)
    )


async def test_no_retry_begins_later_than_retry_for_after_the_first_failure(way):
    """The runner's instant is 1000."""
    fields = {"retries": [10] * 9, "retry_for": 40.0, "failures": 2}
    last = await way.outcome(throw(ValueError("no")), errors=failed_at(970, 990), **fields)
    late = await way.outcome(throw(ValueError("no")), errors=failed_at(969, 990), **fields)

    assert (last.kind, last.delay) == (OutcomeKind.RETRY, 10.0)
    assert (late.kind, late.reason) == (OutcomeKind.FAILED, "ValueError: no")


async def test_retry_for_counts_from_the_first_failure_not_from_the_enqueue(way):
    first = await way.outcome(
        throw(ValueError("no")), retries=[10], retry_for=10.0, enqueued_at=-1e6
    )
    beyond = await way.outcome(throw(ValueError("no")), retries=[10.5], retry_for=10.0)

    assert (first.kind, beyond.kind) == (OutcomeKind.RETRY, OutcomeKind.FAILED)


async def test_retry_for_counts_anew_when_a_person_sent_the_job_back(way):
    outcome = await way.outcome(
        throw(ValueError("no")), retries=[10], retry_for=20.0, errors=failed_at(1, 2, 3)
    )

    assert outcome.kind is OutcomeKind.RETRY


async def test_retry_for_limits_the_delay_that_a_handler_asks_for(way):
    outcome = await way.outcome(throw(Retry("1m", reason="busy")), retry_for=59.0)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "busy")


@pytest.mark.parametrize("value", [7, object(), "x" * (2 << 20)], ids=["7", "object", "huge"])
async def test_a_result_that_is_not_kept_may_be_anything(way, value):
    outcome = await way.outcome(lambda ctx: value, keep_result=False)

    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, None)


async def test_a_snooze_is_no_failure(way):
    outcome = await way.outcome(lambda ctx: Snooze("1m"))

    assert (outcome.kind, outcome.delay, outcome.error) == (OutcomeKind.SNOOZE, 60.0, None)


async def test_a_policy_that_misbehaves_ends_the_job_with_both_errors(way):
    def policy(failures: int, error: BaseException) -> None:
        raise RuntimeError("policy broken")

    outcome = await way.outcome(throw(ValueError("no")), retries=policy)

    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.reason is not None
    assert outcome.reason.startswith("ValueError: no; then penstock.errors.BadPolicy")
    assert outcome.error is not None
    assert outcome.error.kind == "ValueError"


async def test_a_job_that_has_expired_is_not_called(way):
    called: list[int] = []
    outcome = await way.outcome(lambda ctx: called.append(1), expires_at=1000.0)

    assert (outcome.kind, outcome.has_begun) == (OutcomeKind.EXPIRED, False)
    assert called == []


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending.TIMEOUT, OutcomeKind.RETRY),
        (Ending.CANCEL, OutcomeKind.CANCELLED),
        (Ending.SHUTDOWN, OutcomeKind.RELEASED),
        (Ending.LOST, None),
    ],
)
async def test_a_handler_that_noticed_and_returned_ends_as_it_was_asked_to(way, ending, kind):
    task = way.task(lambda ctx: ctx.cancelled)
    attempt = attempt_of(task)
    attempt.end(ending)
    outcome = await way.run(attempt)

    assert (outcome.kind if outcome else None) == kind


@pytest.mark.parametrize("ending", [Ending.CANCEL, Ending.SHUTDOWN])
async def test_a_handler_that_did_not_notice_has_done_its_work(way, ending):
    attempt = attempt_of(way.task(lambda ctx: "all done"))
    attempt.end(ending)
    outcome = await way.run(attempt)

    assert outcome is not None
    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, b'"all done"')


@pytest.mark.parametrize("ending", list(Ending))
async def test_whatever_is_raised_while_we_stop_it_is_our_doing(way, ending):
    task = way.task(throw(OSError("connection closed")))
    attempt = attempt_of(task)
    attempt.end(ending)
    outcome = await way.run(attempt)

    kinds = {
        Ending.TIMEOUT: OutcomeKind.RETRY,
        Ending.STALL: OutcomeKind.RETRY,
        Ending.CANCEL: OutcomeKind.CANCELLED,
        Ending.SHUTDOWN: OutcomeKind.RELEASED,
        Ending.LOST: None,
    }
    assert (outcome.kind if outcome else None) == kinds[ending]


@pytest.mark.parametrize("ending", [Ending.TIMEOUT, Ending.STALL])
async def test_what_a_coroutine_returns_after_its_time_comes_too_late(ending):
    async def swallow(ctx: Context) -> str:
        attempt.end(ending)
        return "all the same"

    attempt = attempt_of(spec(swallow, "work"))
    outcome = await Runner(lambda: 0.0, lambda: "worker").run(attempt)

    assert outcome is not None
    assert outcome.kind is OutcomeKind.RETRY


def test_the_first_reason_to_end_stands_unless_the_job_is_lost():
    attempt = attempt_of(spec(lambda: None, "work"))
    seen = []
    for ending in (Ending.CANCEL, Ending.SHUTDOWN, Ending.LOST):
        attempt.end(ending)
        seen.append(attempt.ending)

    assert seen == [Ending.CANCEL, Ending.CANCEL, Ending.LOST]


async def test_a_coroutine_keeps_its_context_variables_over_every_wait():
    seen: list[str] = []

    async def work(ctx: Context) -> None:
        for _ in range(3):
            seen.append(current().id)
            await asyncio.sleep(0)
        seen.append(await asyncio.create_task(below()))

    async def below() -> str:
        return current().id

    runner = Runner(lambda: 0.0, lambda: "w1")
    outcome = await soon(runner.run(attempt_of(spec(work))))

    assert outcome is not None
    assert outcome.kind is OutcomeKind.SUCCEEDED
    assert seen == ["j1"] * 4
    with pytest.raises(LookupError):
        current()


async def test_an_error_in_the_middle_of_a_coroutine_can_be_caught_there():
    async def work() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "caught"
        return "never"

    outcome = await soon(Runner(lambda: 0.0, lambda: "w1").run(attempt_of(spec(work))))

    assert outcome is not None
    assert outcome.result == b'"caught"'
