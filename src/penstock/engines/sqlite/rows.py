"""Rows of the SQLite engine's ``job`` table, as jobs and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.core.job import (
    KEEP,
    KEEP_FAILED,
    Draft,
    ErrorRecord,
    Hold,
    Job,
    Outcome,
    OutcomeKind,
    State,
)
from penstock.core.lifecycle import entering
from penstock.core.unique_keys import given_key

Row = tuple[Any, ...]
QueueHead = Mapping[str, Any]
"""The parameters of the statements that look at the head of one queue's line."""

_STATES: Final = {state.value: state for state in State}
_HOLDS: Final = {hold.value: hold for hold in Hold}
_LARGE: Final = 2000
"""Bytes of a result that is not carried twice."""
_errors = msgspec.json.Decoder(tuple[ErrorRecord, ...])
_tags = msgspec.json.Decoder(tuple[str, ...])
_encoder = msgspec.json.Encoder()


def json_text(value: object) -> str:
    """Return a value as JSON text, for a column or a parameter."""
    return _encoder.encode(value).decode()


def json_names(values: Sequence[str]) -> str:
    """Return texts to be looked for as a JSON array.

    SQLite cuts a text from JSON off at a NUL, and would find another one. No stored text has a NUL,
    so such a value becomes a null, which nothing equals.
    """
    return json_text([None if "\0" in value else value for value in values])


def to_job(row: Row) -> Job:
    """Read ``SELECT * FROM job``, in the order of the table's columns."""
    unique, scope = given_key(row[2], row[24])
    return Job(
        id=row[1],
        task=row[2],
        payload=row[41],
        queue=row[3],
        priority=row[4],
        state=_STATES[row[5]],
        enqueued_at=row[6],
        enqueued_by=row[7],
        hold=None if row[8] is None else _HOLDS[row[8]],
        hold_cause=row[9],
        hold_until=row[10],
        seq=row[12],
        run_at=row[13],
        expires_at=row[14],
        claim=row[15],
        attempt=row[16],
        failures=row[17],
        crashes=row[18],
        rescues=row[19],
        worker=row[20],
        started=row[21] == 1,
        cancel_reason=row[22],
        key=row[23],
        unique=unique,
        unique_scope=scope,
        unique_until=row[25],
        at_most_once=row[26] == 1,
        name=row[27],
        tags=() if row[28] is None else _tags.decode(row[28]),
        correlation_id=row[29],
        claimed_at=row[30],
        finished_at=row[31],
        result=row[42],
        reason=row[32],
        progress=row[33],
        note=row[34],
        errors=() if row[43] is None else _errors.decode(row[43]),
        revision=row[37],
        meta=_bytes(row[40]),
        checkpoint=row[44],
        keep=row[38],
        keep_failed=row[39],
    )


def to_ready(row: Row) -> Job:
    """Read a row of ``head`` or ``chosen``: a job in line, which has neither a hold nor an end."""
    unique, scope = given_key(row[2], row[17])
    return Job(
        id=row[1],
        task=row[2],
        payload=row[3],
        queue=row[4],
        priority=row[5],
        state=State.READY,
        enqueued_at=row[6],
        enqueued_by=row[7],
        seq=row[8],
        run_at=row[9],
        expires_at=row[10],
        claim=row[11],
        attempt=row[12],
        failures=row[13],
        crashes=row[14],
        rescues=row[15],
        key=row[16],
        unique=unique,
        unique_scope=scope,
        unique_until=row[18],
        at_most_once=row[19] == 1,
        name=row[20],
        tags=() if row[21] is None else _tags.decode(row[21]),
        correlation_id=row[22],
        reason=row[23],
        errors=() if row[24] is None else _errors.decode(row[24]),
        revision=row[25],
        keep=row[26],
        keep_failed=row[27],
        meta=_bytes(row[28]),
        checkpoint=row[29],
    )


class Candidate(NamedTuple):
    """A job in line, as far as choosing needs it."""

    entry: int
    priority: int
    at_most_once: bool


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def to_insert(jobs: Iterable[Row]) -> tuple[tuple[str, ...], list[Row]]:
    """The columns of ``insert`` for jobs from ``to_new``, and a row of values for each.

    Columns in which all have the table's default are left out: binding a None costs the driver
    more than the store needs for it.
    """
    columns = zip(_NEW, zip(*jobs, strict=True), strict=True)
    given = {
        name: values
        for (name, default), values in columns
        if default is _ALWAYS or values.count(default) < len(values)
    }
    return tuple(given), list(zip(*given.values(), strict=True))


_ALWAYS: Final = object()
_NEW: Final[Sequence[tuple[str, object]]] = (
    ("entry", _ALWAYS),  # a job's entry is its first ticket
    ("id", _ALWAYS),
    ("task", _ALWAYS),
    ("payload", _ALWAYS),
    ("queue", _ALWAYS),
    ("priority", _ALWAYS),
    ("state", _ALWAYS),
    ("enqueued_at", _ALWAYS),
    ("enqueued_by", _ALWAYS),
    ("seq", _ALWAYS),
    ("line", None),
    ("run_at", None),
    ("expires_at", None),
    ("key", None),
    ("unique_key", None),
    ("unique_until", "done"),
    ("at_most_once", False),
    ("name", None),
    ("tags", None),
    ("correlation_id", None),
    ("keep", KEEP),
    ("keep_failed", KEEP_FAILED),
    ("meta", None),
)
"""The columns that a new job can have, each with its default in the table."""


def to_new(draft: Draft, seq: int, now: float, line: str | None) -> Row:
    """A new job as the values of all these columns; ``line`` is for one that could start."""
    state, run_at, expires_at = entering(draft, now)
    return (
        seq,
        draft.id,
        draft.task,
        draft.payload,
        draft.queue,
        draft.priority,
        state.value,
        now,
        draft.enqueued_by,
        seq,
        line if state is State.READY else None,
        run_at,
        expires_at,
        draft.key,
        draft.unique_key,
        draft.unique_until,
        draft.at_most_once,
        draft.name,
        json_text(draft.tags) if draft.tags else None,
        draft.correlation_id,
        draft.keep,
        draft.keep_failed,
        None if draft.meta is None else draft.meta.decode(),
    )


def to_lines(jobs: Iterable[Row]) -> set[tuple[str, int, str]]:
    """The key lines that these new jobs stand in: queue, priority and key."""
    return {(job[4], job[5], job[10]) for job in jobs if job[10] is not None}


def to_adopt(job: Job) -> Row:
    """A job from elsewhere as ``to_new``: what of its life is past is in ``to_save``."""
    return (
        job.seq,
        job.id,
        job.task,
        job.payload,
        job.queue,
        job.priority,
        job.state.value,
        job.enqueued_at,
        job.enqueued_by,
        job.seq,
        None,
        job.run_at,
        job.expires_at,
        job.key,
        job.unique_key,
        job.unique_until,
        job.at_most_once,
        job.name,
        json_text(job.tags) if job.tags else None,
        job.correlation_id,
        job.keep,
        job.keep_failed,
        None if job.meta is None else job.meta.decode(),
    )


def to_save(job: Job, line: str | None) -> Row:
    """The parameters of ``save``."""
    return (
        job.state.value,
        job.queue,
        job.priority,
        job.hold,
        job.hold_cause,
        job.hold_until,
        line,
        job.seq,
        job.run_at,
        job.expires_at,
        job.claim,
        job.attempt,
        job.failures,
        job.crashes,
        job.rescues,
        job.worker,
        job.started,
        job.cancel_reason,
        job.claimed_at,
        job.finished_at,
        job.result,
        job.reason,
        job.progress,
        job.note,
        json_text(job.errors) if job.errors else None,
        job.checkpoint,
        job.id,
    )


def to_jobs(rows: Sequence[Row]) -> list[Job]:
    """Read many rows."""
    return [to_job(row) for row in rows]


def is_quick_success(outcome: Outcome) -> bool:
    """It can be one of ``to_successes``: JSON carries its texts unchanged."""
    if outcome.kind is not OutcomeKind.SUCCEEDED or outcome.then or "\0" in outcome.job:
        return False
    result = outcome.result
    return result is None or (
        len(result) <= _LARGE and b"\0" not in result and (result.isascii() or _is_text(result))
    )


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def to_successes(outcomes: Sequence[Outcome], entries: dict[str, int]) -> str:
    """The outcomes for ``succeed_all``, with the entries that are known; they are of use once."""
    return json_text(
        [
            (
                each.job,
                each.claim,
                None if each.result is None else each.result.decode(),
                entries.pop(each.job, None),
            )
            for each in outcomes
        ]
    )
