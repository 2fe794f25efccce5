"""Rows of the SQLite engine's ``job`` table, as jobs and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.core.job import ErrorRecord, Hold, Job, State

Row = tuple[Any, ...]

_STATES: Final = {state.value: state for state in State}
_HOLDS: Final = {hold.value: hold for hold in Hold}
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
    return Job(
        id=row[1],
        task=row[2],
        payload=row[3],
        queue=row[4],
        priority=row[5],
        state=_STATES[row[6]],
        enqueued_at=row[7],
        enqueued_by=row[8],
        hold=None if row[9] is None else _HOLDS[row[9]],
        hold_cause=row[10],
        hold_until=row[11],
        place=row[12],
        seq=row[13],
        run_at=row[14],
        expires_at=row[15],
        attempt=row[16],
        failures=row[17],
        crashes=row[18],
        rescues=row[19],
        worker=row[20],
        started=row[21] == 1,
        cancel_reason=row[22],
        key=row[23],
        unique=row[24],
        unique_until=row[25],
        at_most_once=row[26] == 1,
        name=row[27],
        tags=() if row[28] is None else _tags.decode(row[28]),
        correlation_id=row[29],
        claimed_at=row[30],
        finished_at=row[31],
        result=row[32],
        reason=row[33],
        progress=row[34],
        note=row[35],
        errors=() if row[36] is None else _errors.decode(row[36]),
    )


def to_insert(job: Job) -> Row:
    """The parameters of ``insert``."""
    return (
        job.id,
        job.task,
        job.payload,
        job.queue,
        job.priority,
        job.state.value,
        job.enqueued_at,
        job.enqueued_by,
        job.hold,
        job.hold_cause,
        job.seq,
        job.run_at,
        job.expires_at,
        job.key,
        job.unique,
        job.unique_until,
        job.at_most_once,
        job.name,
        json_text(job.tags) if job.tags else None,
        job.correlation_id,
    )


def to_save(job: Job) -> Row:
    """The parameters of ``save``."""
    return (
        job.state.value,
        job.hold,
        job.hold_cause,
        job.hold_until,
        job.place,
        job.seq,
        job.run_at,
        job.expires_at,
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
        job.id,
    )


def to_jobs(rows: Sequence[Row]) -> list[Job]:
    """Read many rows."""
    return [to_job(row) for row in rows]
