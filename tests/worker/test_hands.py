"""What a worker has in its hands, and how that is compared with what the store says."""

from __future__ import annotations

from penstock.core.job import OutcomeKind, Verdict
from penstock.worker.inflight import Hands
from worker.rig import spec
from worker.test_pools import make_job

TASK = spec(lambda: None, "work")


def take(hands: Hands, id: str, **fields):
    return hands.take(make_job(id, **fields), TASK, 0.0)


def test_a_job_is_an_attempt_until_it_ends_and_an_outcome_until_it_is_settled():
    hands = Hands()
    attempt = take(hands, "a")
    assert attempt in hands
    assert not hands.is_empty

    outcome = attempt.outcome(OutcomeKind.SUCCEEDED)
    assert hands.settle(attempt, outcome)
    assert attempt not in hands
    assert hands.outgoing(10) == (outcome,)

    assert hands.answered([outcome], [Verdict.DONE]) == 0
    assert hands.is_empty


def test_an_outcome_whose_row_is_locked_stays_and_a_stale_one_is_counted_and_gone():
    hands = Hands()
    attempts = [take(hands, id) for id in "abc"]
    outcomes = [attempt.outcome(OutcomeKind.SUCCEEDED) for attempt in attempts]
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        hands.settle(attempt, outcome)

    assert hands.answered(outcomes, [Verdict.DONE, Verdict.LATER, Verdict.STALE]) == 1
    assert hands.outgoing(10) == (outcomes[1],)
    assert hands.is_waiting_for(outcomes)
    assert not hands.is_waiting_for(outcomes[:1])


def test_the_oldest_outcomes_go_first_and_no_more_than_fit():
    hands = Hands()
    for id in "abcde":
        attempt = take(hands, id)
        hands.settle(attempt, attempt.outcome(OutcomeKind.SUCCEEDED))

    assert [outcome.job for outcome in hands.outgoing(3)] == ["a", "b", "c"]


def test_the_end_of_a_forgotten_attempt_is_nobodys_business():
    hands = Hands()
    attempt = take(hands, "a")
    assert hands.clear() == [attempt]

    assert not hands.settle(attempt, attempt.outcome(OutcomeKind.SUCCEEDED))
    assert hands.is_empty


def test_comparing_finds_what_only_one_side_knows():
    hands = Hands()
    both, gone, ended = take(hands, "both"), take(hands, "gone"), take(hands, "ended")
    hands.settle(ended, ended.outcome(OutcomeKind.SUCCEEDED))
    again = make_job("both", attempt=2)

    difference = hands.compare([both.job, ended.job, make_job("new"), again])

    assert [job.id for job in difference.unknown] == ["new", "both"]
    assert difference.unknown[1].attempt == 2
    assert difference.gone == [gone]


def test_only_what_started_after_its_claim_is_reported_as_begun_and_once():
    hands = Hands()
    take(hands, "at-once", started=True).started_at = 1.0
    later = take(hands, "later", started=False)
    take(hands, "waits", started=False)
    assert hands.begun() == ()

    later.started_at = 2.0
    assert hands.begun() == (("later", 1),)
    hands.reported(hands.begun())
    assert hands.begun() == ()


def test_a_cancellation_is_known_as_long_as_the_job_is_here():
    hands = Hands()
    attempt = take(hands, "a")
    hands.tell("a")
    assert hands.told == {"a"}
    hands.settle(attempt, attempt.outcome(OutcomeKind.CANCELLED))
    assert hands.told == frozenset()


def test_an_outcome_can_be_replaced_by_a_plainer_one_or_by_none():
    hands = Hands()
    attempt = take(hands, "a")
    outcome, plainer = (attempt.outcome(kind) for kind in (OutcomeKind.RETRY, OutcomeKind.FAILED))
    hands.settle(attempt, outcome)
    hands.replace(outcome, plainer)
    assert hands.outgoing(10) == (plainer,)
    hands.replace(plainer, None)
    assert hands.is_empty


def test_an_attempt_that_is_announced_is_told_before_it_starts():
    hands = Hands()
    attempt = take(hands, "a", started=False)
    assert hands.begun() == ()

    hands.announce(attempt)
    assert hands.is_announcing
    assert hands.begun() == (attempt.key,)

    assert hands.reported([attempt.key])
    assert not hands.is_announcing
    assert hands.begun() == ()
