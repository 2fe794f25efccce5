"""What a worker has in its inflight, and how that is compared with what the store says."""

from __future__ import annotations

from penstock.core.job import OutcomeKind, Verdict
from penstock.worker.inflight import Inflight
from worker.rig import spec
from worker.test_pools import make_job

TASK = spec(lambda: None, "work")


def take(inflight: Inflight, id: str, **fields):
    return inflight.take(make_job(id, **fields), TASK, 0.0)


def test_a_job_is_an_attempt_until_it_ends_and_an_outcome_until_it_is_settled():
    inflight = Inflight()
    attempt = take(inflight, "a")
    assert attempt in inflight
    assert not inflight.is_empty

    outcome = attempt.outcome(OutcomeKind.SUCCEEDED)
    assert inflight.settle(attempt, outcome)
    assert attempt not in inflight
    assert inflight.outgoing(10) == (outcome,)

    assert inflight.answered([outcome], [Verdict.DONE]) == 0
    assert inflight.is_empty


def test_an_outcome_whose_row_is_locked_stays_and_a_stale_one_is_counted_and_gone():
    inflight = Inflight()
    attempts = [take(inflight, id) for id in "abc"]
    outcomes = [attempt.outcome(OutcomeKind.SUCCEEDED) for attempt in attempts]
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        inflight.settle(attempt, outcome)

    assert inflight.answered(outcomes, [Verdict.DONE, Verdict.LATER, Verdict.STALE]) == 1
    assert inflight.outgoing(10) == (outcomes[1],)
    assert inflight.is_waiting_for(outcomes)
    assert not inflight.is_waiting_for(outcomes[:1])


def test_the_oldest_outcomes_go_first_and_no_more_than_fit():
    inflight = Inflight()
    for id in "abcde":
        attempt = take(inflight, id)
        inflight.settle(attempt, attempt.outcome(OutcomeKind.SUCCEEDED))

    assert [outcome.job for outcome in inflight.outgoing(3)] == ["a", "b", "c"]


def test_the_end_of_a_forgotten_attempt_is_nobodys_business():
    inflight = Inflight()
    attempt = take(inflight, "a")
    assert inflight.clear() == [attempt]

    assert not inflight.settle(attempt, attempt.outcome(OutcomeKind.SUCCEEDED))
    assert inflight.is_empty


def test_comparing_finds_what_only_one_side_knows():
    inflight = Inflight()
    both, gone, ended = take(inflight, "both"), take(inflight, "gone"), take(inflight, "ended")
    inflight.settle(ended, ended.outcome(OutcomeKind.SUCCEEDED))
    again = make_job("both", claim=2)

    difference = inflight.compare([both.job, ended.job, make_job("new"), again])

    assert [job.id for job in difference.unknown] == ["new", "both"]
    assert difference.unknown[1].claim == 2
    assert difference.gone == [gone]


def test_only_what_started_after_its_claim_is_reported_as_begun_and_once():
    inflight = Inflight()
    take(inflight, "at-once", started=True).started_at = 1.0
    later = take(inflight, "later", claim=3, started=False)
    take(inflight, "waits", started=False)
    assert inflight.begun() == ()

    later.started_at = 2.0
    assert inflight.begun() == (("later", 3),)
    inflight.reported(inflight.begun())
    assert inflight.begun() == ()


def test_a_report_that_did_not_arrive_is_sent_again():
    inflight = Inflight()
    attempt = take(inflight, "a", claim=3)
    attempt.context.progress(0.5)
    inflight.collect_reports()
    inflight.collect_reports()

    for _ in range(2):
        (report,) = inflight.reports(10)
        assert (report.job, report.claim, report.fraction) == ("a", 3, 0.5)
    inflight.stored([report])
    assert inflight.reports(10) == ()


def test_a_report_that_came_meanwhile_is_sent_next():
    inflight = Inflight()
    attempt = take(inflight, "a")
    attempt.context.progress(0.5)
    inflight.collect_reports()
    sent = inflight.reports(10)
    attempt.context.progress(0.6)
    inflight.collect_reports()
    inflight.stored(sent)
    assert [report.fraction for report in inflight.reports(10)] == [0.6]


def test_the_last_report_goes_with_the_outcome():
    inflight = Inflight()
    attempt = take(inflight, "a")
    attempt.context.progress(1.0, "all")
    inflight.settle(attempt, attempt.outcome(OutcomeKind.SUCCEEDED))
    (outcome,) = inflight.outgoing(10)
    for _ in range(2):  # the store may want the outcome later, and then both
        sent = inflight.reports(10, [outcome])
        assert [report.note for report in sent] == ["all"]
        inflight.stored(sent)
        inflight.answered([outcome], [Verdict.LATER])
    inflight.answered([outcome], [Verdict.DONE])
    assert inflight.reports(10, [outcome]) == ()


def test_a_report_is_never_sent_after_the_outcome_that_it_belongs_to():
    """Beside many others it would be, if each had its turn by itself."""
    inflight = Inflight()
    others = [take(inflight, f"other {n}") for n in range(5)]
    for each in others:
        each.context.progress(0.1)
    inflight.collect_reports()
    late, last = take(inflight, "late"), take(inflight, "last")
    for each in (late, last):
        each.context.progress(1.0)
        inflight.settle(each, each.outcome(OutcomeKind.SUCCEEDED))
    (first,) = inflight.outgoing(1)
    assert [report.job for report in inflight.reports(3, [first])] == ["late", "other 0", "other 1"]


def test_a_checkpoint_that_was_not_sent_yet_goes_with_the_next_report():
    inflight = Inflight()
    attempt = take(inflight, "a")
    attempt.context.checkpoint({"row": 7})
    inflight.collect_reports()
    attempt.context.progress(0.5)
    inflight.collect_reports()
    (report,) = inflight.reports(10)
    assert (report.fraction, report.checkpoint) == (0.5, b'{"row":7}')


def test_the_last_report_repeats_the_checkpoint():
    """A store may have passed over it: a report waits for no lock."""
    inflight = Inflight()
    attempt = take(inflight, "a")
    attempt.context.checkpoint(7)
    inflight.collect_reports()
    inflight.stored(inflight.reports(10))
    attempt.context.progress(0.5)
    inflight.collect_reports()
    (report,) = inflight.reports(10)
    assert (report.fraction, report.checkpoint) == (0.5, None)
    inflight.settle(attempt, attempt.outcome(OutcomeKind.RETRY))
    (report,) = inflight.reports(10, inflight.outgoing(10))
    assert (report.fraction, report.checkpoint) == (0.5, b"7")


def test_a_cancellation_is_known_as_long_as_the_job_is_here():
    inflight = Inflight()
    attempt = take(inflight, "a")
    inflight.tell("a")
    assert inflight.told == {"a"}
    inflight.settle(attempt, attempt.outcome(OutcomeKind.CANCELLED))
    assert inflight.told == frozenset()


def test_an_outcome_can_be_replaced_by_a_plainer_one_or_by_none():
    inflight = Inflight()
    attempt = take(inflight, "a")
    outcome, plainer = (attempt.outcome(kind) for kind in (OutcomeKind.RETRY, OutcomeKind.FAILED))
    inflight.settle(attempt, outcome)
    inflight.replace(outcome, plainer)
    assert inflight.outgoing(10) == (plainer,)
    inflight.replace(plainer, None)
    assert inflight.is_empty


def test_an_attempt_that_is_announced_is_told_before_it_starts():
    inflight = Inflight()
    attempt = take(inflight, "a", started=False)
    assert inflight.begun() == ()

    inflight.announce(attempt)
    assert inflight.is_announcing
    assert inflight.begun() == (attempt.key,)

    assert inflight.reported([attempt.key])
    assert not inflight.is_announcing
    assert inflight.begun() == ()
