"""Reasons of a job that a worker has."""

from __future__ import annotations

from penstock.engines.records import WorkerInfo
from penstock.explain.reasons import Code, JobSnapshot, Reason, span
from penstock.explain.workers import no_leader, silence


def reasons(snapshot: JobSnapshot) -> list[Reason]:
    """What keeps it from ending, and where it is."""
    job, found = snapshot.job, []
    worker = snapshot.worker(job.worker)
    if worker is None:
        found.append(_no_lease(snapshot))
    elif snapshot.is_silent([worker]):
        found.append(silence(snapshot, [worker]))
    if job.cancel_reason is not None:
        text = (
            f"its cancellation was requested ({job.cancel_reason}), and its attempt has not ended"
        )
        step = "its worker is told within a second; a handler that blocks ends at its timeout"
        found.append(Reason(code=Code.CANCELLING, text=text, next_step=step))
    if worker is not None:
        found.append(_running(snapshot, worker) if job.started else _claimed(snapshot, worker))
    if snapshot.is_leaderless:
        found.append(no_leader(snapshot))
    return found


def _running(snapshot: JobSnapshot, worker: WorkerInfo) -> Reason:
    job = snapshot.job
    far = "" if job.progress is None else f", {job.progress:.0%} done"
    note = "" if job.note is None else f" ({job.note})"
    text = (
        f"attempt {job.attempt} has been running {_time(snapshot)} on {_named(worker)}{far}{note}"
    )
    return Reason(code=Code.RUNNING, text=text, since_at=job.claimed_at)


def _claimed(snapshot: JobSnapshot, worker: WorkerInfo) -> Reason:
    text = f"{_named(worker)} has held it {_time(snapshot)} and starts it when a slot is free"
    if snapshot.job.crashes:
        text += ": after a crash, a job runs on its own"
    return Reason(code=Code.CLAIMED, text=text, since_at=snapshot.job.claimed_at)


def _no_lease(snapshot: JobSnapshot) -> Reason:
    job = snapshot.job
    text = f"worker {job.worker} has held it {_time(snapshot)} and no longer has a lease"
    if snapshot.leader is None:
        step = "no worker is there to rescue it; start one"
    else:
        step = (
            f"the leader ({snapshot.leader.holder}) will give it to another worker within seconds"
        )
    return Reason(code=Code.NO_LEASE, text=text, next_step=step, since_at=job.claimed_at)


def _named(worker: WorkerInfo) -> str:
    place = f" (process {worker.pid} on {worker.host})" if worker.pid else ""
    return f"worker {worker.id}{place}"


def _time(snapshot: JobSnapshot) -> str:
    return f"for {span(max(0.0, snapshot.now - (snapshot.job.claimed_at or snapshot.now)))}"
