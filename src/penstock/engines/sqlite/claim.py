"""What a worker does with jobs of an SQLite store: it joins, settles, claims and reports.

A function with the name of a verb is that verb, and the contract says what it promises. Each is a
step of one write transaction. What may happen to a job is decided in ``core.lifecycle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Hold, Job, Outcome, OutcomeKind, State, Verdict, choose
from penstock.engines.records import PROMOTE_BATCH, Ask, Exchange, WorkerInfo, reasons
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.queues import (
    QueueHead,
    advance_places,
    give_key_back,
    gives_something,
    head_of,
    hold_key,
    is_fair,
    is_ordered,
    key_owner,
    next_in_order,
    place_all,
    promote_due,
    room_in,
)
from penstock.engines.sqlite.reads import cancels_for, check_lease, due_in, find_job
from penstock.engines.sqlite.rows import (
    is_quick_success,
    json_text,
    to_job,
    to_ready,
    to_save,
    to_successes,
)
from penstock.errors import LeaseLost

ENTRIES_KEPT: Final = 10_000
"""What ended otherwise than by a success is never asked for again."""


def join(tx: SqliteTransaction, worker: WorkerInfo) -> None:
    tx.run("join", (worker.id, tx.now, json_text(worker)))
    tasks = frozenset(worker.tasks)
    for id, task, *_ in tx.all("held_for", (Hold.UNKNOWN_TASK,)):
        if task in tasks:
            tx.run("unhold", (id,))


def leave(tx: SqliteTransaction, worker: str) -> None:
    tx.run("leave", (worker,))


def beat(tx: SqliteTransaction, worker: str) -> None:
    if tx.run("beat", (worker,)).rowcount == 0:
        raise LeaseLost(worker)


def exchange(tx: SqliteTransaction, ask: Ask, entries: dict[str, int]) -> Exchange:
    """``entries`` are those of jobs that were claimed before, as far as they are
    known; a job keeps its entry for life. Those of this claim are added.
    """
    check_lease(tx, ask.worker)
    for id, claim in ask.begun:
        tx.run("begin_attempt", (id, claim, ask.worker))
    for each in ask.reports:
        said = (each.fraction, each.note, each.checkpoint)
        tx.run("report", (*said, each.job, each.claim, ask.worker))
    overruled: dict[str, Job] = {}
    verdicts = tuple(_settle_all(tx, ask, overruled, entries))
    promote_due(tx, PROMOTE_BATCH)
    place_all(tx)
    jobs = _claim(tx, ask, entries) if ask.want > 0 else []
    return Exchange(
        jobs=tuple(jobs),
        verdicts=verdicts,
        cancels=tuple(cancels_for(tx, ask)),
        overruled=reasons(overruled, State.CANCELLED),
        abandoned=reasons(overruled, State.FAILED),
        due_in=_due_in(tx, ask),
        now=tx.now,
    )


def idle_exchange(tx: SqliteTransaction, ask: Ask) -> Exchange | None:
    """The answer to a turn that would write nothing; None: it may have to write.

    An idle worker asks again and again: it must not take turns with writers for that.
    """
    check_lease(tx, ask.worker)
    window = {"now": tx.now, "limit": 1}
    if tx.all("expired", (tx.now, 1)) or tx.all("due", window) or tx.all("hold_over", window):
        return None
    if any(each.fair for each in tx.settings.values()) and tx.all("unplaced_queues"):
        return None
    if ask.want > 0 and any(
        room_in(tx, queue) > 0 and gives_something(tx, head_of(tx, ask, queue, 1))
        for queue in ask.queues
    ):
        return None
    return Exchange(cancels=tuple(cancels_for(tx, ask)), due_in=_due_in(tx, ask), now=tx.now)


def _due_in(tx: SqliteTransaction, ask: Ask) -> float | None:
    return due_in(tx, "next_due", [{"queue": queue} for queue in ask.queues])


# --- settle -------------------------------------------------------------------------------------


def _settle_all(
    tx: SqliteTransaction, ask: Ask, overruled: dict[str, Job], entries: dict[str, int]
) -> list[Verdict]:
    """In the order they were given; successes that follow one another in one statement."""
    verdicts: list[Verdict] = []
    for is_quick, group in groupby(ask.outcomes, is_quick_success):
        outcomes = list(group)
        if is_quick and len(outcomes) > 1 and _succeed(tx, outcomes, ask.worker, entries):
            verdicts += [Verdict.DONE] * len(outcomes)
        else:
            verdicts += [_settle(tx, each, ask.worker, overruled) for each in outcomes]
    return verdicts


def _succeed(
    tx: SqliteTransaction, outcomes: Sequence[Outcome], worker: str, entries: dict[str, int]
) -> bool:
    """Settle successes; False: not all are, and each has to be looked at. To those that are, that
    is a repetition.
    """
    done = {"outcomes": to_successes(outcomes, entries), "now": tx.now, "worker": worker}
    return tx.run("succeed_all", done).rowcount == len(outcomes)


def _settle(
    tx: SqliteTransaction, outcome: Outcome, worker: str, overruled: dict[str, Job]
) -> Verdict:
    fence = (outcome.job, outcome.claim, worker)
    if outcome.kind is OutcomeKind.SUCCEEDED:
        quick = tx.run("succeed", (outcome.result, tx.now, *fence))
        if quick.rowcount == 1:
            return Verdict.DONE
    job = find_job(tx, outcome.job)
    if job is None:
        return Verdict.STALE
    if not (job.state is State.RUNNING and (job.id, job.claim, job.worker) == fence):
        is_ended_by_owner = job.state is not State.RUNNING and (
            (job.claim, job.worker) == fence[1:]
        )
        is_signed = tx.one("signed", (job.id,)) == fence[1:]
        if is_ended_by_owner and lifecycle.overruled(outcome, job):
            overruled[job.id] = job
        return Verdict.DONE if is_ended_by_owner or is_signed else Verdict.STALE
    after = lifecycle.settled(job, outcome, tx.now)
    if after.hold is Hold.UNKNOWN_TASK and after.task in tx.known_tasks:
        after = replace(after, hold=None, hold_cause=None, hold_until=None)
    owner = take_or_give_back(tx, after)
    if owner is not None:
        after = lifecycle.superseded(after, owner, tx.now)
    tx.run("save", to_save(after))
    if lifecycle.overruled(outcome, after):
        overruled[job.id] = after
    if not after.state.is_final:
        tx.run("sign", (outcome.claim, worker, job.id))
    return Verdict.DONE


def take_or_give_back(tx: SqliteTransaction, after: Job) -> str | None:
    """See to the unique key of a job's next state; the job that has it instead, if one does."""
    if after.unique is None:
        return None
    if not lifecycle.needs_key(after):
        give_key_back(tx, after.unique, after.id)
        return None
    owner = key_owner(tx, after.unique, after.id)
    if owner is None:
        hold_key(tx, after.unique, after.id)
    return owner


# --- claim --------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A job in line, as far as choosing needs it."""

    entry: int
    priority: int
    at_most_once: bool


def _claim(tx: SqliteTransaction, ask: Ask, entries: dict[str, int]) -> list[Job]:
    rooms = {queue: room_in(tx, queue) for queue in ask.queues}
    heads = [head_of(tx, ask, queue, room) for queue, room in rooms.items() if room > 0]
    taken = [
        (entry, lifecycle.claimed(job, ask.worker, tx.now, starts=position < ask.slots))
        for position, (entry, job) in enumerate(_choose(tx, ask, heads))
    ]
    for started in (True, False):
        marked = [entry for entry, job in taken if job.started is started]
        if marked:
            marks = {"worker": ask.worker, "started": started, "now": tx.now}
            tx.run("claim", {**marks, "entries": json_text(marked)})
    if len(entries) > ENTRIES_KEPT:
        entries.clear()
    entries.update((job.id, entry) for entry, job in taken)
    claimed = [job for _, job in taken]
    for job in claimed:
        if job.unique is not None and job.unique_until == "start":
            give_key_back(tx, job.unique, job.id)
    advance_places(tx, [job for job in claimed if is_fair(tx, job.queue)])
    return claimed


def _choose(tx: SqliteTransaction, ask: Ask, heads: list[QueueHead]) -> list[tuple[int, Job]]:
    """The most urgent jobs and their entries; read whole only when they are really taken."""
    if len(heads) == 1 and not is_ordered(tx, heads[0]["queue"]):
        found = tx.all("head", heads[0])
        entries = {row[1]: row[0] for row in found}
        first = choose([[to_ready(row) for row in found]], ask.want, ask.slots)
        return [(entries[job.id], job) for job in first]
    candidates = [_candidates(tx, head) for head in heads]
    chosen = [candidate.entry for candidate in choose(candidates, ask.want, ask.slots)]
    by_entry = {row[0]: row for row in tx.all("jobs_by_entry", (json_text(chosen),))}
    jobs = [(entry, to_job(by_entry[entry])) for entry in chosen]
    return [(entry, replace(job, revision=job.revision + 1)) for entry, job in jobs]


def _candidates(tx: SqliteTransaction, head: QueueHead) -> list[Candidate]:
    if is_ordered(tx, head["queue"]):
        row = next_in_order(tx, head)
        return [] if row is None else [Candidate(*row)]
    return [Candidate(*row) for row in tx.run("head_of_many", head)]
