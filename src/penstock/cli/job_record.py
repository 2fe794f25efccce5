"""A job as commands print it: a record for programs, a row or a page for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.cli.output import (
    STATES,
    Column,
    print_block,
    print_facts,
    print_title,
)
from penstock.cli.times import iso, moment, relative
from penstock.core.job import PRIORITIES, ErrorRecord, Job, State
from penstock.core.metadata import read_meta, redacted_names
from penstock.core.redaction import redacted_json, redacted_text

COLUMNS: Final = (
    Column("ID"),
    Column("STATE", styles=STATES),
    Column("TASK", shrink=True),
    Column("ENQUEUED", align="right", optional=True),
    Column("QUEUE", shrink=True, optional=True),
    Column("KEY", shrink=True, optional=True),
    Column("ATTEMPT", align="right", optional=True),
    Column("ABOUT", shrink=True),
)
_LABELS: Final = {number: label for label, number in PRIORITIES.items()}


def record(job: Job) -> dict[str, Any]:
    """Everything about a job, in the order it is printed in."""
    return {
        "id": job.id,
        "task": job.task,
        "name": job.name,
        "state": job.state,
        "queue": job.queue,
        "priority": job.priority,
        "key": job.key,
        "tags": job.tags,
        "correlation_id": job.correlation_id,
        "meta": read_meta(_shown(job, job.meta)),
        "unique": job.unique,
        "unique_scope": job.unique_scope if job.unique else None,
        "unique_until": job.unique_until if job.unique else None,
        "at_most_once": job.at_most_once,
        "hold": job.hold,
        "hold_cause": job.hold_cause,
        "hold_until_at": iso(job.hold_until),
        "attempt": job.attempt,
        "failures": job.failures,
        "crashes": job.crashes,
        "rescues": job.rescues,
        "worker": job.worker,
        "started": job.started,
        "progress": job.progress,
        "note": job.note,
        "reason": job.reason and redacted_text(job.reason),
        "cancel_reason": job.cancel_reason,
        "enqueued_at": iso(job.enqueued_at),
        "enqueued_by": job.enqueued_by,
        "run_at": iso(job.run_at),
        "claimed_at": iso(job.claimed_at),
        "finished_at": iso(job.finished_at),
        "expires_at": iso(job.expires_at),
        "payload": _raw(_shown(job, job.payload)),
        "result": None if job.result is None else _raw(_shown(job, job.result)),
        "errors": [_error(error) for error in job.errors],
    }


def row(job: Job, now: float) -> Sequence[str]:
    """The job in a list."""
    return (
        job.id,
        job.state,
        job.task,
        relative(job.enqueued_at, now),
        job.queue,
        job.key or "",
        str(job.attempt),
        _about(job, now),
    )


def print_page(job: Job, now: float, why: str | None = None) -> None:
    """Everything about one job; ``why``: its explanation, if there is one."""
    print_facts(_facts(job, now, why))
    print_title("Payload")
    print_block(_pretty(_shown(job, job.payload)), indent=2)
    if job.result is not None:
        print_title("Result")
        print_block(_pretty(_shown(job, job.result)), indent=2)
    for error in job.errors:
        print_title(f"Attempt {error.attempt}: {error.kind}")
        print_facts(
            (
                ("  when", moment(error.at, now)),
                ("  worker", error.worker),
                ("  message", error.message),
            )
        )
        if error.traceback:
            print_block(error.traceback, indent=2)


def _unique(job: Job) -> str | None:
    if not job.unique:
        return None
    whose = " for all tasks" if job.unique_scope == "app" else ""
    return f"{job.unique} (until {job.unique_until}{whose})"


def _facts(job: Job, now: float, why: str | None) -> Sequence[tuple[str, str | None]]:
    return (
        ("id", job.id),
        ("name", job.name),
        ("task", job.task),
        ("state", job.state),
        ("why", why),
        ("reason", job.reason and redacted_text(job.reason)),
        ("hold", job.hold and _held(job, now)),
        ("cancel asked", job.cancel_reason),
        ("progress", _progress(job) or None),
        ("queue", job.queue),
        ("priority", str(_LABELS.get(job.priority, job.priority))),
        ("key", job.key),
        ("tags", ", ".join(job.tags) or None),
        ("correlation id", job.correlation_id),
        ("meta", _meta(job)),
        ("unique", _unique(job)),
        ("at most once", "yes" if job.at_most_once else None),
        ("attempt", _attempts(job)),
        ("worker", job.worker),
        ("enqueued", moment(job.enqueued_at, now)),
        ("enqueued by", job.enqueued_by or None),
        ("runs at", moment(job.run_at, now) if job.state is State.SCHEDULED else None),
        ("claimed", moment(job.claimed_at, now)),
        ("finished", moment(job.finished_at, now)),
        ("expires", None if job.state.is_final else moment(job.expires_at, now)),
    )


def _attempts(job: Job) -> str:
    ends = {"failure": job.failures, "crash": job.crashes, "rescue": job.rescues}
    told = [f"{count} {_plural(name, count)}" for name, count in ends.items() if count]
    return f"{job.attempt} ({', '.join(told)})" if told else str(job.attempt)


def _plural(name: str, count: int) -> str:
    if count == 1:
        return name
    return f"{name}es" if name.endswith("h") else f"{name}s"


def _about(job: Job, now: float) -> str:
    if job.hold is not None:
        return f"held: {_held(job, now)}"
    match job.state:
        case State.SCHEDULED:
            last = f" after {job.errors[-1].kind}" if job.errors else ""
            return f"{relative(job.run_at, now)}{last}"
        case State.RUNNING:
            return _progress(job)
        case State.FAILED | State.CANCELLED:
            return redacted_text(job.reason or "").partition("\n")[0]
        case _:
            return ""


def _held(job: Job, now: float) -> str:
    cause = f" ({job.hold_cause})" if job.hold_cause else ""
    until = f", {relative(job.hold_until, now)}" if job.hold_until is not None else ""
    return f"{job.hold}{cause}{until}"


def _progress(job: Job) -> str:
    parts = [] if job.progress is None else [f"{job.progress:.0%}"]
    return " ".join(parts + ([job.note] if job.note else []))


def _error(error: ErrorRecord) -> dict[str, Any]:
    return {
        "attempt": error.attempt,
        "at": iso(error.at),
        "kind": error.kind,
        "message": error.message,
        "worker": error.worker,
        "traceback": error.traceback,
    }


def _shown(job: Job, stored: bytes | None) -> bytes:
    """Stored JSON without the secrets of the job."""
    return redacted_json(stored or b"{}", redacted_names(job.meta))


def _meta(job: Job) -> str | None:
    meta = read_meta(_shown(job, job.meta))
    return msgspec.json.encode(meta).decode() if meta else None


def _raw(stored: bytes) -> object:
    """The JSON that is stored, digit by digit; what is none, as text."""
    try:
        msgspec.json.decode(stored)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return stored.decode(errors="backslashreplace")
    return msgspec.Raw(stored)


def _pretty(stored: bytes) -> str:
    try:
        return msgspec.json.format(stored, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return stored.decode(errors="backslashreplace")
