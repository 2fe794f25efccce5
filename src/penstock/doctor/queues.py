"""Checks of the jobs: those that stand still, of unknown tasks, or that have ended and stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.core.finding import Finding, Level
from penstock.core.job import FINAL, Hold, Job, State
from penstock.core.lifecycle import forget_at
from penstock.doctor.snapshot import SAMPLE, StoreSnapshot
from penstock.explain.reasons import argument, listed, moment, near, number, span

OVERDUE: Final = 10.0
"""Seconds that a due job may wait to be made ready before promotion counts as stalled."""
LATE_PRUNING: Final = 25 * 3600.0
"""Seconds after which pruning counts as stalled; some engines let a day go as a whole."""
MUCH_HISTORY: Final = 1_000_000


def checks(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Everything about jobs and queues."""
    yield from _paused(snapshot)
    yield from _overdue(snapshot)
    yield from _unknown(snapshot)
    yield from _undeclared(snapshot)
    yield from _old_code(snapshot)
    yield from _lost(snapshot)
    yield from _failed(snapshot)
    yield _history(snapshot)


def _paused(snapshot: StoreSnapshot) -> Iterator[Finding]:
    waiting = snapshot.total(State.READY, State.SCHEDULED)
    for queue, settings in sorted(snapshot.queues.items()):
        if settings.paused:
            jobs = waiting[queue]
            note = f" ({settings.note})" if settings.note else ""
            oldest = [job.enqueued_at for job in snapshot.waiting if job.queue == queue]
            since = f", the oldest known since {moment(min(oldest))}" if oldest else ""
            yield Finding(
                check="paused",
                level=Level.WARNING if jobs else Level.NOTE,
                text=f"queue {queue!r} is paused{note}: "
                f"{number(jobs, 'job waits', 'jobs wait')}{since}",
                next_step=f"to continue: penstock queues resume {argument(queue)}",
                facts={"queue": queue, "jobs": jobs, "note": settings.note},
            )


def _overdue(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Every claim promotes due jobs, and the leader does at least each 5 s."""
    late = [
        snapshot.now - job.run_at
        for job in snapshot.scheduled
        if job.run_at is not None and snapshot.now - job.run_at > OVERDUE
    ]
    if not late:
        return
    some = "at least " if len(snapshot.scheduled) >= SAMPLE else ""
    step = "start a worker that leads (without --no-leads)"
    if snapshot.after.leader is not None:
        leader = snapshot.after.leader.holder
        step = f"the leader ({leader}) does not make them ready: restart that worker"
    yield Finding(
        check="overdue",
        level=Level.WARNING,
        text=f"{some}{number(len(late), 'job is', 'jobs are')} overdue by up to {span(max(late))} "
        "and not ready yet",
        next_step=step,
        facts={"jobs": len(late), "late": max(late)},
    )


# --- tasks --------------------------------------------------------------------------------------


def _unknown(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Tasks of jobs that wait, and that no worker knows: held already, or about to be."""
    known = {task for worker in snapshot.workers for task in worker.tasks}
    held = snapshot.total(State.READY, hold=Hold.UNKNOWN_TASK).total()
    tasks = Counter(job.task for job in snapshot.unknown if job.task not in known)
    if snapshot.workers:
        others = (job for job in snapshot.waiting if job.hold is not Hold.UNKNOWN_TASK)
        tasks += Counter(job.task for job in others if job.task not in known)
    for task, jobs in sorted(tasks.items()):
        meant = near(task, sorted(known))
        hint = f"; workers have {meant!r}: did you mean that?" if meant else ""
        yield Finding(
            check="unknown_task",
            level=Level.WARNING,
            text=f"no worker has task {task!r}: "
            f"{_waiting(jobs, snapshot.unknown, snapshot.waiting)}",
            next_step=f"start a worker whose code declares it{hint}",
            facts={"task": task, "jobs": jobs, "held": held},
        )


def _undeclared(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Tasks of jobs that wait, and that the application that was given does not have."""
    declared = snapshot.expected.tasks
    known = {task for worker in snapshot.workers for task in worker.tasks}
    tasks = Counter(job.task for job in snapshot.waiting) if declared else Counter[str]()
    for task, jobs in sorted(tasks.items()):
        if task in declared or (snapshot.workers and task not in known):
            continue
        meant = near(task, sorted(declared))
        hint = f"; it has {meant!r}: did you mean that?" if meant else ""
        yield Finding(
            check="undeclared",
            level=Level.WARNING,
            text=f"this application does not declare task {task!r}: "
            f"{_waiting(jobs, snapshot.waiting)}",
            next_step="keep it under its old name until they have run, or check that its module "
            f"is imported{hint}",
            facts={"task": task, "jobs": jobs},
        )


def _waiting(jobs: int, *samples: Sequence[Job]) -> str:
    least = "at least " if any(len(sample) >= SAMPLE for sample in samples) else ""
    return f"{least}{number(jobs, 'job waits', 'jobs wait')}"


def _old_code(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Workers that serve a queue of the application and do not know a task of it."""
    for worker in snapshot.workers:
        lacks = [
            task
            for task, queue in snapshot.expected.tasks.items()
            if queue in worker.queues and task not in worker.tasks
        ]
        if lacks:
            yield Finding(
                check="old_code",
                level=Level.WARNING,
                text=f"worker {worker.id} does not have {listed(lacks)} of this application",
                next_step="it runs different code: restart it, or send it SIGHUP",
                facts={"worker": worker.id, "tasks": len(lacks)},
            )


# --- what is left -------------------------------------------------------------------------------


def _lost(snapshot: StoreSnapshot) -> Iterator[Finding]:
    lost = snapshot.lost
    facts = {"holds": snapshot.lost_holds, "keys": lost.keys, "lines": lost.lines}
    parts = []
    if snapshot.lost_holds:
        count = snapshot.lost_holds
        parts.append(number(count, "hold without a cause", "holds without a cause"))
    if lost.keys:
        parts.append(
            number(lost.keys, "unique key that no job needs", "unique keys that no job needs")
        )
    if lost.lines:
        forgotten = "keys of fair queues that no claim would look at"
        parts.append(
            number(lost.lines, "key of a fair queue that no claim would look at", forgotten)
        )
    if not parts:
        yield Finding(check="repair", text="nothing to repair", facts=facts)
        return
    what = " and ".join(parts)
    if snapshot.is_repaired:
        yield Finding(check="repair", level=Level.NOTE, text=f"repaired {what}", facts=facts)
        return
    step = "repair it: penstock doctor --repair; the leader does so every minute, so check it too"
    yield Finding(
        check="repair", level=Level.WARNING, text=f"found {what}", next_step=step, facts=facts
    )


def _failed(snapshot: StoreSnapshot) -> Iterator[Finding]:
    failed = snapshot.total(State.FAILED)
    if failed.total():
        have = number(failed.total(), "job has failed", "jobs have failed")
        by = ", ".join(f"{queue} {jobs:,}" for queue, jobs in failed.most_common(5))
        yield Finding(
            check="failed",
            level=Level.NOTE,
            text=f"{have}: {by}",
            next_step="list them: penstock jobs list --state failed; then retry or purge them",
            facts={"jobs": failed.total()},
        )


def _history(snapshot: StoreSnapshot) -> Finding:
    keep, ended = snapshot.expected.keep_finished, snapshot.total(*FINAL).total()
    late = [job for job in snapshot.old if forget_at(job) < snapshot.now - LATE_PRUNING]
    kept = f"{number(ended, 'finished job is', 'finished jobs are')} kept"
    facts = {"finished": ended, "keep_finished": keep, "late": len(late)}
    if late:
        some = "at least " if len(snapshot.old) >= SAMPLE else ""
        return Finding(
            check="history",
            level=Level.WARNING,
            text=f"{kept}, {some}{len(late):,} of them for longer than they are to be kept",
            next_step="check that a worker leads: it deletes them",
            facts=facts,
        )
    if ended > MUCH_HISTORY:
        step = "lower keep_finished if they are not needed for that long"
        return Finding(check="history", level=Level.NOTE, text=kept, next_step=step, facts=facts)
    return Finding(check="history", text=kept, facts=facts)
