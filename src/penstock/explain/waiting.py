"""Reasons of a job that waits: its own instant or hold, its queue, its place in line."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.core.job import Hold, Job, State
from penstock.explain import workers
from penstock.explain.reasons import (
    Code,
    JobSnapshot,
    Reason,
    argument,
    listed,
    moment,
    number,
    span,
)

PATIENCE: Final = 5.0
"""Seconds that a job may be next before it counts as overlooked."""

_HOLDS: Final = {
    Hold.LIMIT: "a limit on what may run at once",
    Hold.RATE: "a limit on how many may start in a while",
    Hold.BREAKER: "an open breaker",
    Hold.DEPENDENCY: "what it depends on",
    Hold.MOVING: "its move to another store",
}


def reasons(snapshot: JobSnapshot) -> list[Reason]:
    """Everything that keeps it from starting."""
    job = snapshot.job
    if job.expires_at is not None and job.expires_at <= snapshot.now:
        return [_expired(snapshot, job.expires_at)]
    found = [*_own(snapshot), *_paused(snapshot), *workers.reasons(snapshot)]
    if job.hold is Hold.UNKNOWN_TASK:
        found = [reason for reason in found if reason.code is not Code.NOT_KNOWN]
    if not _is_in_line(snapshot):
        return found
    found += [*_queue(snapshot), *workers.busy(snapshot), *_line(snapshot)]
    if snapshot.able and snapshot.is_silent(snapshot.able):
        found.append(workers.silence(snapshot, snapshot.able))
    if snapshot.able and snapshot.is_leaderless:
        found.append(workers.no_leader(snapshot))
    return found or [_next(snapshot)]


def _is_in_line(snapshot: JobSnapshot) -> bool:
    """It could start as soon as its turn comes, or will be made ready by the next claim."""
    job = snapshot.job
    if job.state is State.SCHEDULED:
        return (job.run_at or 0.0) <= snapshot.now
    return job.hold is None


# --- its own instant or hold --------------------------------------------------------------------


def _expired(snapshot: JobSnapshot, at: float) -> Reason:
    text = f"it expired {span(snapshot.now - at)} ago and will not start"
    step = "it will be marked as cancelled when a worker or the leader next looks"
    if not snapshot.workers:
        step = "it will be marked as cancelled once a worker is running: none has a lease now"
    return Reason(code=Code.EXPIRED, text=text, next_step=step, since_at=at)


def _own(snapshot: JobSnapshot) -> list[Reason]:
    job = snapshot.job
    if job.state is State.SCHEDULED and (job.run_at or 0.0) > snapshot.now:
        return [_scheduled(job, job.run_at or 0.0, snapshot.now)]
    if job.hold is None:
        return []
    return [_held(snapshot, job.hold)]


def _scheduled(job: Job, at: float, now: float) -> Reason:
    when = f"in {span(at - now)}, at {moment(at)}"
    last = job.errors[-1] if job.errors else None
    if job.attempt == 0:
        code, text = Code.SCHEDULED, f"it is scheduled to start {when}"
    elif last is not None and last.attempt == job.attempt:
        said = f"{last.kind}: {last.message}"
        text = f"it will be retried {when}: attempt {job.attempt} failed ({said})"
        code = Code.RETRY
    else:
        why = f" ({job.reason})" if job.reason else ""
        code, text = Code.SNOOZED, f"its task snoozed it{why}: it runs again {when}"
    return Reason(code=code, text=text, until_at=at)


def _held(snapshot: JobSnapshot, hold: Hold) -> Reason:
    job = snapshot.job
    if hold is Hold.UNKNOWN_TASK:
        return _unknown(snapshot)
    cause = f": {job.hold_cause}" if job.hold_cause else ""
    if job.hold_until is None:
        return Reason(code=Code(hold), text=f"it is held by {_HOLDS[hold]}{cause}")
    left = max(0.0, job.hold_until - snapshot.now)
    text = f"it is held by {_HOLDS[hold]}{cause}, for another {span(left)}"
    return Reason(code=Code(hold), text=text, until_at=job.hold_until)


def _unknown(snapshot: JobSnapshot) -> Reason:
    """It was held because a worker that took it does not know its task."""
    task = snapshot.job.task
    if any(task in worker.tasks for worker in snapshot.workers):
        text = f"it is held because no worker had task {task!r}, but one has it now"
        step = "release it: penstock doctor --repair; the leader also does so every minute"
        return Reason(code=Code.NO_CAUSE, text=text, next_step=step)
    known = {each for worker in snapshot.workers for each in worker.tasks}
    text = f"it is held until a worker joins that has task {task!r}: none has it now"
    return replace(workers.unknown(snapshot, known), code=Code.UNKNOWN_TASK, text=text)


# --- its queue ----------------------------------------------------------------------------------


def _paused(snapshot: JobSnapshot) -> list[Reason]:
    if not snapshot.settings.paused:
        return []
    queue, note = snapshot.job.queue, snapshot.settings.note
    text = f"queue {queue!r} is paused" + (f": {note}" if note else "")
    step = f"to continue: penstock queues resume {argument(queue)}"
    return [Reason(code=Code.PAUSED, text=text, next_step=step)]


def _queue(snapshot: JobSnapshot) -> list[Reason]:
    """Its queue has all running that it may, or has to keep its order."""
    queue, settings, found = snapshot.job.queue, snapshot.settings, []
    here = [hand for hand in snapshot.running if hand.queue == queue]
    running, most = sum(hand.jobs for hand in here), settings.most
    if settings.ordered and (snapshot.standing.blockers or running):
        first = [*(hand.first for hand in here), *snapshot.standing.blockers]
        text = f"queue {queue!r} runs one job at a time, and {listed(first)} has not ended"
        step = f"see penstock explain {argument(first[0])}"
        found.append(Reason(code=Code.ORDERED, text=text, next_step=step))
    elif most is not None and running >= most:
        text = f"queue {queue!r} runs {running} of max_running {settings.max_running} jobs"
        if here:
            text += f": {listed((hand.first for hand in here), 3)}"
        more = f"penstock queues set --max-running N {argument(queue)}"
        step = f"it starts when one of them ends; to run more at once: {more}"
        found.append(Reason(code=Code.MAX_RUNNING, text=text, next_step=step))
    return found


# --- its place in line --------------------------------------------------------------------------


def _line(snapshot: JobSnapshot) -> list[Reason]:
    standing = snapshot.standing
    if not standing.ahead:
        return []
    ahead = number(standing.ahead, "job")
    where = f"queue {snapshot.job.queue!r}"
    where = f"its key in {where}" if snapshot.settings.is_keyed else where
    text = f"{ahead} of {where} are ahead of it"
    if standing.ahead == 1:
        text = f"1 job of {where} is ahead of it"
        text += ", a more urgent one" if standing.more_urgent else ""
    elif standing.more_urgent:
        text += f", {standing.more_urgent:,} of them more urgent"
    if snapshot.settings.is_keyed:
        keys = (f"{key or 'no key'} {jobs:,}" for key, jobs in standing.keys)
        text += ", and other keys take turns with it; "
        text += f"the waiting jobs by key: {', '.join(keys)}"
    step = "if that takes too long, start more workers; penstock top shows how fast the queue moves"
    return [Reason(code=Code.LINE, text=text, next_step=step)]


def _next(snapshot: JobSnapshot) -> Reason:
    job = snapshot.job
    since = ready_at(job)
    waited = max(0.0, snapshot.now - since)
    room = number(len(snapshot.able), "worker has", "workers have")
    if job.crashes:
        return Reason(code=Code.NEXT, text="it is about to run, on its own")
    if waited > PATIENCE:
        text = "nothing in the store prevents it from running, and it has been ready for "
        text += span(waited)
        step = (
            f"{room} room for it but may be stopping, or stuck: penstock doctor checks whether "
            "they are alive"
        )
        return Reason(code=Code.OVERLOOKED, text=text, next_step=step, since_at=since)
    if job.state is State.SCHEDULED:
        text = f"it is due and about to run: {room} room for it"
        return Reason(code=Code.DUE, text=text, since_at=job.run_at)
    text = f"it is about to run: no job is ahead of it, and {room} room for it"
    return Reason(code=Code.NEXT, text=text, since_at=since)


def ready_at(job: Job) -> float:
    """Since when it could have run: as near as what is stored of it tells."""
    at = max(job.enqueued_at, job.run_at or 0.0, job.claimed_at or 0.0, job.hold_until or 0.0)
    return max([at, *(error.at for error in job.errors)])


# --- what else is good to know ------------------------------------------------------------------


def remarks(job: Job, now: float) -> list[Reason]:
    """What does not keep it from running, but decides what becomes of it."""
    found = []
    if job.expires_at is not None and job.state.is_waiting and job.expires_at > now:
        text = f"it expires in {span(job.expires_at - now)} if it has not started by then"
        if job.state is State.SCHEDULED and job.expires_at <= (job.run_at or 0.0):
            text = f"it expires in {span(job.expires_at - now)}, before it is due: it will not run"
        found.append(Reason(code=Code.EXPIRES, text=text, until_at=job.expires_at))
    if job.at_most_once:
        text = (
            "it runs at most once: if its worker dies while running it, it fails and is not retried"
        )
        found.append(Reason(code=Code.AT_MOST_ONCE, text=text))
    if job.crashes:
        times = number(job.crashes, "crash", "crashes")
        text = f"it was in {times}: it now runs on its own in a child process, and fails after 3"
        step = f"for details: penstock jobs show {argument(job.id)}"
        found.append(Reason(code=Code.CRASHED, text=text, next_step=step))
    return found
