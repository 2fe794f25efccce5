"""What the stories of the model are made of: the jobs that callers bring, how attempts end, and
what people decide about queues and jobs.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.core.job import Draft, ErrorRecord, Hold, Outcome, OutcomeKind
from penstock.engines.records import QueueSettings

QUEUES = ("default", "mail", "fair")
TASKS = ("send", "resize", "unheard-of")
KEYS = ("tenant-1", "tenant-2", None)
UNIQUES = ("welcome", "report", None, None)
NUMBERS = st.integers(0, 20)
"""Of jobs; few, so that those who cancel and send back find them."""
DELAYS = st.sampled_from((0.0, 0.0, 0.0, 5.0, 60.0))

DRAFTS = st.builds(
    Draft,
    id=NUMBERS.map("job-{}".format),
    task=st.sampled_from(TASKS),
    queue=st.sampled_from(QUEUES),
    priority=st.sampled_from((0, 5, 5, 10)),
    delay=DELAYS,
    expires_in=st.sampled_from((None, None, None, 30.0)),
    remember=st.sampled_from((0.0, 100.0)),
    key=st.sampled_from(KEYS),
    unique=st.sampled_from(UNIQUES),
    unique_until=st.sampled_from(("done", "start")),
    unique_for=st.sampled_from((0.0, 40.0)),
    at_most_once=st.sampled_from((False, False, False, True)),
    tags=st.sampled_from(((), ("vip",))),
    keep=st.sampled_from((50.0, 1000.0)),
)

SETTINGS = st.builds(
    QueueSettings,
    paused=st.sampled_from((False, False, True)),
    max_running=st.sampled_from((None, None, 1, 2)),
    ordered=st.sampled_from((False, False, True)),
    fair=st.booleans(),
    weights=st.sampled_from(({}, {"tenant-2": 2.0}, {"tenant-1": 0.01, "tenant-2": 100.0})),
    max_running_per_key=st.sampled_from((None, None, 1, 2)),
)
HOLDS = st.sampled_from((Hold.RATE, Hold.BREAKER, Hold.UNKNOWN_TASK, Hold.MOVING))

AFTER = (
    Draft(id="job-17", task="send", queue="mail", unique="report"),
    Draft(id="job-18", task="resize", queue="fair", key="tenant-1", priority=0),
    Draft(id="job-19", task="send", remember=100.0, delay=5.0),
)
"""What follows the end of a job; others may have these ids and keys, too."""

ENDS = st.sampled_from(
    (
        {"kind": OutcomeKind.SUCCEEDED, "result": b"1"},
        {"kind": OutcomeKind.SUCCEEDED, "result": b"1"},
        {"kind": OutcomeKind.FAILED, "reason": "broken"},
        {"kind": OutcomeKind.RETRY, "delay": 0.0, "reason": "again"},
        {"kind": OutcomeKind.RETRY, "delay": 10.0, "reason": "again"},
        {"kind": OutcomeKind.SNOOZE, "delay": 20.0},
        {"kind": OutcomeKind.CANCELLED, "reason": "by itself"},
        {"kind": OutcomeKind.RELEASED},
        {"kind": OutcomeKind.RELEASED, "hold": Hold.UNKNOWN_TASK, "hold_cause": "unheard-of"},
        {"kind": OutcomeKind.RELEASED, "hold": Hold.RATE, "delay": 15.0},
        {"kind": OutcomeKind.EXPIRED},
        {"kind": OutcomeKind.SUCCEEDED, "result": b"2", "then": AFTER[:1]},
        {"kind": OutcomeKind.FAILED, "reason": "broken", "then": AFTER[1:2]},
        {"kind": OutcomeKind.RETRY, "delay": 10.0, "reason": "again", "then": AFTER},
        {"kind": OutcomeKind.CRASHED, "reason": "killed", "then": AFTER},
        {"kind": OutcomeKind.CRASHED, "reason": "killed"},
        {"kind": OutcomeKind.CRASHED, "reason": "killed"},
    )
)


TURNS = st.tuples(
    st.lists(ENDS, max_size=4),
    st.permutations(QUEUES),
    st.integers(0, 4),
    st.sampled_from((None, None, 5)),
)
"""How what a worker has ends, then what it wants: of which queues, how many, how urgent."""


def outcome(job: str, attempt: int, how: dict[str, Any], now: float) -> Outcome:
    """What a worker says of an attempt that ended so."""
    error = None
    if how["kind"] in (OutcomeKind.FAILED, OutcomeKind.RETRY, OutcomeKind.CRASHED):
        error = ErrorRecord(attempt=attempt, at=now, kind="ValueError", message="broken")
    return Outcome(job=job, claim=attempt, error=error, **how)
