"""The job as callers see it: decoded, with datetimes, without what only engines and workers need.

What is stored is ``core.job.Job``. ``shown`` makes the one from the other, with the signature of
the job's task where that is declared in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from penstock.core import job as stored
from penstock.core.job import Hold, State
from penstock.core.signature import Signature
from penstock.core.unique_keys import Scope

R_co = TypeVar("R_co", covariant=True)

PAGE: Final = 500
"""Jobs that an iterator reads at once."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH).total_seconds() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """One attempt that ended badly; all of them are kept with the job."""

    attempt: int
    """Its number, from 1."""
    at: datetime
    kind: str
    """The class of the exception, with its module."""
    message: str
    traceback: str | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Job(Generic[R_co]):
    """A job as it was when it was read; read it again to see what became of it.

    Instants are aware datetimes, in UTC.
    """

    id: str
    task: str
    state: State
    arguments: dict[str, Any]
    """What was given to ``enqueue``, by the names of the parameters. It is plain JSON if the task
    is not declared in this process, or does not take such arguments any more."""
    result: R_co | None = None
    """What the task returned, once the job has succeeded."""
    queue: str
    priority: int
    key: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    correlation_id: str | None = None
    meta: dict[str, Any] | None = None
    """What its caller gave it to carry along."""
    unique: str | None = None
    unique_scope: Scope = "task"
    """Whose key that is: the task's own, or one for all tasks."""
    unique_until: Literal["done", "start"] = "done"
    at_most_once: bool = False
    enqueued_at: datetime
    enqueued_by: str = ""
    run_at: datetime | None = None
    """When it is due, if it was delayed, or waits for its next attempt."""
    expires_at: datetime | None = None
    claimed_at: datetime | None = None
    """When a worker took it for its latest attempt."""
    finished_at: datetime | None = None
    attempt: int = 0
    """The number of the attempt that runs, or how many there were."""
    failures: int = 0
    """Attempts that count against the retries."""
    crashes: int = 0
    """Attempts whose process died."""
    rescues: int = 0
    """How often it was taken from a worker that had died."""
    worker: str | None = None
    """The worker that runs it, or ran it last."""
    keep: float
    """For how many seconds it stays once it has succeeded or was cancelled."""
    keep_failed: float
    """The same if it fails; ``keep`` counts if it is longer."""
    progress: float | None = None
    """How far the attempt has come, from 0 to 1, as it says."""
    note: str | None = None
    """What it says beside that."""
    checkpoint: Any = None
    """What an attempt has saved for the next one."""
    hold: Hold | None = None
    """Why it cannot start now, while it waits."""
    hold_cause: str | None = None
    hold_until: datetime | None = None
    cancel_reason: str | None = None
    """Why it was asked to end, while it runs."""
    reason: str | None = None
    """Why it failed or was cancelled."""
    errors: tuple[FailedAttempt, ...] = ()

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task} {self.state}>"


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first."""

    jobs: tuple[Job[Any], ...]
    cursor: str | None
    """Where the next page begins; None: this is the last one."""


class Jobs:
    """The jobs that fit, newest first, for ``for`` and for ``async for``.

    They are read a page at a time, as the loop comes to them; each loop begins anew.
    """

    def __init__(
        self,
        find: Callable[[str | None], Page],
        afind: Callable[[str | None], Awaitable[Page]],
    ) -> None:
        """``find`` and ``afind`` return the page that begins at a cursor."""
        self._find = find
        self._afind = afind

    def __iter__(self) -> Iterator[Job[Any]]:
        page = self._find(None)
        yield from page.jobs
        while page.cursor is not None:
            page = self._find(page.cursor)
            yield from page.jobs

    async def __aiter__(self) -> AsyncIterator[Job[Any]]:
        page = await self._afind(None)
        while True:
            for job in page.jobs:
                yield job
            if page.cursor is None:
                return
            page = await self._afind(page.cursor)


# --- from what is stored ------------------------------------------------------------------------


def shown(job: stored.Job, signature: Signature | None) -> Job[Any]:
    """A stored job as callers see it; ``signature`` is its task's, None if that is not known."""
    return Job(
        id=job.id,
        task=job.task,
        state=job.state,
        arguments=_arguments(job.payload, signature),
        result=_result(job.result, signature),
        queue=job.queue,
        priority=job.priority,
        key=job.key,
        name=job.name,
        tags=job.tags,
        correlation_id=job.correlation_id,
        meta=_plain(job.meta),
        unique=job.unique,
        unique_scope=job.unique_scope,
        unique_until=job.unique_until,
        at_most_once=job.at_most_once,
        enqueued_at=_moment(job.enqueued_at),
        enqueued_by=job.enqueued_by,
        run_at=_instant(job.run_at),
        expires_at=_instant(job.expires_at),
        claimed_at=_instant(job.claimed_at),
        finished_at=_instant(job.finished_at),
        attempt=job.attempt,
        failures=job.failures,
        crashes=job.crashes,
        rescues=job.rescues,
        worker=job.worker,
        keep=job.keep,
        keep_failed=job.keep_failed,
        progress=job.progress,
        note=job.note,
        checkpoint=_plain(job.checkpoint),
        hold=job.hold,
        hold_cause=job.hold_cause,
        hold_until=_instant(job.hold_until),
        cancel_reason=job.cancel_reason,
        reason=job.reason,
        errors=tuple(map(_attempt, job.errors)),
    )


def returned(result: bytes | None, signature: Signature | None) -> Any:
    """What a task returned; plain JSON where its annotation is not known here, or does not fit."""
    if result is None or signature is None:
        return msgspec.json.decode(result or b"null")
    return signature.decode_result(result)


def _arguments(payload: bytes, signature: Signature | None) -> dict[str, Any]:
    if signature is not None:
        try:
            return signature.arguments(payload)
        except Exception:  # a type's own code runs here too
            pass
    found = _plain(payload)
    return found if isinstance(found, dict) else {}


def _result(result: bytes | None, signature: Signature | None) -> Any:
    try:
        return returned(result, signature)
    except Exception:  # as before; to look at a job must not depend on what is in it
        return _plain(result)


def _attempt(error: stored.ErrorRecord) -> FailedAttempt:
    return FailedAttempt(
        attempt=error.attempt,
        at=_moment(error.at),
        kind=error.kind,
        message=error.message,
        traceback=error.traceback,
        worker=error.worker,
    )


def _plain(text: bytes | None) -> Any:
    """JSON that was stored, by any program; None for what cannot be read."""
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _moment(at: float) -> datetime:
    """Never later than the instant itself: a job is found by ``since=job.enqueued_at``."""
    up, down = min(max(at, 0.0), _LATEST).as_integer_ratio()
    return _EPOCH + timedelta(microseconds=up * 1_000_000 // down)


def _instant(at: float | None) -> datetime | None:
    return None if at is None else _moment(at)
