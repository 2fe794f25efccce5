"""How outcomes that are no plain successes are settled in a PostgreSQL store, one by one.

What may become of a job is decided by ``core.lifecycle``, on rows that are locked first; the rest
of the exchange follows in the same transaction. A row that another transaction has locked is
skipped, and its outcome is to be sent again (``LATER``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace
from psycopg import errors

from penstock.clock import SystemClock
from penstock.core import lifecycle
from penstock.core.job import Hold, Job, Outcome, State, Verdict
from penstock.engines.postgres import reads
from penstock.engines.postgres.connection import Statement, Texts
from penstock.engines.postgres.errors import NAME
from penstock.engines.postgres.rows import Row, can_be, json_text, to_job, to_record
from penstock.engines.postgres.transaction import Transaction
from penstock.engines.records import Ask, Report
from penstock.errors import EngineBusy, LeaseLost

BUDGET: Final = 2.0
"""Seconds for outcomes that are settled one by one; what is left then is sent again. An exchange
that took too long would be repeated from its start, and take as long again."""

_Fence = tuple[int, str]
"""Attempt and worker."""


class KeyContested(EngineBusy):
    """Whether a unique key is free depends on how another open transaction ends."""


async def settle_and_exchange(
    tx: Transaction,
    ask: Ask,
    rest: tuple[Statement, Texts],
    overruled: dict[str, Job],
    *,
    is_patient: bool,
) -> tuple[list[Verdict], list[Row]]:
    """Settle every outcome, one by one; then the ``rest`` of the exchange, which is one call.

    Jobs that ended otherwise than their outcome says are put into ``overruled``.
    On failure: if ``is_patient``, ``EngineBusy`` when a row was locked for too long; otherwise such
    a row is skipped. ``LeaseLost``.
    """
    overruled.clear()
    verdicts = await _settle_all(tx, ask, overruled, "lock_patiently" if is_patient else "lock")
    try:
        return verdicts, await tx.run(*rest)
    except errors.LockNotAvailable as error:
        raise EngineBusy(NAME, "a job is locked by another transaction") from error


async def _settle_all(
    tx: Transaction, ask: Ask, overruled: dict[str, Job], lock: str
) -> list[Verdict]:
    if not await tx.ask("lock_lease", (ask.worker,)):
        raise LeaseLost(ask.worker)
    # All that lock many rows do so in one order, so that none waits in a circle.
    ids = sorted({each.job for each in ask.outcomes if can_be(each.job)})
    for id, attempt in ask.begun:
        if can_be(id):
            await tx.change("begin_attempt", (id, attempt, ask.worker))
    try:
        locked = {row[19]: row for row in await tx.ask(lock, (ids,))}
    except errors.LockNotAvailable as error:
        raise EngineBusy(NAME, "a job is locked by another transaction") from error
    verdicts: list[Verdict] = []
    enough = SystemClock.monotonic() + BUDGET
    for outcome in ask.outcomes:
        if SystemClock.monotonic() > enough:
            return [*verdicts, *[Verdict.LATER] * (len(ask.outcomes) - len(verdicts))]
        row = locked.get(outcome.job)
        if row is None:
            verdicts.append(await _repeated(tx, outcome, ask.worker, overruled))
            continue
        verdict, is_changed = await _settle(tx, outcome, ask.worker, row, overruled)
        verdicts.append(verdict)
        if is_changed:
            # A second outcome of the same attempt meets what the first one left.
            del locked[outcome.job]
            again = await tx.ask("lock", ([outcome.job],))
            locked.update((row[19], row) for row in again)
    return verdicts


async def _settle(
    tx: Transaction, outcome: Outcome, worker: str, row: Row, overruled: dict[str, Job]
) -> tuple[Verdict, bool]:
    job = to_job(row)
    fence = (outcome.attempt, worker)
    if job.state is not State.RUNNING or (job.attempt, job.worker) != fence:
        is_settled = job.state is not State.RUNNING and (job.attempt, job.worker) == fence
        return (Verdict.DONE if is_settled or _signed(row) == fence else Verdict.STALE), False
    after = lifecycle.settled(job, outcome, tx.now)
    if after.hold is Hold.UNKNOWN_TASK and await _is_known(tx, after.task):
        after = replace(after, hold=None, hold_cause=None, hold_until=None)
    try:
        after = await wait_or_end(tx, job, after, fence)
    except KeyContested:
        return Verdict.LATER, False
    if lifecycle.overruled(outcome, after):
        overruled[job.id] = after
    return Verdict.DONE, True


async def _repeated(
    tx: Transaction, outcome: Outcome, worker: str, overruled: dict[str, Job]
) -> Verdict:
    """The verdict on an outcome whose job is not live, or locked by another transaction."""
    if not can_be(outcome.job):
        return Verdict.STALE
    ended = await tx.ask("ended", (outcome.job,))
    if not ended:
        return Verdict.LATER if await tx.ask("is_live", (outcome.job,)) else Verdict.STALE
    job, fence = to_job(ended[0]), (outcome.attempt, worker)
    if (job.attempt, job.worker) == fence:
        if lifecycle.overruled(outcome, job):
            overruled[job.id] = job
        return Verdict.DONE
    return Verdict.DONE if _signed(ended[0]) == fence else Verdict.STALE


def _signed(row: Row) -> _Fence:
    """The last attempt of a job that was settled without ending it, and by which worker (law 2)."""
    return row[16], row[32]


async def _is_known(tx: Transaction, task: str) -> bool:
    """A worker that has a lease knows the task; no other can join before this ends."""
    await tx.ask("lock_tasks")
    return task in await known_tasks(tx)


async def known_tasks(tx: Transaction) -> frozenset[str]:
    """The tasks of all workers that have a lease."""
    return frozenset(task for worker in await reads.workers(tx) for task in worker.tasks)


async def progress(tx: Transaction, worker: str, reports: Sequence[Report]) -> list[Verdict]:
    """See the contract."""
    if not await tx.ask("worker", {"worker": worker}):
        return [Verdict.STALE] * len(reports)
    verdicts = []
    for report in reports:
        values = (report.fraction, report.note, report.job, report.attempt, worker)
        is_done = can_be(report.job) and await tx.change("report", values)
        verdicts.append(Verdict.DONE if is_done else Verdict.STALE)
    return verdicts


# --- how a job is written back ------------------------------------------------------------------


async def save(tx: Transaction, job: Job, signed: _Fence | None = None) -> None:
    """Write a live job's next state; one that has ended moves to the history."""
    record: dict[str, Any] = to_record(job)
    if signed is not None:
        record["signed_attempt"], record["signed_by"] = signed
    name = "end" if job.state.is_final else "save"
    await tx.change(name, {"job": json_text(record), "id": job.id})
    if job.state is State.READY and job.hold is None:
        await lower(tx, [job.queue])


async def wait_or_end(tx: Transaction, job: Job, after: Job, signed: _Fence | None) -> Job:
    """Store a running job's next state, with the unique key it needs or gives back."""
    if job.unique is not None and not after.state.is_final:
        owner = await take_key(tx, job.unique, job.id)
        if owner is not None:
            after = lifecycle.superseded(replace(after, state=State.RUNNING), owner, tx.now)
    if job.unique is not None and after.state.is_final:
        await give_back(tx, [(job.unique, job.id)])
    await save(tx, after, None if after.state.is_final else signed)
    return after


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
    await tx.change("lower", (list(queues),))
