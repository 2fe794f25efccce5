"""Rows of the PostgreSQL engine's ``live`` and ``history`` tables, as jobs and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock.core.job import ErrorRecord, Hold, Job, State
from penstock.core.unique_keys import given_key
from penstock.engines.records import Report

Row = tuple[Any, ...]

REVISION: Final = 11
SIGNED_CLAIM: Final = 17
ID: Final = 20
SIGNED_BY: Final = 33
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
    unique, scope = given_key(row[21], row[29])
    return Job(
        seq=row[1],
        priority=row[2],
        enqueued_at=row[3],
        run_at=row[4],
        expires_at=row[5],
        hold_until=row[6],
        claimed_at=row[7],
        finished_at=row[8],
        progress=row[9],
        revision=row[REVISION],
        claim=row[12],
        attempt=row[13],
        failures=row[14],
        crashes=row[15],
        rescues=row[16],
        started=row[18],
        at_most_once=row[19],
        id=row[20],
        task=row[21],
        queue=row[22],
        state=_STATES[row[23]],
        worker=row[24],
        enqueued_by=row[25],
        hold=None if row[26] is None else _HOLDS[row[26]],
        hold_cause=row[27],
        key=row[28],
        unique=unique,
        unique_scope=scope,
        unique_until=row[30] or "done",
        name=row[31],
        correlation_id=row[32],
        cancel_reason=row[34],
        reason=row[35],
        note=row[36],
        tags=() if row[37] is None else _tags.decode(row[37]),
        errors=() if row[39] is None else _errors.decode(row[39]),
        payload=row[40],
        result=row[41],
        keep=row[10],
        meta=None if row[38] is None else row[38].encode(),
        checkpoint=row[42],
        keep_failed=row[44],
    )


def to_jobs(rows: Sequence[Row]) -> list[Job]:
    """Read many rows."""
    return [to_job(row) for row in rows]


def to_record(job: Job, signed: tuple[int, str] | None = None) -> dict[str, Any]:
    """What can change in a job's life, by the names of the columns, as ``json_populate_recordset``
    reads it; ``signed`` is the claim that was settled without ending it, and its worker.
    """
    return {
        "id": job.id,
        "queue": job.queue,
        "priority": job.priority,
        "seq": job.seq,
        "run_at": job.run_at,
        "expires_at": job.expires_at,
        "hold_until": job.hold_until,
        "claimed_at": job.claimed_at,
        "finished_at": job.finished_at,
        "progress": job.progress,
        "claim": job.claim,
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
        "checkpoint": None if job.checkpoint is None else _bytea(job.checkpoint),
        "signed_claim": None if signed is None else signed[0],
        "signed_by": None if signed is None else signed[1],
    }


def to_adopted(job: Job, entry: int, line: str | None) -> dict[str, Any]:
    """A job from elsewhere, whole, likewise; ``line`` is the key line that it stands in."""
    return {
        **to_record(job),
        "entry": entry,
        "line": line,
        "revision": 0,
        "enqueued_at": job.enqueued_at,
        "at_most_once": job.at_most_once,
        "task": job.task,
        "enqueued_by": job.enqueued_by,
        "key": job.key,
        "unique_key": job.unique_key,
        "unique_until": None if job.unique_until == "done" else job.unique_until,
        "name": job.name,
        "correlation_id": job.correlation_id,
        "tags": json_text(job.tags) if job.tags else None,
        "keep": job.keep,
        "keep_failed": job.keep_failed,
        "meta": None if job.meta is None else job.meta.decode(),
        "payload": _bytea(job.payload),
    }


def to_reports(reports: Iterable[Report]) -> str:
    """Reports as ``penstock.report`` reads them: the last one of each claim, with what it saved."""
    last: dict[tuple[str, int], Report] = {}
    for report in reports:
        if can_be(report.job):
            key = (report.job, report.claim)
            saved = report.checkpoint
            if saved is None and key in last:
                saved = last[key].checkpoint
            last[key] = replace(report, note=free_text(report.note), checkpoint=saved)
    return json_text(list(last.values()))


def _bytea(value: bytes) -> str:
    return f"\\x{value.hex()}"
