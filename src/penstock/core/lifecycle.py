"""The life of a job: each function takes a job and returns it as it is after one change.

Engines add what only a store can know: tickets, revisions, unique keys, the ledger.
"""

from __future__ import annotations

from math import inf
from typing import Final, assert_never

from msgspec.structs import replace

from penstock.core.job import (
    CRASH_LIMIT,
    Change,
    Draft,
    ErrorRecord,
    Hold,
    Job,
    Outcome,
    OutcomeKind,
    State,
    step,
)

WAITS_AGAIN: Final = frozenset(
    {OutcomeKind.RETRY, OutcomeKind.SNOOZE, OutcomeKind.RELEASED, OutcomeKind.CRASHED}
)
"""Outcomes after which the job is not over, unless it is overruled."""

RESCUE_LIMIT: Final = 100
"""A suspect that was taken from this many dead workers, even if it never ran inside one, is given
up: it may kill them from outside.
"""

NEW_TICKET: Final = 0
"""The ticket of a job that is to take the next one of its store."""

EXPIRED: Final = "expired"
MAY_HAVE_RUN: Final = "may have run"


def born(draft: Draft, now: float) -> Job:
    """The job that a draft describes, stored at ``now``."""
    state, run_at, expires_at = entering(draft, now)
    return Job(
        id=draft.id,
        task=draft.task,
        payload=draft.payload,
        queue=draft.queue,
        priority=draft.priority,
        state=state,
        enqueued_at=now,
        enqueued_by=draft.enqueued_by,
        run_at=run_at,
        expires_at=expires_at,
        key=draft.key,
        unique=draft.unique,
        unique_until=draft.unique_until,
        at_most_once=draft.at_most_once,
        name=draft.name,
        tags=draft.tags,
        correlation_id=draft.correlation_id,
        meta=draft.meta,
        keep=draft.keep,
    )


def entering(draft: Draft, now: float) -> tuple[State, float | None, float | None]:
    """The state, ``run_at`` and ``expires_at`` of a job that is stored at ``now``: all that has to
    be worked out for it.
    """
    expires_at = None if draft.expires_in is None else now + draft.expires_in
    run_at = draft.run_at if draft.run_at is not None else now + draft.delay
    if run_at > now:
        return State.SCHEDULED, run_at, expires_at
    return State.READY, draft.run_at, expires_at


def promoted(job: Job) -> Job:
    """Its instant has come: a scheduled job is ready, a hold with an instant is lifted."""
    if job.state is State.SCHEDULED:
        return replace(job, state=step(job, Change.PROMOTE), seq=NEW_TICKET)
    return replace(job, hold=None, hold_cause=None, hold_until=None, seq=NEW_TICKET)


def claimed(job: Job, worker: str, now: float, *, starts: bool) -> Job:
    """``worker`` has it; ``starts`` says that it begins at once instead of waiting in its hands.

    A job that was rescued before counts as started from the claim on: if it is what kills its
    workers before they can say that it began, the second crash is charged. One that was in a crash
    runs in a process of its own: it starts only when its worker says so, because it cannot have it
    otherwise, and what that worker dies of meanwhile is not its doing.
    """
    is_suspect = job.crashes > 0
    return replace(
        job,
        state=step(job, Change.CLAIM),
        claim=job.claim + 1,
        attempt=job.attempt + 1,
        worker=worker,
        started=job.at_most_once or (not is_suspect and (starts or job.rescues > 0)),
        claimed_at=now,
        progress=None,
        note=None,
    )


def reported(job: Job, fraction: float | None, note: str | None, checkpoint: bytes | None) -> Job:
    """Its attempt has come so far; what it saved before stays unless there is something new."""
    saved = job.checkpoint if checkpoint is None else checkpoint
    return replace(job, progress=fraction, note=note, checkpoint=saved)


def forget_at(job: Job) -> float:
    """The instant after which the job may be deleted; infinite while it has not ended."""
    return inf if job.finished_at is None else job.finished_at + job.keep


def settled(job: Job, outcome: Outcome, now: float) -> Job:
    """The attempt has ended. A requested cancellation wins over anything but a final outcome."""
    errors = job.errors if outcome.error is None else (*job.errors, outcome.error)
    kind = outcome.kind
    if not outcome.has_begun:
        job = replace(job, attempt=job.attempt - 1)
    if job.cancel_reason is not None and kind in WAITS_AGAIN:
        counted = replace(
            job,
            errors=errors,
            failures=job.failures + (kind is OutcomeKind.RETRY),
            crashes=job.crashes + (kind is OutcomeKind.CRASHED),
        )
        return _ended(counted, Change.CANCEL, job.cancel_reason, now)
    match kind:
        case OutcomeKind.SUCCEEDED:
            return _ended(job, Change.SUCCEED, None, now, outcome.result)
        case OutcomeKind.FAILED:
            failed = replace(job, errors=errors, failures=job.failures + 1)
            return _ended(failed, Change.FAIL, outcome.reason, now)
        case OutcomeKind.CANCELLED:
            reason = outcome.reason or job.cancel_reason
            return _ended(replace(job, errors=errors), Change.CANCEL, reason, now)
        case OutcomeKind.EXPIRED:
            return _ended(job, Change.EXPIRE, EXPIRED, now)
        case OutcomeKind.RETRY:
            return replace(
                job,
                state=step(job, Change.RETRY),
                errors=errors,
                failures=job.failures + 1,
                run_at=now + outcome.delay,
                reason=outcome.reason,
                started=False,
            )
        case OutcomeKind.SNOOZE:
            return replace(
                job,
                state=step(job, Change.SNOOZE),
                run_at=now + outcome.delay,
                reason=outcome.reason,
                started=False,
            )
        case OutcomeKind.RELEASED:
            return replace(
                job,
                state=step(job, Change.RELEASE),
                hold=outcome.hold,
                hold_cause=outcome.hold_cause,
                hold_until=now + outcome.delay if outcome.hold and outcome.delay else None,
                reason=outcome.reason,
                started=False,
            )
        case OutcomeKind.CRASHED:
            why = f": {outcome.reason}" if outcome.reason else ""
            given_up = f"crashed {job.crashes + 1} times{why}"
            after = _charged(
                replace(job, errors=errors), Change.CRASH, given_up, now, outcome.crash_limit
            )
            return after if after.state.is_final else replace(after, reason=outcome.reason)
        case _:
            assert_never(kind)


def overruled(outcome: Outcome, after: Job) -> bool:
    """The job was to wait again, but a cancellation, the new owner of its key or one crash too
    many ended it.
    """
    return outcome.kind in WAITS_AGAIN and after.state in (State.CANCELLED, State.FAILED)


def rescued(job: Job, now: float, crash_limit: int = CRASH_LIMIT) -> Job:
    """Its worker is dead. Only an attempt that had started can have been in the crash."""
    worker = job.worker
    attempt = job.attempt if job.started else job.attempt - 1
    job = replace(job, worker=None, rescues=job.rescues + 1, attempt=attempt)
    if job.cancel_reason is not None:
        return _ended(job, Change.CANCEL, job.cancel_reason, now)
    if not job.started:
        if job.crashes and job.rescues >= RESCUE_LIMIT:
            return _ended(job, Change.ABANDON, f"{job.rescues} workers died while they had it", now)
        return replace(job, state=step(job, Change.RESCUE))
    error = ErrorRecord(
        attempt=job.attempt,
        at=now,
        kind="crash",
        message="the worker died during this attempt",
        worker=worker,
    )
    given_up = f"crashed its worker {job.crashes + 1} times"
    job = replace(job, errors=(*job.errors, error))
    return _charged(job, Change.RESCUE, given_up, now, crash_limit)


def cancelled(job: Job, reason: str, now: float) -> Job:
    """A person cancels it: at once if it waits; a running attempt is asked to end."""
    if job.state is State.RUNNING:
        return replace(job, cancel_reason=job.cancel_reason or reason)
    return _ended(job, Change.CANCEL, reason, now)


def expired(job: Job, now: float) -> Job:
    """It waited past its ``expires_at``."""
    return _ended(job, Change.EXPIRE, EXPIRED, now)


def superseded(job: Job, owner: str, now: float) -> Job:
    """It was to wait again as it is here, but its unique key belongs to ``owner`` now."""
    job = replace(job, state=State.RUNNING)
    return _ended(job, Change.SUPERSEDE, f"superseded by {owner}", now)


def revived(job: Job) -> Job:
    """A person sends it back: a new start, with its attempts and errors remembered."""
    return replace(
        job,
        state=step(job, Change.REVIVE),
        seq=NEW_TICKET,
        failures=0,
        crashes=0,
        rescues=0,
        worker=None,
        started=False,
        cancel_reason=None,
        expires_at=None,
        run_at=None,
        claimed_at=None,
        finished_at=None,
        result=None,
        reason=None,
    )


def held(job: Job, hold: Hold, cause: str, until: float | None = None) -> Job:
    """It may not start while its cause stands, or before ``until``, nor before its own instant."""
    until = _no_sooner(until, job.run_at)
    return replace(job, state=step(job, Change.HOLD), hold=hold, hold_cause=cause, hold_until=until)


def lifted(job: Job, now: float) -> Job:
    """The cause of its hold is gone: it may start, or waits for its instant."""
    free = replace(job, state=step(job, Change.LIFT), hold=None, hold_cause=None, hold_until=None)
    return _waiting(free, now)


def edited(job: Job, now: float, *, queue: str, priority: int, run_at: float | None) -> Job:
    """A person lets a waiting job wait elsewhere, with another urgency or for another instant; a
    hold stays.
    """
    after = replace(
        job,
        state=step(job, Change.EDIT),
        queue=queue,
        priority=priority,
        run_at=run_at,
        hold_until=_no_sooner(job.hold_until, run_at),
    )
    return _waiting(after, now)


def needs_key(job: Job) -> bool:
    """No other job may have its unique key now."""
    if job.unique is None or job.state.is_final:
        return False
    return job.state.is_waiting or job.unique_until == "done"


def _no_sooner(until: float | None, run_at: float | None) -> float | None:
    """When a hold with an instant ends: a job that is ready after it must be due."""
    return until if until is None or run_at is None else max(until, run_at)


def _waiting(job: Job, now: float) -> Job:
    """A job with an instant to come and no hold is scheduled for it; it enters ready with a new
    ticket otherwise.
    """
    is_due = job.run_at is None or job.run_at <= now
    if job.hold is None and not is_due:
        return replace(job, state=step(job, Change.POSTPONE))
    return replace(job, seq=NEW_TICKET)


def _charged(job: Job, change: Change, given_up: str, now: float, crash_limit: int) -> Job:
    """The attempt was in a crash: the job waits again with its old ticket, unless it may not run
    again or this was the last crash it may have; then ``given_up`` says why.
    """
    job = replace(job, crashes=job.crashes + 1)
    if job.at_most_once:
        return _ended(job, Change.ABANDON, MAY_HAVE_RUN, now)
    if job.crashes >= crash_limit:
        return _ended(job, Change.ABANDON, given_up, now)
    return replace(job, state=step(job, change), started=False)


def _ended(
    job: Job, change: Change, reason: str | None, now: float, result: bytes | None = None
) -> Job:
    """A final state holds nothing back and asks for nothing more."""
    return replace(
        job,
        state=step(job, change),
        result=result,
        reason=reason,
        finished_at=now,
        hold=None,
        hold_cause=None,
        hold_until=None,
        cancel_reason=None,
    )
