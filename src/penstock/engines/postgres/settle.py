"""The steps of the PostgreSQL engine that a worker takes, apart from the turn that is one call.

A turn whose outcomes are all plain successes is ``penstock.exchange`` and nothing else: one round
trip. Whatever else an attempt ended as is decided by ``core.life``, on rows that are locked first,
and the rest of the turn follows in the same transaction. A row that somebody else has locked is
skipped, and its outcome is to be sent again (``LATER``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import msgspec
import psycopg
from msgspec.structs import replace
from psycopg import errors

from penstock.clock import SystemClock
from penstock.core import lifecycle
from penstock.core.job import (
    RUNNING,
    SUCCEEDED,
    ErrorRecord,
    Hold,
    Job,
    Outcome,
    State,
    Verdict,
)
from penstock.engines.postgres.bounds import Ranges
from penstock.engines.postgres.connection import Values
from penstock.engines.postgres.enqueue import BETWEEN, is_list
from penstock.engines.postgres.reads import PostgresViews
from penstock.engines.postgres.rows import Row, can_be, json_text, to_job, to_record
from penstock.engines.postgres.transaction import Turn
from penstock.engines.records import ANY_PRIORITY, Ask, Report, WorkerInfo
from penstock.engines.sql_files import statements
from penstock.errors import EngineBusy, LeaseLost

# --- steps --------------------------------------------------------------------------------------
#
# What the steps of the PostgreSQL engine share, inside one write transaction.


class KeyContested(EngineBusy):
    """Whether a key is free depends on how somebody else's transaction ends."""


class PostgresSteps(PostgresViews):
    """One store inside a write transaction; what it changes, it has locked."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self.now = turn.now
        self._change_rows = turn.change
        self._steps = statements("postgres/steps.sql")

    async def _ask(self, name: str, values: Values = ()) -> list[Row]:
        return await self.turn.rows(self._steps[name], values)

    async def _change(self, name: str, values: Values = ()) -> int:
        return await self._change_rows(self._steps[name], values)

    async def _lower(self) -> None:
        """Tell claimers that a job is ready with an old ticket."""
        await self._ask("lower")

    async def _ticket(self) -> int:
        ((ticket,),) = await self._ask("ticket")
        return int(ticket)

    async def _has_lease(self, worker: str) -> bool:
        return bool(await self._ask("has_lease", (worker,)))

    async def _lock_lease(self, worker: str) -> bool:
        return bool(await self._ask("lock_lease", (worker,)))

    async def _known_tasks(self) -> frozenset[str]:
        """The tasks of all workers that have a lease."""
        return frozenset(task for worker in await self.workers() for task in worker.tasks)

    # --- how a job is written back -------------------------------------------------------------

    async def _save(self, job: Job, signed: tuple[int, str] | None = None) -> None:
        """Write a live job's next state; one that has ended moves to the history."""
        record: dict[str, Any] = to_record(job)
        if signed is not None:
            record["signed_attempt"], record["signed_by"] = signed
        name = "end" if job.state.is_final else "save"
        await self._change(name, {"job": json_text(record), "id": job.id})
        if job.state is State.READY and job.hold is None:
            await self._lower()

    async def _wait_or_end(self, job: Job, after: Job, signed: tuple[int, str] | None) -> Job:
        """Store a running job's next state, with the unique key it needs or gives back."""
        if job.unique is not None and not after.state.is_final:
            owner = await self._take_key(job.unique, job.id)
            if owner is not None:
                after = lifecycle.superseded(replace(after, state=State.RUNNING), owner, self.now)
        if job.unique is not None and after.state.is_final:
            await self._give_back(job.unique, job.id)
        await self._save(after, None if after.state.is_final else signed)
        return after

    async def _take_key(self, key: str, owner: str) -> str | None:
        """Give a free key back to a job that had it before; its window goes on.

        On failure: ``KeyContested``; the transaction is as it was before.
        """
        ((other, is_contested),) = await self._ask("keep_key", (key, owner, self.now))
        if is_contested:
            raise KeyContested("postgresql", f"an open transaction has the unique key {key!r}")
        return None if other is None else str(other)

    async def _give_back(self, key: str, owner: str) -> None:
        await self._ask("give_back", ([key], [owner], self.now))


# --- work ---------------------------------------------------------------------------------------


EXCHANGE: Final = (
    "SELECT * FROM penstock.exchange(%s, %s, %s, %s, %s, %s, %s, %s::text[], %s, %s, %s::text[],"
    " %s, %s::bigint[], %s::bigint[], %s::double precision[], %s::bigint[], %s::bigint[],"
    " %s, %s)"
)
_numbers = count(1)
EXCHANGE_TEXTS: Final = re.sub("%s", lambda _: f"${next(_numbers)}", EXCHANGE)
"""The same, as it is prepared."""
_LARGE: Final = 2000
"""Characters of a result that goes with the others in one text."""

BUDGET: Final = 2.0
"""Seconds for outcomes that are looked at one by one; what is left then goes again. A turn that
took too long would be repeated from its start, and take as long again.
"""

Done = tuple[str | None, str | None, str | None, str | None]
"""Successes as ``penstock.exchange`` takes them: places, ids, attempts, results."""
NOTHING: Final[Done] = (None, None, None, None)


class Header(msgspec.Struct, frozen=True):
    """What a turn says beside the jobs it gives."""

    now: float
    unsettled: int = 0
    """Outcomes that have to be looked at one by one; nothing was claimed then."""
    due: float | None = None
    cancels: list[str] | None = None
    passed: bool = False
    """A job that runs at most once stays in line before some that were given."""
    contended: bool = False
    fair: bool = False
    lowered: int = 0
    took: float | None = None
    """Seconds that the last look at the lines took."""
    wide: bool | None = False
    """It began at their start, though it need not have."""


class _Rest(msgspec.Struct, frozen=True, array_like=True):
    """What few jobs have, in the order of ``penstock.exchange``."""

    place: float
    run_at: float | None
    expires_at: float | None
    failures: int
    crashes: int
    rescues: int
    key: str | None
    unique: str | None
    unique_until: Any
    at_most_once: bool
    name: str | None
    tags: tuple[str, ...]
    correlation_id: str | None
    reason: str | None
    errors: tuple[ErrorRecord, ...]


_header = msgspec.json.Decoder(Header)
_rest = msgspec.json.Decoder(_Rest)


def can_be_told(ask: Ask) -> bool:
    """What has begun can be told to ``penstock.exchange``."""
    return not any(BETWEEN in id for id, _ in ask.begun)


def to_done(outcomes: Sequence[Outcome], places: dict[str, str]) -> Done | None:
    """The first parameters of ``penstock.exchange``: successes whose results are plain texts; None:
    there is something else among the outcomes.

    ``places`` are those of the rows of jobs that were claimed before, as far as they are known;
    each is of use once.
    """
    if not outcomes:
        return NOTHING
    if any(each.kind is not SUCCEEDED for each in outcomes):
        return None
    jobs = [each.job for each in outcomes]
    ids = BETWEEN.join(jobs)
    given = [each.result for each in outcomes]
    some = [result for result in given if result is not None]
    try:
        results = b"\x1f".join([result or b"" for result in given]).decode()
    except UnicodeDecodeError:
        return None
    if not (
        is_list(ids, len(outcomes))
        and is_list(results, len(outcomes))
        and all(some)
        and all(jobs)
        and max(map(len, some), default=0) <= _LARGE
    ):
        return None
    tids = BETWEEN.join([places.pop(job, "(0,0)") for job in jobs])
    return tids, ids, ",".join([str(each.attempt) for each in outcomes]), results


def to_exchange(ask: Ask, done: Done, ranges: Ranges | None) -> Row:
    """The parameters of ``penstock.exchange``."""
    begun: tuple[str | None, ...] = (None, None)
    known = [each for each in ask.begun if can_be(each[0]) and BETWEEN not in each[0]]
    if known:
        begun = BETWEEN.join(id for id, _ in known), ",".join(str(attempt) for _, attempt in known)
    queues = [queue for queue in ask.queues if can_be(queue)]
    return (
        ask.worker,
        *done,
        *begun,
        queues,
        ask.want if ranges else 0,
        ask.slots,
        [task for task in ask.avoid if can_be(task)],
        ANY_PRIORITY if ask.least_urgent is None else ask.least_urgent,
        *(ranges.arrays if ranges else ("{}",) * 5),
        ranges.lowered if ranges else 0,
        ranges.sweeps if ranges else False,
    )


def to_texts(values: Row) -> list[bytes | None]:
    """The same as texts.

    On failure: ``DataError``, as the driver says it, if something is no text that can be stored.
    """
    try:
        texts = [None if value is None else _to_text(value).encode() for value in values]
    except UnicodeEncodeError as error:
        raise psycopg.DataError(str(error)) from error
    if any(b"\0" in text for text in texts if text is not None):
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return texts


def _to_text(value: object) -> str:
    """A truth, a number or a text as it is; a list of words as an array."""
    return "{" + ",".join(map(_quoted, value)) + "}" if isinstance(value, list) else str(value)


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def to_claimed(
    rows: Sequence[Row], worker: str, places: dict[str, str]
) -> tuple[Header, list[Job]]:
    """Read what ``penstock.exchange`` returns; the rows' places are added."""
    header = _header.decode(rows[-1][12])
    now, jobs = header.now, []
    for row in rows[:-1]:
        _, place, id, task, payload, queue, priority, at, by, seq, attempt, started, rest = row
        places[id] = place
        job = Job(
            id=id,
            task=task,
            payload=payload,
            queue=queue,
            priority=priority,
            state=RUNNING,
            enqueued_at=at,
            enqueued_by=by,
            seq=seq,
            attempt=attempt,
            started=started,
            worker=worker,
            claimed_at=now,
        )
        jobs.append(job if rest is None else _completed(job, _rest.decode(rest)))
    return header, jobs


def _completed(job: Job, rest: _Rest) -> Job:
    return replace(job, **{name: getattr(rest, name) for name in _Rest.__struct_fields__})


class PostgresWork(PostgresSteps):
    """What a worker does with jobs, inside one transaction."""

    async def join(self, worker: WorkerInfo) -> None:
        """See the contract."""
        await self._ask("lock_tasks")
        await self._ask("join", (worker.id, self.now, json_text(worker)))
        if await self._change("unhold_known", (Hold.UNKNOWN_TASK.value, list(worker.tasks))):
            await self._lower()

    async def leave(self, worker: str) -> None:
        """See the contract."""
        await self._change("leave", (worker,))

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        """See the contract."""
        if not await self._has_lease(worker):
            return [Verdict.STALE] * len(reports)
        verdicts = []
        for report in reports:
            values = (report.fraction, report.note, report.job, report.attempt, worker)
            is_done = can_be(report.job) and await self._change("report", values)
            verdicts.append(Verdict.DONE if is_done else Verdict.STALE)
        return verdicts

    async def exchange(
        self, ask: Ask, overruled: dict[str, Job], rest: Row, *, is_patient: bool
    ) -> tuple[list[Verdict], list[Row]]:
        """Settle every outcome of a turn, one by one; then the ``rest`` of the turn.

        On failure: if ``is_patient``, ``EngineBusy`` when a row was locked for too long; otherwise
        such a row is skipped.
        """
        lock = "lock_patiently" if is_patient else "lock"
        overruled.clear()
        verdicts = await self._settle_all(ask, overruled, lock)
        try:
            return verdicts, await self.turn.rows(EXCHANGE, rest)
        except errors.LockNotAvailable as error:
            raise EngineBusy("postgresql", "a job is locked by somebody else") from error

    async def _settle_all(self, ask: Ask, overruled: dict[str, Job], lock: str) -> list[Verdict]:
        if not await self._lock_lease(ask.worker):
            raise LeaseLost(ask.worker)
        # One order for all who lock many rows, so that nobody waits in a circle.
        ids = sorted({each.job for each in ask.outcomes if can_be(each.job)})
        await self._begin(ask)
        try:
            locked = {row[18]: row for row in await self._ask(lock, (ids,))}
        except errors.LockNotAvailable as error:
            raise EngineBusy("postgresql", "a job is locked by somebody else") from error
        verdicts: list[Verdict] = []
        enough = SystemClock.monotonic() + BUDGET
        for outcome in ask.outcomes:
            if SystemClock.monotonic() > enough:
                return [*verdicts, *[Verdict.LATER] * (len(ask.outcomes) - len(verdicts))]
            row = locked.get(outcome.job)
            if row is None:
                verdicts.append(await self._repeated(outcome, ask.worker, overruled))
                continue
            verdict, after = await self._settle(outcome, ask.worker, row, overruled)
            verdicts.append(verdict)
            if after is not None:
                # A second outcome of the same attempt meets what the first one left.
                del locked[outcome.job]
                again = await self._ask("lock", ([outcome.job],))
                locked.update((row[18], row) for row in again)
        return verdicts

    async def _begin(self, ask: Ask) -> None:
        for id, attempt in ask.begun:
            if can_be(id):
                await self._change("begin_attempt", (id, attempt, ask.worker))

    async def _settle(
        self, outcome: Outcome, worker: str, row: Row, overruled: dict[str, Job]
    ) -> tuple[Verdict, Job | None]:
        job = to_job(row)
        fence = (outcome.attempt, worker)
        if job.state is not State.RUNNING or (job.attempt, job.worker) != fence:
            is_settled = job.state is not State.RUNNING and (job.attempt, job.worker) == fence
            is_signed = (row[15], row[31]) == fence
            return (Verdict.DONE if is_settled or is_signed else Verdict.STALE), None
        after = lifecycle.settled(job, outcome, self.now)
        if after.hold is Hold.UNKNOWN_TASK and await self._is_known(after.task):
            after = replace(after, hold=None, hold_cause=None, hold_until=None)
        try:
            after = await self._wait_or_end(job, after, fence)
        except KeyContested:
            return Verdict.LATER, None
        if lifecycle.overruled(outcome, after):
            overruled[job.id] = after
        return Verdict.DONE, after

    async def _is_known(self, task: str) -> bool:
        """A worker that has a lease knows the task; no other can join before this ends."""
        await self._ask("lock_tasks")
        return task in await self._known_tasks()

    async def _repeated(self, outcome: Outcome, worker: str, overruled: dict[str, Job]) -> Verdict:
        """What to say to an outcome whose job is not live, or is somebody else's just now."""
        if not can_be(outcome.job):
            return Verdict.STALE
        ended = await self._ask("ended", (outcome.job,))
        if not ended:
            is_there = await self._ask("is_live", (outcome.job,))
            return Verdict.LATER if is_there else Verdict.STALE
        job = to_job(ended[0])
        if (job.attempt, job.worker) == (outcome.attempt, worker):
            if lifecycle.overruled(outcome, job):
                overruled[job.id] = job
            return Verdict.DONE
        is_signed = (ended[0][15], ended[0][31]) == (outcome.attempt, worker)
        return Verdict.DONE if is_signed else Verdict.STALE
