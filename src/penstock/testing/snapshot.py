"""A picture of a store as plain data, the same for every run of the same test."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.core.job import Job
from penstock.core.spec import Spec
from penstock.errors import BadPayload
from penstock.testing.entries import arguments_of

_PLAIN = ("key", "unique", "name", "progress", "note", "attempt", "failures", "crashes")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_INSTANTS = ("run_at", "expires_at", "finished_at", "hold_until")


def picture(
    jobs: Sequence[Job], specs: Mapping[str, Spec], start: float, now: float, own: frozenset[str]
) -> dict[str, Any]:
    """The jobs in the order they were enqueued. What says nothing is left out.

    Instants are seconds since ``start``. An id that nobody chose is a number; ``own`` are the
    others.
    """
    labels = {
        job.id: job.id if job.id in own else f"job {number}" for number, job in enumerate(jobs, 1)
    }
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.state.value] = counts.get(job.state.value, 0) + 1

    def named(words: str) -> str:
        for id, label in labels.items():
            words = words.replace(id, label)
        return words

    return {
        "at": _since(start, now),
        "counts": dict(sorted(counts.items())),
        "jobs": [_job(job, specs.get(job.task), start, named) for job in jobs],
    }


def _job(job: Job, spec: Spec | None, start: float, named: Callable[[str], str]) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "id": named(job.id),
        "task": job.task,
        "arguments": _builtins(arguments_of(spec, job.payload)),
        "state": job.state.value,
        "queue": job.queue,
        "enqueued_at": _since(start, job.enqueued_at),
    }
    if job.priority != 5:
        seen["priority"] = job.priority
    if job.tags:
        seen["tags"] = list(job.tags)
    for name in _PLAIN:
        if value := getattr(job, name):
            seen[name] = value
    for name in _INSTANTS:
        if (instant := getattr(job, name)) is not None:
            seen[name] = _since(start, instant)
    if job.hold is not None:
        seen["hold"] = job.hold.value
    if job.reason:
        seen["reason"] = _ADDRESS.sub("", named(job.reason))
    if job.result is not None:
        seen["result"] = _result(spec, job.result)
    if job.errors:
        told = [f"{each.kind}: {named(each.message)}" for each in job.errors]
        seen["errors"] = [_ADDRESS.sub("", each) for each in told]
    return seen


def _since(start: float, instant: float) -> float:
    return round(instant - start, 6)


def _builtins(arguments: Mapping[str, Any]) -> Any:
    # Defaults are any objects, and need no JSON form.
    return {name: _plain(value) for name, value in arguments.items()}


def _result(spec: Spec | None, result: bytes) -> Any:
    plain = msgspec.json.decode(result)
    if spec is None:
        return plain
    try:
        return msgspec.to_builtins(spec.signature.decode_result(result), order="deterministic")
    except (BadPayload, TypeError, ValueError):
        return plain


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, order="deterministic")  # a set has another order each run
    except (TypeError, ValueError):
        return _ADDRESS.sub("", repr(value))
