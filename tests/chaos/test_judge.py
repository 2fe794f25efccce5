"""The judge finds every kind of broken promise, and none where none was broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.judge import Record, Settlement, Stored, judge

GOOD = Record(
    acknowledged=["plain", "crashed", "cancelled", "paid", "retried"],
    cancelled={"cancelled"},
    begun=[
        *(("plain", 1), ("crashed", 1), ("crashed", 2)),
        *(("paid", 1), ("retried", 1), ("retried", 2)),
    ],
    settled=[
        Settlement("plain", 1, "a", "Succeeded"),
        # Its reply was lost: the worker said it again.
        Settlement("plain", 1, "a", "Succeeded"),
        Settlement("crashed", 2, "b", "Succeeded"),
        Settlement("cancelled", 0, "-", "Cancelled"),
        Settlement("retried", 1, "a", "Retried"),
        Settlement("retried", 2, "a", "Succeeded"),
    ],
    stored=[
        Stored("plain", "succeeded", 1),
        Stored("crashed", "succeeded", 2, crashes=1),
        Stored("cancelled", "cancelled", 0),
        Stored("paid", "succeeded", 1, is_transactional=True),
        Stored("retried", "succeeded", 2),
        # Its caller was killed before it had the answer.
        Stored("unheard", "failed", 3, crashes=3),
    ],
    effects=["paid"],
)


def but(job: Stored) -> list[Stored]:
    """The good jobs, with one in the place of that with the same id."""
    return [job if each.id == job.id else each for each in GOOD.stored]


def found(record: Record) -> list[tuple[str, str]]:
    return [(fault.id, fault.what) for fault in judge(record)]


def test_a_run_that_kept_its_promises_has_no_fault() -> None:
    assert judge(GOOD) == []


def test_an_acknowledged_job_that_is_not_stored_is_lost() -> None:
    record = replace(GOOD, acknowledged=[*GOOD.acknowledged, "gone"])
    assert found(record) == [("gone", "was acknowledged and is not stored")]


def test_a_job_that_is_stored_twice_is_found() -> None:
    record = replace(GOOD, stored=[*GOOD.stored, GOOD.stored[0]])
    assert found(record) == [("plain", "is stored 2 times")]


@pytest.mark.parametrize("state", ["scheduled", "ready", "running"])
def test_a_job_that_has_not_ended_is_found_though_no_caller_heard_of_it(state: str) -> None:
    record = replace(GOOD, stored=but(Stored("unheard", state, 3)))
    assert found(record) == [("unheard", f"has not ended: it is {state}")]


def test_a_cancellation_that_was_not_asked_for_is_found() -> None:
    record = replace(GOOD, cancelled=frozenset())
    assert found(record) == [("cancelled", "was cancelled, which was not asked for")]


def test_a_failure_without_a_crash_is_found() -> None:
    record = replace(GOOD, stored=but(Stored("unheard", "failed", 3)))
    assert found(record) == [("unheard", "has failed without a crash")]


def test_an_attempt_that_ran_twice_is_found() -> None:
    record = replace(GOOD, begun=[*GOOD.begun, ("crashed", 1)])
    assert found(record) == [("crashed", "claim 1 ran 2 times")]


def test_an_attempt_that_the_store_does_not_know_is_found() -> None:
    record = replace(GOOD, begun=[*GOOD.begun, ("plain", 2)])
    assert found(record) == [("plain", "claim 2 ran, but the store knows of 1")]


def test_a_success_of_an_attempt_that_never_ran_is_found() -> None:
    record = replace(GOOD, begun=GOOD.begun[1:])
    assert found(record) == [("plain", "succeeded in claim 1, which never ran")]


def test_two_attempts_that_both_settled_the_job_are_found() -> None:
    late = Settlement("crashed", 1, "a", "Succeeded")
    assert found(replace(GOOD, settled=[*GOOD.settled, late])) == [
        ("crashed", "was settled twice: Succeeded (claim 1, a), then Succeeded (claim 2, b)")
    ]


def test_one_attempt_settled_by_two_workers_is_found() -> None:
    other = Settlement("plain", 1, "b", "Succeeded")
    assert found(replace(GOOD, settled=[*GOOD.settled, other])) == [
        ("plain", "was settled twice: Succeeded (claim 1, a), then Succeeded (claim 1, b)")
    ]


def test_an_attempt_that_ended_in_two_ways_is_found() -> None:
    other = Settlement("retried", 1, "a", "Released")
    assert found(replace(GOOD, settled=[*GOOD.settled, other])) == [
        ("retried", "claim 1 ended twice: Released (claim 1, a), then Retried (claim 1, a)")
    ]


@pytest.mark.parametrize(
    "stored, begun",
    [
        (Stored("plain", "failed", 1, crashes=1), ("plain", 1)),
        (Stored("plain", "succeeded", 2), ("plain", 2)),
    ],
)
def test_a_store_that_says_otherwise_than_the_settlement_is_found(
    stored: Stored, begun: tuple[str, int]
) -> None:
    record = replace(GOOD, stored=but(stored), begun=list({*GOOD.begun, begun}))
    said = f"is {stored.state}, claim {stored.claim}, after Succeeded (claim 1, a)"
    assert found(record) == [("plain", said)]


@pytest.mark.parametrize(
    "effects, stored, fault",
    [
        ([], GOOD.stored[3], "succeeded with 0 effects, not 1"),
        (["paid", "paid"], GOOD.stored[3], "succeeded with 2 effects, not 1"),
        (
            ["paid"],
            Stored("paid", "failed", 1, crashes=3, is_transactional=True),
            "failed with 1 effects, not 0",
        ),
    ],
)
def test_an_effect_that_is_not_there_exactly_once_is_found(
    effects: list[str], stored: Stored, fault: str
) -> None:
    assert found(replace(GOOD, effects=effects, stored=but(stored))) == [("paid", fault)]


def test_a_process_that_failed_by_itself_is_a_fault() -> None:
    record = replace(GOOD, troubles=["a producer failed with exit code 1"])
    assert found(record) == [("-", "a producer failed with exit code 1")]
