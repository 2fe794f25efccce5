"""Reasons of a job that has ended, or is not in the store."""

from __future__ import annotations

from penstock.core.job import Job, State
from penstock.core.lifecycle import EXPIRED, MAY_HAVE_RUN
from penstock.explain.reasons import Code, Reason, argument, moment, number, span


def gone() -> Reason:
    """The store does not have it."""
    text = "the store does not have this job: it was pruned, purged or never enqueued here"
    step = (
        "check the id, and that the code which enqueued the job uses this store (--app, --url); to "
        "keep finished jobs for longer, raise keep_finished"
    )
    return Reason(code=Code.GONE, text=text, next_step=step)


def reasons(job: Job, now: float) -> list[Reason]:
    """Why and when it ended."""
    at = job.finished_at or now
    ago = f"{span(max(0.0, now - at))} ago, at {moment(at)}"
    retry = f"penstock jobs retry {argument(job.id)}"
    again = f"to run it again: {retry}"
    why = job.reason or "no reason was given"
    if job.state is State.SUCCEEDED:
        text = f"it succeeded {ago}, in {_attempts(job)}"
        return [Reason(code=Code.SUCCEEDED, text=text, since_at=at)]
    if job.state is State.FAILED:
        step = f"read its errors: penstock jobs show {argument(job.id)}; {again}"
        if why == MAY_HAVE_RUN:
            step = f"check whether it did its work; if not: {retry}"
        text = f"it failed {ago}, after {_attempts(job)}: {why}{_last_error(job)}"
        return [Reason(code=Code.FAILED, text=text, next_step=step, since_at=at)]
    if why.startswith("superseded by "):
        owner = why.removeprefix("superseded by ")
        text = f"it was superseded {ago}: job {owner} has its unique key {job.unique!r}"
        step = f"see penstock explain {argument(owner)}"
        return [Reason(code=Code.SUPERSEDED, text=text, next_step=step, since_at=at)]
    if why == EXPIRED:
        text = f"it expired {ago}: it had not started by then"
        return [Reason(code=Code.EXPIRED, text=text, next_step=again, since_at=at)]
    text = f"it was cancelled {ago}: {why}"
    return [Reason(code=Code.CANCELLED, text=text, next_step=again, since_at=at)]


def _attempts(job: Job) -> str:
    return number(job.attempt, "attempt")


def _last_error(job: Job) -> str:
    if not job.errors:
        return ""
    last = job.errors[-1]
    said = f"{last.kind}: {last.message}"
    return "" if last.message in (job.reason or "") else f"; its last error was {said}"
