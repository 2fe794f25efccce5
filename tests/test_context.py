"""What a handler sees and says: the context and the signals."""

from __future__ import annotations

import pytest

from penstock.context import CURRENT, Cancel, Context, NoContext, Retry, Signal, Snooze, current
from penstock.core.job import Job, State
from penstock.errors import BadDuration, PenstockError


def job() -> Job:
    return Job(
        id="j1",
        task="send",
        payload=b"{}",
        queue="mail",
        priority=5,
        state=State.RUNNING,
        enqueued_at=0.0,
        claim=4,
        attempt=3,
        failures=2,
        key="user-7",
        correlation_id="c1",
        tags=("a", "b"),
    )


def test_a_context_tells_of_its_job():
    context = Context(job())

    assert (context.id, context.task, context.queue) == ("j1", "send", "mail")
    assert (context.attempt, context.failures) == (3, 2)
    assert (context.key, context.correlation_id, context.tags) == ("user-7", "c1", ("a", "b"))
    assert context.job.id == "j1"


def test_outside_of_an_attempt_there_is_no_context_and_the_error_says_where_there_is():
    with pytest.raises(NoContext) as caught:
        current()

    assert isinstance(caught.value, PenstockError)
    assert isinstance(caught.value, LookupError)
    assert str(caught.value).startswith("no attempt runs here: penstock.current() works inside")


def test_inside_of_an_attempt_current_is_its_context():
    context = Context(job())
    token = CURRENT.set(context)
    try:
        assert current() is context
    finally:
        CURRENT.reset(token)


def test_only_a_handler_that_looked_has_noticed_that_it_should_stop():
    context = Context(job())
    assert not context.cancelled
    assert not context.has_noticed

    context.stop()
    assert not context.has_noticed
    assert context.cancelled
    assert context.has_noticed


def test_the_latest_progress_wins_and_is_taken_once():
    context = Context(job())
    assert context.take_report() is None

    context.progress(0.1, "first")
    context.progress(0.2, "second")
    report = context.take_report()
    assert report is not None
    assert (report.job, report.claim) == ("j1", 4)
    assert (report.fraction, report.note) == (0.2, "second")
    assert context.take_report() is None

    context.progress(0.2, "second")
    assert context.take_report() is not None


@pytest.mark.parametrize(
    ("given", "kept"), [(-1, 0.0), (0.25, 0.25), (1.0000001, 1.0), (7, 1.0), (float("nan"), 0.0)]
)
def test_progress_stays_between_nothing_and_all(given, kept):
    context = Context(job())
    context.progress(given)

    report = context.take_report()
    assert report is not None
    assert report.fraction == kept


def test_signals_read_durations_as_people_write_them():
    assert Retry("1m30s").delay == 90.0
    assert Retry().delay is None
    assert Snooze("2h", reason="asleep").delay == 7200.0
    assert Cancel("no use").reason == "no use"
    assert [str(signal) for signal in (Retry(), Retry(reason="x"), Cancel("y"))] == ["", "x", "y"]


@pytest.mark.parametrize("signal", [Retry, Snooze])
def test_a_signal_with_a_bad_duration_is_refused_where_it_is_made(signal):
    with pytest.raises(BadDuration):
        signal("soon")


def test_a_signal_is_no_error_of_penstock():
    assert issubclass(Retry, Signal)
    assert not issubclass(Signal, PenstockError)
