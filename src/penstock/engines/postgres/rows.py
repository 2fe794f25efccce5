"""Rows of the PostgreSQL engine's ``live`` and ``history`` tables, as jobs and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from penstock.core.job import ErrorRecord, Hold, Job, State

Row = tuple[Any, ...]

REVISION: Final = 11
SIGNED_ATTEMPT: Final = 16
ID: Final = 19
SIGNED_BY: Final = 32
"""Where a row has what is asked of it before it is read as a job."""

_STATES: Final = {state.value: state for state in State}
_HOLDS: Final = {hold.value: hold for hold in Hold}
_NUL_SIGN: Final = "\N{SYMBOL FOR NULL}"
_errors = msgspec.json.Decoder(tuple[ErrorRecord, ...])
_tags = msgspec.json.Decoder(tuple[str, ...])
_encoder = msgspec.json.Encoder()


def json_text(value: object) -> str:
    """Return a value as JSON text, for a column or a parameter."""
    return _encoder.encode(value).decode()


def can_be(value: str) -> bool:
    """A stored text may equal this one: PostgreSQL has none with a NUL, and refuses to look."""
    return "\0" not in value


def texts(values: Iterable[str]) -> list[str]:
    """Return texts to be looked for as an array, without those that nothing equals."""
    return [value for value in values if can_be(value)]


def text(value: str) -> str | None:
    """Return a text to be looked for; a null, which nothing equals, for one that cannot be."""
    return value if can_be(value) else None


def free_text(value: str | None) -> str | None:
    """Return what people or programs say in words so that it can be stored: a NUL is shown as one.

    An error's message may have one, and its job has to end all the same.
    """
    return None if value is None else value.replace("\0", _NUL_SIGN)


def to_job(row: Row) -> Job:
    """Read ``SELECT *``, in the order of the columns of both tables."""
    return Job(
        seq=row[1],
        place=row[2],
        priority=row[3],
        enqueued_at=row[4],
        run_at=row[5],
        expires_at=row[6],
        hold_until=row[7],
        claimed_at=row[8],
        finished_at=row[9],
        progress=row[10],
        revision=row[REVISION],
        attempt=row[12],
        failures=row[13],
        crashes=row[14],
        rescues=row[15],
        started=row[17],
        at_most_once=row[18],
        id=row[19],
        task=row[20],
        queue=row[21],
        state=_STATES[row[22]],
        worker=row[23],
        enqueued_by=row[24],
        hold=None if row[25] is None else _HOLDS[row[25]],
        hold_cause=row[26],
        key=row[27],
        unique=row[28],
        unique_until=row[29] or "done",
        name=row[30],
        correlation_id=row[31],
        cancel_reason=row[33],
        reason=row[34],
        note=row[35],
        tags=() if row[36] is None else _tags.decode(row[36]),
        errors=() if row[37] is None else _errors.decode(row[37]),
        payload=row[38],
        result=row[39],
    )


def to_jobs(rows: Sequence[Row]) -> list[Job]:
    """Read many rows."""
    return [to_job(row) for row in rows]


def to_record(job: Job, signed: tuple[int, str] | None = None) -> dict[str, Any]:
    """What can change in a job's life, by the names of the columns, as ``json_populate_recordset``
    reads it; ``signed`` is the attempt that was settled without ending it, and its worker.
    """
    return {
        "id": job.id,
        "queue": job.queue,
        "priority": job.priority,
        "seq": job.seq,
        "place": job.place,
        "run_at": job.run_at,
        "expires_at": job.expires_at,
        "hold_until": job.hold_until,
        "claimed_at": job.claimed_at,
        "finished_at": job.finished_at,
        "progress": job.progress,
        "attempt": job.attempt,
        "failures": job.failures,
        "crashes": job.crashes,
        "rescues": job.rescues,
        "started": job.started,
        "state": job.state.value,
        "worker": job.worker,
        "hold": None if job.hold is None else job.hold.value,
        "hold_cause": free_text(job.hold_cause),
        "cancel_reason": free_text(job.cancel_reason),
        "reason": free_text(job.reason),
        "note": free_text(job.note),
        "errors": json_text(job.errors) if job.errors else None,
        "result": None if job.result is None else _bytea(job.result),
        "signed_attempt": None if signed is None else signed[0],
        "signed_by": None if signed is None else signed[1],
    }


def to_adopted(job: Job, entry: int) -> dict[str, Any]:
    """A job from elsewhere, whole, likewise."""
    return {
        **to_record(job),
        "entry": entry,
        "revision": 0,
        "enqueued_at": job.enqueued_at,
        "at_most_once": job.at_most_once,
        "task": job.task,
        "enqueued_by": job.enqueued_by,
        "key": job.key,
        "unique_key": job.unique,
        "unique_until": None if job.unique_until == "done" else job.unique_until,
        "name": job.name,
        "correlation_id": job.correlation_id,
        "tags": json_text(job.tags) if job.tags else None,
        "payload": _bytea(job.payload),
    }


def _bytea(value: bytes) -> str:
    return f"\\x{value.hex()}"
