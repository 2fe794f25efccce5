"""What a worker does with jobs of an SQLite store: it joins, settles, claims and reports.

A function with the name of a verb is that verb, and the contract says what it promises. Each is a
step of one write transaction. What may happen to a job is decided in ``core.lifecycle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Hold, Job, Outcome, OutcomeKind, State, Verdict, choose
from penstock.engines.records import Ask, Exchange, WorkerInfo, reasons
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.key_line_batches import go_on, is_moving
from penstock.engines.sqlite.key_lines import has_notes, move_on, note_ends, read_notes, shares
from penstock.engines.sqlite.queues import (
    candidates,
    give_key_back,
    head_of,
    hold_key,
    is_ordered,
    key_owner,
    promote_due,
    room_in,
    save,
)
from penstock.engines.sqlite.reads import cancels_for, check_lease, due_in, find_job
from penstock.engines.sqlite.rows import (
    QueueHead,
    is_quick_success,
    json_text,
    to_ready,
    to_successes,
)
from penstock.errors import LeaseLost

ENTRIES_KEPT: Final = 10_000
"""What ended otherwise than by a success is never asked for again."""


def join(tx: SqliteTransaction, worker: WorkerInfo) -> None:
    tx.run("join", (worker.id, tx.now, json_text(worker)))


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
    promote_due(tx, ask.promote)
    jobs = _claim(tx, ask, entries) if ask.want > 0 else []
    return Exchange(
        jobs=tuple(jobs),
        verdicts=verdicts,
        cancels=tuple(cancels_for(tx, ask)),
        overruled=reasons(overruled, State.CANCELLED),
        abandoned=reasons(overruled, State.FAILED),
        due_in=_due_in(tx, ask),
        is_keyed=_is_keyed(tx, ask),
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
    if ask.want > 0 and any(
        _has_lines_to_see(tx, queue)
        or (room_in(tx, queue) > 0 and candidates(tx, head_of(ask, queue, 1, tx.now)))
        for queue in ask.queues
    ):
        return None
    return Exchange(
        cancels=tuple(cancels_for(tx, ask)),
        due_in=_due_in(tx, ask),
        is_keyed=_is_keyed(tx, ask),
        now=tx.now,
    )


def _is_keyed(tx: SqliteTransaction, ask: Ask) -> bool:
    return ask.want > 0 and any(shares(tx, queue) for queue in ask.queues)


def _due_in(tx: SqliteTransaction, ask: Ask) -> float | None:
    """When to come back: at once, if a claim has not seen to all key lines yet."""
    if ask.want > 0 and any(_has_lines_to_see(tx, queue) for queue in ask.queues):
        return 0.0
    return due_in(tx, "next_due", [{"queue": queue} for queue in ask.queues])


def _has_lines_to_see(tx: SqliteTransaction, queue: str) -> bool:
    is_keyed = shares(tx, queue) is not None
    return is_keyed and (has_notes(tx, queue) or is_moving(tx, queue))


# --- settle -------------------------------------------------------------------------------------


def _settle_all(
    tx: SqliteTransaction, ask: Ask, overruled: dict[str, Job], entries: dict[str, int]
) -> list[Verdict]:
    """In the order they were given; successes that follow one another in one statement."""
    verdicts: list[Verdict] = []
    note_ends(tx, [outcome.job for outcome in ask.outcomes])
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
    save(tx, job, after)
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


def _claim(tx: SqliteTransaction, ask: Ask, entries: dict[str, int]) -> list[Job]:
    keyed = [queue for queue in dict.fromkeys(ask.queues) if shares(tx, queue) is not None]
    for queue in keyed:
        go_on(tx, queue)
        read_notes(tx, queue)
    claimed = _take(tx, ask, entries)
    move_on(tx, claimed)
    for queue in keyed:
        read_notes(tx, queue)
    return claimed


def _take(tx: SqliteTransaction, ask: Ask, entries: dict[str, int]) -> list[Job]:
    """Choose and mark jobs."""
    rooms = {queue: room_in(tx, queue) for queue in ask.queues}
    heads = [head_of(ask, queue, room, tx.now) for queue, room in rooms.items() if room > 0]
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
    return claimed


def _choose(tx: SqliteTransaction, ask: Ask, heads: list[QueueHead]) -> list[tuple[int, Job]]:
    """The most urgent jobs and their entries; read whole only when they are really taken."""
    if len(heads) == 1 and _is_plain(tx, heads[0]["queue"]):
        found = tx.all("head", heads[0])
        entries = {row[1]: row[0] for row in found}
        first = choose([[to_ready(row) for row in found]], ask.want, ask.slots)
        return [(entries[job.id], job) for job in first]
    lines = [candidates(tx, head) for head in heads]
    chosen = [candidate.entry for candidate in choose(lines, ask.want, ask.slots)]
    rows = {row[0]: row for row in tx.all("chosen", (json_text(chosen),))}
    return [(entry, to_ready(rows[entry])) for entry in chosen]


def _is_plain(tx: SqliteTransaction, queue: str) -> bool:
    """Its jobs start in the order of their tickets."""
    return not is_ordered(tx, queue) and shares(tx, queue) is None
