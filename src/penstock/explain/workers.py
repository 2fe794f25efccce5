"""Reasons that lie with the workers: none is there, knows the task, has room, or is alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock.engines.records import WorkerInfo
from penstock.explain.reasons import Code, JobSnapshot, Reason, argument, listed, near, number, span
from penstock.worker.reserve import free_for

USUAL_LEASE: Final = 15.0
"""Seconds, for a worker that does not say its lease."""

_OPTIONS: Final = {"async": "--concurrency", "sync": "--threads", "process": "--children"}


def reasons(snapshot: JobSnapshot) -> list[Reason]:
    """Why no worker takes the job."""
    queue = snapshot.job.queue
    start = (
        f"start a worker: penstock worker MODULE:APP --queues {argument(queue).removeprefix('-- ')}"
    )
    if not snapshot.workers:
        text = "no worker is running: none has a lease"
        return [Reason(code=Code.NO_WORKER, text=text, next_step=start)]
    if not snapshot.serving:
        served = {each for worker in snapshot.workers for each in worker.queues}
        there = number(len(snapshot.workers), "worker serves", "workers serve")
        text = f"no worker serves queue {queue!r}: {there} {listed(served) or 'no queue'}"
        meant = near(queue, sorted(served))
        hint = f"; or did you mean queue {meant!r}?" if meant else ""
        return [Reason(code=Code.NOT_SERVED, text=text, next_step=start + hint)]
    if not snapshot.able:
        known = {each for worker in snapshot.serving for each in worker.tasks}
        return [unknown(snapshot, known)]
    return []


def busy(snapshot: JobSnapshot) -> list[Reason]:
    """Why none of the workers that could run it starts it now."""
    if (
        not snapshot.able
        or snapshot.job.crashes
        or any(_has_room(snapshot, worker) for worker in snapshot.able)
    ):
        return []
    return [_busy(snapshot)]


def unknown(snapshot: JobSnapshot, known: set[str]) -> Reason:
    """None of those that serve its queue knows its task."""
    task = snapshot.job.task
    served = f"none of {number(len(snapshot.serving), 'worker')} that serve its queue"
    if len(snapshot.serving) == 1:
        served = f"worker {snapshot.serving[0].id}, the only one that serves its queue, does not"
    verb = "have" if len(snapshot.serving) == 1 else "has"
    what = f"task {task!r}" if known else f"any task, so not {task!r}"
    meant = near(task, sorted(known))
    if meant is not None:
        step = f"did you mean {meant!r}? if not, start a worker whose code declares {task!r}"
    else:
        step = f"start a worker that imports {_module(task)}"
    return Reason(code=Code.NOT_KNOWN, text=f"{served} {verb} {what}", next_step=step)


def _module(task: str) -> str:
    """The module that declares a task, as far as its name tells, and how to have it imported."""
    module = task.rpartition(".")[0]
    if not module:
        return "the module that declares it: penstock worker MODULE:APP --import MODULE"
    return (
        f'{module}, which declares it: Penstock(imports=["{module}"]), '
        f"or penstock worker MODULE:APP --import {argument(module)}"
    )


def _fills_queue(snapshot: JobSnapshot, worker: WorkerInfo) -> bool:
    """It runs as many jobs of this queue as it was told to."""
    most = worker.queue_slots.get(snapshot.job.queue)
    here = [hand for hand in snapshot.running if hand.worker == worker.id]
    return most is not None and most <= sum(
        hand.jobs for hand in here if hand.queue == snapshot.job.queue
    )


def _has_room(snapshot: JobSnapshot, worker: WorkerInfo) -> bool:
    if _fills_queue(snapshot, worker):
        return False
    kind = worker.kinds.get(snapshot.job.task)
    has = [hand for hand in snapshot.running if hand.worker == worker.id]
    if kind is None or kind not in worker.rooms:
        return worker.slots <= 0 or sum(hand.jobs for hand in has) < worker.slots
    there = [
        hand.priority
        for hand in has
        for _ in range(hand.jobs)
        if worker.kinds.get(hand.task) == kind
    ]
    return free_for(snapshot.job.priority, worker.rooms[kind], worker.reserve, there) > 0


def _busy(snapshot: JobSnapshot) -> Reason:
    if all(_fills_queue(snapshot, worker) for worker in snapshot.able):
        queue = snapshot.job.queue
        most = sum(worker.queue_slots[queue] for worker in snapshot.able)
        has = number(
            len(snapshot.able), "worker that could run it runs", "workers that could run it run"
        )
        text = f"the {has} {most:,} of {most:,} jobs of queue {queue!r} that --queues allows"
        step = "it starts when one ends; start another worker, or raise the slots in --queues"
        return Reason(code=Code.BUSY, text=text, next_step=step)
    able = {worker.id: worker for worker in snapshot.able}
    kind = snapshot.able[0].kinds.get(snapshot.job.task)
    taken = Counter[str]()
    for hand in snapshot.running:
        worker = able.get(hand.worker)
        if worker is not None and (kind is None or worker.kinds.get(hand.task) == kind):
            taken[hand.task] += hand.jobs
    slots = sum(worker.rooms.get(kind or "", worker.slots) for worker in able.values())
    of_kind = f"{kind} " if kind else ""
    by = ", ".join(f"{task} {jobs:,}" for task, jobs in taken.most_common(3))
    text = (
        f"no {of_kind}slot is free on the {number(len(able), 'worker')} that could run it: "
        f"{taken.total():,} of {slots:,} are taken ({by})"
    )
    if taken.total() < slots and any(worker.reserve for worker in able.values()):
        text += "; the others are reserved for more urgent jobs"
    option = _OPTIONS.get(kind or "", "slots")
    step = f"it starts when one of them ends; start another worker, or raise {option}"
    return Reason(code=Code.BUSY, text=text, next_step=step)


def silence(snapshot: JobSnapshot, workers: Sequence[WorkerInfo]) -> Reason:
    """All that could run it, or the one that does, gave no sign of life while they were watched."""
    watched = min((snapshot.silent or {}).values())
    lease = max(worker.lease or USUAL_LEASE for worker in workers)
    names = listed(worker.id for worker in workers)
    text = f"no heartbeat from {names} for {span(watched)}: stopped, dead or disconnected"
    if snapshot.leader is None or snapshot.leader.holder in (snapshot.silent or {}):
        step = "no live worker is the leader, so their jobs are not rescued; start a worker"
    else:
        step = f"after a lease ({span(lease)}) the leader gives their jobs to other workers"
    return Reason(code=Code.SILENT, text=text, next_step=step)


def no_leader(snapshot: JobSnapshot) -> Reason:
    """No worker does the chores of the leader."""
    there = number(len(snapshot.workers), "worker has a lease", "workers have a lease")
    text = f"there is no leader: {there} and may be dead"
    if not snapshot.workers:
        text = "there is no leader: no jobs are rescued, and scheduled jobs are not made ready"
    step = (
        "start a worker (without --no-leads); penstock doctor checks which of the others are alive"
    )
    return Reason(code=Code.NO_LEADER, text=text, next_step=step)
