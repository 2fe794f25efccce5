"""Checks of the workers: whether they live, who leads, what they serve, how they agree."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.finding import Fact, Finding, Level
from penstock.core.job import State
from penstock.doctor.snapshot import StoreSnapshot
from penstock.explain.reasons import listed, near, number, span

START = "start a worker: penstock worker MODULE:APP"


def checks(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Everything about workers."""
    yield _workers(snapshot)
    yield from _silent(snapshot)
    yield from _orphans(snapshot)
    yield from _leader(snapshot)
    yield from _unserved(snapshot)
    yield from _leases(snapshot)


def _workers(snapshot: StoreSnapshot) -> Finding:
    waiting = snapshot.total(State.READY, State.SCHEDULED).total()
    facts = {"workers": len(snapshot.workers), "waiting": waiting}
    if snapshot.workers:
        slots = number(sum(worker.slots for worker in snapshot.workers), "slot")
        have = number(len(snapshot.workers), "worker has", "workers have")
        return Finding(check="workers", text=f"{have} a lease, with {slots}", facts=facts)
    if waiting == 0:
        text = "no worker is running, and no job is waiting"
        return Finding(check="workers", level=Level.NOTE, text=text, facts=facts)
    text = f"no worker is running, and {number(waiting, 'job is', 'jobs are')} waiting"
    return Finding(check="workers", level=Level.ERROR, text=text, next_step=START, facts=facts)


def _silent(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Leases of workers that may be dead: their jobs are stuck until that is proven."""
    if not snapshot.workers or not snapshot.watched:
        return
    silent = snapshot.silent
    if not silent:
        text = f"every worker sent a heartbeat within {span(snapshot.watched)}"
        yield Finding(check="leases", text=text)
        return
    ids = {worker.id for worker in silent}
    jobs = sum(hand.jobs for hand in snapshot.after.running if hand.worker in ids)
    text = f"no heartbeat for {span(snapshot.watched)} from {listed(ids)}"
    if jobs:
        text += f", with {number(jobs, 'running job')}"
    facts = {"workers": len(silent), "jobs": jobs}
    if snapshot.after.leader is None or snapshot.after.leader.holder in ids:
        step = f"no live worker is the leader, so their jobs are not rescued; {START}"
        yield Finding(check="leases", level=Level.ERROR, text=text, next_step=step, facts=facts)
        return
    lease = max(worker.lease or snapshot.expected.lease for worker in silent)
    step = (
        f"after {span(lease)} without one, the leader gives their jobs to other workers; check "
        "whether these processes are dead, stopped or disconnected from the store"
    )
    yield Finding(check="leases", level=Level.WARNING, text=text, next_step=step, facts=facts)


def _orphans(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Running jobs of workers without a lease, if the leader left them there all the while."""
    leased = set(snapshot.after.beats)
    seen = {hand.first for hand in snapshot.before.running}
    orphans = [
        hand for hand in snapshot.after.running if hand.worker not in leased and hand.first in seen
    ]
    if not orphans:
        return
    jobs = sum(hand.jobs for hand in orphans)
    owners = listed(hand.worker for hand in orphans)
    belong = number(jobs, "running job belongs", "running jobs belong")
    text = f"{belong} to workers without a lease: {owners}"
    step = f"there is no leader to rescue them; {START}"
    if snapshot.after.leader is not None:
        step = (
            f"the leader ({snapshot.after.leader.holder}) should rescue them: restart that worker"
        )
    yield Finding(
        check="orphans",
        level=Level.ERROR,
        text=text,
        next_step=step,
        facts={"jobs": jobs, "first": orphans[0].first},
    )


def _leader(snapshot: StoreSnapshot) -> Iterator[Finding]:
    term = snapshot.after.leader
    if term is None:
        if snapshot.workers:
            text = "there is no leader: jobs of dead workers are not rescued, and nothing is pruned"
            step = f"{START} (without --no-leads); the workers that have a lease may be dead"
            yield Finding(check="leader", level=Level.ERROR, text=text, next_step=step)
        return
    facts: dict[str, Fact] = {"leader": term.holder, "epoch": term.epoch, "left": term.left}
    if term.holder in snapshot.after.beats:
        yield Finding(check="leader", text=f"the leader is {term.holder}", facts=facts)
        return
    text = f"the leader {term.holder} has no lease; its term ends in {span(term.left)}"
    step = "if this persists, restart that worker"
    yield Finding(check="leader", level=Level.NOTE, text=text, next_step=step, facts=facts)


def _unserved(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Queues with jobs that no worker serves. If there is none at all, that was said."""
    if not snapshot.workers:
        return
    served = {queue for worker in snapshot.workers for queue in worker.queues}
    for queue, jobs in sorted(snapshot.total(State.READY, State.SCHEDULED).items()):
        if queue not in served:
            meant = near(queue, sorted(served))
            hint = f"; or did you mean queue {meant!r}?" if meant else ""
            yield Finding(
                check="unserved",
                level=Level.WARNING,
                text=f"no worker serves queue {queue!r}, where {_wait(jobs)}",
                next_step=f"{START} --queues {queue}{hint}",
                facts={"queue": queue, "jobs": jobs},
            )


def _leases(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """The leader measures all workers by its own lease: they have to agree."""
    leases = {worker.id: worker.lease for worker in snapshot.workers if worker.lease}
    found = sorted({*leases.values()})
    if len(found) > 1:
        told = "; ".join(
            f"{span(lease)}: {listed(id for id in leases if leases[id] == lease)}"
            for lease in found
        )
        yield Finding(
            check="settings",
            level=Level.WARNING,
            text=f"workers have different leases: {told}",
            next_step="give all workers the same lease: the leader judges them by its own",
        )
    elif snapshot.expected.tasks and found and found != [snapshot.expected.lease]:
        yield Finding(
            check="settings",
            level=Level.WARNING,
            text=f"workers have a lease of {span(found[0])}, and this application "
            f"{span(snapshot.expected.lease)}",
            next_step="restart the workers with the settings of this application, or run this "
            "command with theirs",
        )


def _wait(jobs: int) -> str:
    return number(jobs, "job waits", "jobs wait")
