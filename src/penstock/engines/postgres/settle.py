"""How a PostgreSQL store settles outcomes that are no plain successes, and writes jobs back.

What may become of a job is decided by ``core.lifecycle``, on rows that are locked first, and is
written for all of them at once; the rest of the exchange follows in the same transaction. A row
that another transaction has locked is skipped, and its outcome is to be sent again (``LATER``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import psycopg
from msgspec.structs import replace
from psycopg import errors

from penstock.clock import SystemClock
from penstock.core import lifecycle
from penstock.core.job import Draft, Hold, Job, Outcome, State, Verdict
from penstock.engines.postgres import reads
from penstock.engines.postgres.connection import Statement, Texts
from penstock.engines.postgres.enqueue import CONTESTED, enqueue_within
from penstock.engines.postgres.errors import NAME
from penstock.engines.postgres.rows import (
    ID,
    SIGNED_BY,
    SIGNED_CLAIM,
    Row,
    can_be,
    json_text,
    to_job,
    to_record,
    to_reports,
)
from penstock.engines.postgres.transaction import Transaction
from penstock.engines.records import Ask, Receipt
from penstock.errors import EngineBusy, LeaseLost

BUDGET: Final = 2.0
"""Seconds for outcomes that are settled one by one; what is left then is sent again. An exchange
that took too long would be repeated from its start, and take as long again."""

Fence = tuple[int, str]
"""Claim and worker."""


class KeyContested(EngineBusy):
    """Whether a unique key is free depends on how another open transaction ends."""


async def settle_and_exchange(
    tx: Transaction,
    ask: Ask,
    rest: tuple[Statement, Texts],
    overruled: dict[str, Job],
    followers: list[Receipt],
    *,
    is_patient: bool,
) -> tuple[list[Verdict], list[Row]]:
    """Settle every outcome; then the ``rest`` of the exchange, which is one call.

    Jobs that ended otherwise than their outcome says are put into ``overruled``, and what became of
    the drafts that were to follow into ``followers``.
    On failure: if ``is_patient``, ``EngineBusy`` when a row was locked for too long; otherwise such
    a row is skipped. ``LeaseLost``.
    """
    overruled.clear()
    followers.clear()
    lock = "lock_patiently" if is_patient else "lock"
    verdicts = await _settle_all(tx, ask, overruled, followers, lock)
    try:
        return verdicts, await tx.run(*rest)
    except errors.LockNotAvailable as error:
        raise EngineBusy(NAME, "a job is locked by another transaction") from error


async def _settle_all(
    tx: Transaction,
    ask: Ask,
    overruled: dict[str, Job],
    followers: list[Receipt],
    lock: str,
) -> list[Verdict]:
    """Judge the outcomes one by one, then write all that changes at once."""
    if not await tx.ask("lock_lease", (ask.worker,)):
        raise LeaseLost(ask.worker)
    begun = [each for each in ask.begun if can_be(each[0])]
    if begun:
        ids, claims = zip(*begun, strict=True)
        await tx.change("begin_attempts", (list(ids), list(claims), ask.worker))
    if ask.reports:
        await tx.ask("report", (ask.worker, to_reports(ask.reports)))
    stored = await _stored(tx, ask, lock)
    verdicts: list[Verdict] = []
    changes: list[Changed] = []
    then: list[Draft] = []
    # One after the other: what one job gives back, the follower of the next may take.
    at_once = any(map(_may_be_contested, ask.outcomes))
    enough = SystemClock.monotonic() + BUDGET
    for outcome in ask.outcomes:
        if SystemClock.monotonic() > enough:
            verdicts.append(Verdict.LATER)
            continue
        known = stored.get(outcome.job)
        if not isinstance(known, Changed):
            verdicts.append(known or Verdict.STALE)
            continue
        follows = followers if at_once else None
        verdict, change = await _settle(tx, outcome, ask.worker, known, follows)
        verdicts.append(verdict)
        if change is not None:
            if not at_once:
                then += lifecycle.followers(outcome, change.after)
            # A second outcome of the same attempt meets what the first one left.
            stored[outcome.job] = change
            changes.append(change)
        after = (change or known).after
        is_ours = (after.claim, after.worker) == (outcome.claim, ask.worker)
        if verdict is Verdict.DONE and is_ours and lifecycle.overruled(outcome, after):
            overruled[outcome.job] = after
    await write_back(tx, changes)
    followers += await enqueue_within(tx, then)
    return verdicts


async def _stored(tx: Transaction, ask: Ask, lock: str) -> dict[str, Changed | Verdict]:
    """The jobs of the outcomes: live and locked now, or ended; ``LATER`` for one that another
    transaction has locked.
    """
    # All that lock many rows do so in one order, so that none waits in a circle.
    ids = sorted({each.job for each in ask.outcomes if can_be(each.job)})
    try:
        rows = await tx.ask(lock, (ids,))
    except errors.LockNotAvailable as error:
        raise EngineBusy(NAME, "a job is locked by another transaction") from error
    missing = sorted(set(ids) - {row[ID] for row in rows})
    if missing:
        rows += await tx.ask("ended", (missing,))
    found: dict[str, Changed | Verdict] = {
        row[ID]: Changed(to_job(row), signed_for(row)) for row in rows
    }
    if len(found) < len(ids):
        live = await tx.ask("is_live", (sorted(set(ids) - set(found)),))
        found.update((id, Verdict.LATER) for (id,) in live)
    return found


async def _settle(
    tx: Transaction,
    outcome: Outcome,
    worker: str,
    stored: Changed,
    followers: list[Receipt] | None,
) -> tuple[Verdict, Changed | None]:
    """Judge one outcome. What follows is stored now, and told to ``followers``; None: later, with
    all others.
    """
    job = stored.after
    fence = (outcome.claim, worker)
    if job.state is not State.RUNNING or (job.claim, job.worker) != fence:
        is_settled = job.state is not State.RUNNING and (job.claim, job.worker) == fence
        return (Verdict.DONE if is_settled or stored.signed == fence else Verdict.STALE), None
    after = lifecycle.settled(job, outcome, tx.now)
    if after.hold is Hold.UNKNOWN_TASK and await _is_known(tx, after.task):
        after = replace(after, hold=None, hold_cause=None, hold_until=None)
    then = lifecycle.followers(outcome, after)
    if then and followers is not None:
        receipts = await end_and_follow(tx, after, then)
        if receipts is None:
            return Verdict.LATER, None
        followers += receipts
        return Verdict.DONE, Changed(after, stored.signed)
    try:
        owner = await take_or_give_back(tx, after)
    except KeyContested:
        return Verdict.LATER, None
    if owner is not None:
        after = lifecycle.superseded(after, owner, tx.now)
    return Verdict.DONE, Changed(after, stored.signed if after.state.is_final else fence)


def _may_be_contested(outcome: Outcome) -> bool:
    """Another open transaction may have what its followers need: an id that a person chose, or a
    unique key.
    """
    return any(each.remember > 0 or each.unique is not None for each in outcome.then)


async def end_and_follow(
    tx: Transaction, after: Job, drafts: Sequence[Draft]
) -> list[Receipt] | None:
    """Let a job that ends give its unique key back, and store the jobs that follow it; None:
    another transaction has what they need just now, and nothing was done.
    """
    await tx.change("savepoint")
    try:
        await take_or_give_back(tx, after)
        receipts = await enqueue_within(tx, drafts)
    except psycopg.Error as error:
        if error.sqlstate not in CONTESTED:
            raise
        await tx.change("undo")
        return None
    await tx.change("keep")
    return receipts


async def _is_known(tx: Transaction, task: str) -> bool:
    """A worker that has a lease knows the task; no other can join before this ends."""
    await tx.ask("lock_tasks")
    return task in await known_tasks(tx)


async def known_tasks(tx: Transaction) -> frozenset[str]:
    """The tasks of all workers that have a lease."""
    return frozenset(task for worker in await reads.workers(tx) for task in worker.tasks)


# --- how a job is written back ------------------------------------------------------------------


class Changed(NamedTuple):
    """A job as it is now, or is to be, and the last claim of it that was settled without ending
    it, with its worker (law 2).
    """

    after: Job
    signed: Fence | None = None


def signed_for(row: Row) -> Fence | None:
    """Of a row, likewise."""
    return None if row[SIGNED_BY] is None else (row[SIGNED_CLAIM], row[SIGNED_BY])


async def write_back(tx: Transaction, changes: Sequence[Changed]) -> None:
    """Write the next states of live jobs, which are locked; those that have ended move to the
    history.
    """
    for statement, is_final in (("save_all", False), ("end_all", True)):
        records = [
            to_record(after, signed)
            for after, signed in changes
            if after.state.is_final is is_final
        ]
        if records:
            await tx.ask(statement, (json_text(records),))
    ready = (after for after, _ in changes if after.state is State.READY and after.hold is None)
    await lower(tx, (job.queue for job in ready))


async def take_or_give_back(tx: Transaction, after: Job) -> str | None:
    """See to the unique key of a job's next state; the job that has it instead, if one does.

    On failure: ``KeyContested``; the transaction is as it was before.
    """
    key = after.unique_key
    if key is None:
        return None
    if lifecycle.needs_key(after):
        return await take_key(tx, key, after.id)
    await give_back(tx, [(key, after.id)])
    return None


async def take_key(tx: Transaction, key: str, owner: str) -> str | None:
    """Give a free key back to a job that had it before; its window goes on. Returns the job that
    has it instead, if one does.

    On failure: ``KeyContested``; the transaction is as it was before.
    """
    ((other, is_contested),) = await tx.ask("keep_key", (key, owner, tx.now))
    if is_contested:
        raise KeyContested(NAME, f"an open transaction has the unique key {key!r}")
    return None if other is None else str(other)


async def give_back(tx: Transaction, owned: Sequence[tuple[str, str]]) -> None:
    """Jobs need their unique keys no longer: pairs of key and job."""
    if owned:
        keys, owners = zip(*owned, strict=True)
        await tx.ask("give_back", (list(keys), list(owners), tx.now))


async def lower(tx: Transaction, queues: Iterable[str]) -> None:
    """Tell claimers of these queues that a job is ready with an old ticket."""
    names = sorted(set(queues))
    if names:
        await tx.change("lower", (names,))
