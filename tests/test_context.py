"""What a handler sees and says: the context and the signals."""

from __future__ import annotations

from datetime import datetime
from typing import cast

import pytest
from msgspec.structs import replace

from penstock.context import CURRENT, Cancel, Context, NoContext, Retry, Signal, Snooze, current
from penstock.core.job import Job, State
from penstock.core.transactions import Effect
from penstock.errors import (
    BadCheckpoint,
    BadDuration,
    CheckpointTooLarge,
    NoCheckpoint,
    PenstockError,
)


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


# --- checkpoints ----------------------------------------------------------------------------------


def test_what_an_attempt_before_has_saved_is_there_and_what_this_one_saves():
    assert Context(job()).saved is None
    context = Context(replace(job(), checkpoint=b'{"row":7}'))
    assert context.saved == {"row": 7}

    context.checkpoint({"row": 8, "seen": ["a", None, 1.5, True]})

    assert context.saved == {"row": 8, "seen": ["a", None, 1.5, True]}
    report = context.take_report()
    assert report is not None
    assert (report.fraction, report.checkpoint) == (
        None,
        b'{"row":8,"seen":["a",null,1.5,true]}',
    )


def test_a_checkpoint_is_what_it_was_when_it_was_saved():
    rows, context = [1], Context(job())
    context.checkpoint(rows)
    rows.append(2)
    context.saved.append(3)
    assert context.saved == [1]


def test_a_checkpoint_says_how_far_the_attempt_has_come_as_well():
    """A report is whole: what is left out of it would be forgotten."""
    context = Context(job())
    context.progress(0.5, "half")
    context.take_report()
    context.checkpoint(7)
    report = context.take_report()
    assert report is not None
    assert (report.fraction, report.note, report.checkpoint) == (0.5, "half", b"7")
    assert context.take_report() is None


def test_a_checkpoint_is_a_sign_of_life():
    context = Context(job(), monotonic=lambda: 42.0)
    context.checkpoint(1)
    assert context.alive_at == 42.0


def test_a_checkpoint_of_64_kib_is_saved_and_a_larger_one_says_what_to_do():
    context = Context(job())
    context.checkpoint("x" * (65536 - 2))
    with pytest.raises(CheckpointTooLarge) as caught:
        context.checkpoint("y" * (65536 - 1))
    assert str(caught.value) == (
        "send: a checkpoint of 65537 bytes is over the limit of 65536; "
        "save where the work stands, such as an index or an id, and keep the data elsewhere"
    )
    assert isinstance(caught.value, ValueError)
    assert context.saved[0] == "x"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"rows": [1, (2, 3)]}, "checkpoint['rows'][1]: tuple is not one of JSON's own types"),
        (datetime(2026, 1, 1), "checkpoint: datetime is not one of JSON's own types"),
        (object(), "checkpoint: a value of type object has no JSON form"),
        ({"at": float("nan")}, "checkpoint['at']: JSON has no nan"),
        ({"bad": "\ud800"}, "checkpoint['bad']: '\\ud800' is not valid Unicode text"),
    ],
)
def test_what_json_would_not_give_back_is_no_checkpoint(value: object, why: str):
    context = Context(job())
    context.checkpoint("before")
    with pytest.raises(BadCheckpoint) as caught:
        context.checkpoint(value)
    said = str(caught.value)
    assert said.startswith(f"send: {why}")
    assert said.endswith("; save None, bool, int, float, str, list or dict")
    assert context.saved == "before"


def test_a_checkpoint_that_holds_itself_is_refused():
    value: list[object] = []
    value.append(value)
    with pytest.raises(BadCheckpoint, match="nested too deeply"):
        Context(job()).checkpoint(value)


def test_a_transactional_task_has_no_checkpoint_and_is_told_why():
    context = Context(job())
    context.effect = cast(Effect, object())
    with pytest.raises(NoCheckpoint) as caught:
        context.checkpoint(1)
    assert str(caught.value) == (
        "send is transactional: what a failed attempt wrote is undone, so the next one has to "
        "begin anew; leave ctx.checkpoint() out, or declare the task without transactional=True"
    )


def test_what_a_context_in_another_process_has_said_is_passed_on():
    there, here = Context(job()), Context(job())
    there.checkpoint([1])
    report = there.take_report(is_last=True)
    assert report is not None
    here.relay(report)
    assert here.saved == [1]
    there.progress(0.5, "half")
    again = there.take_report()
    assert again is not None
    here.relay(again)
    assert here.saved == [1]
    assert here.progress_so_far == (0.5, "half")
