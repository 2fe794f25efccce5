"""How a worker claims from a PostgreSQL store: its exchanges.

The usual exchange is one function call, so one round trip and one commit (see
``sql/postgres/0006_exchange.sql``). Outcomes that are no plain successes are settled one by one, in
the transaction of the rest of the exchange (see ``settle``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final

import msgspec
import psycopg
from msgspec.structs import replace

from penstock.core.job import (
    RUNNING,
    SUCCEEDED,
    ErrorRecord,
    Job,
    Outcome,
    OutcomeKind,
    State,
    Verdict,
)
from penstock.engines.postgres import settle
from penstock.engines.postgres.bounds import Bounds, Ranges, Turns
from penstock.engines.postgres.connection import Statement
from penstock.engines.postgres.draft_columns import BETWEEN, is_list
from penstock.engines.postgres.errors import LOCKED, NAME, NO_LEASE, named_errors, says
from penstock.engines.postgres.rows import Row, can_be, texts, to_reports
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.transaction import SQL, Transactions
from penstock.engines.postgres.wakeup import CHANGED, DONE, OTHER
from penstock.engines.records import ANY_PRIORITY, Ask, Exchange, reasons
from penstock.engines.validation import check_outcomes, check_reports
from penstock.errors import EngineBusy, EngineUnavailable, LeaseLost

SOON: Final = 0.005
"""Seconds after which to ask again for a queue that another claimer had locked."""
_LARGE: Final = 2000
"""Bytes of a result that goes with the others in one text."""

Done = tuple[str | None, str | None, str | None, str | None]
"""Successes as ``penstock.exchange`` takes them: ctids, ids, attempts, results."""
NOTHING: Final[Done] = (None, None, None, None)


CTIDS_KEPT: Final = 20_000
"""Rows whose places are remembered; jobs that another handle gave back are never asked for."""


class Claimer:
    """The exchanges of one engine: what it remembers from one to the next."""

    def __init__(self, transactions: Transactions, bounds: Bounds) -> None:
        self._transactions = transactions
        self._bounds = bounds
        self._statement = exchange_statement(transactions.schema)
        self.ctids: dict[str, str] = {}
        """Where the rows of claimed jobs are, by the jobs' ids: a hint, checked by the store."""

    async def exchange(self, ask: Ask) -> Exchange:
        """See the contract."""
        check_outcomes(NAME, ask.outcomes)
        check_reports(NAME, ask.reports)
        if len(self.ctids) > CTIDS_KEPT:
            self.ctids.clear()
        settled = [each for each in ask.outcomes if each.is_settled]
        if not settled:
            return await self._exchange(ask)
        for each in settled:
            self.ctids.pop(each.job, None)
        rest = tuple(each for each in ask.outcomes if not each.is_settled)
        given = await self._exchange(replace(ask, outcomes=rest), settled=True)
        left = iter(given.verdicts)
        verdicts = (Verdict.DONE if each.is_settled else next(left) for each in ask.outcomes)
        return replace(given, verdicts=tuple(verdicts))

    async def _exchange(self, ask: Ask, *, settled: bool = False) -> Exchange:
        done = to_done(ask.outcomes, self.ctids)
        if done is not None and can_tell_begun(ask):
            quick = await self._quickly(ask, done, settled=settled)
            if quick is not None:
                return quick
        for each in ask.outcomes:
            self.ctids.pop(each.job, None)
        try:
            given = await self._mixed(ask) if done is None else None
            if given is None:
                given = await self._slowly(ask, ask.outcomes, NOTHING, is_patient=True)
        except EngineBusy:
            given = await self._slowly(ask, ask.outcomes, NOTHING, is_patient=False)
        assert given is not None, "nothing was left to be settled"
        return given

    async def _quickly(self, ask: Ask, done: Done, *, settled: bool) -> Exchange | None:
        """All of it in one call; None: an outcome has to be settled alone, nothing was claimed.
        ``settled``: jobs have ended before this call, of which it has to tell.
        """

        def wakes(rows: list[Row]) -> str:
            if settled or ask.outcomes:
                return DONE
            has_changed = ask.begun or ask.reports or len(rows) > 1
            return OTHER if has_changed else ""  # an idle worker changes nothing

        ranges = self._ranges(ask)
        with named_errors():
            values = to_exchange(ask, done, ranges)
        try:
            rows = await self._transactions.run(self._statement, values, wakes)
        except EngineUnavailable as error:
            if says(error, NO_LEASE):
                raise LeaseLost(ask.worker) from None
            if says(error, LOCKED):
                return None
            raise
        return self._given(ask, rows, ranges)

    async def _mixed(self, ask: Ask) -> Exchange | None:
        """Plain successes in one call, the other outcomes one by one; None: all of them have to be
        settled so, nothing was claimed.
        """
        plain = [each for each in ask.outcomes if each.kind is OutcomeKind.SUCCEEDED]
        done = to_done(plain, self.ctids)
        # Of two outcomes of one job the first counts.
        if (
            not plain
            or done is None
            or len({each.job for each in ask.outcomes}) < len(ask.outcomes)
        ):
            return None
        others = [each for each in ask.outcomes if each.kind is not OutcomeKind.SUCCEEDED]
        given = await self._slowly(ask, others, done, is_patient=True)
        if given is None:
            return None
        left = iter(given.verdicts)
        verdicts = (
            Verdict.DONE if each.kind is OutcomeKind.SUCCEEDED else next(left)
            for each in ask.outcomes
        )
        return replace(given, verdicts=tuple(verdicts))

    async def _slowly(
        self, ask: Ask, outcomes: Sequence[Outcome], done: Done, *, is_patient: bool
    ) -> Exchange | None:
        """Settle these outcomes one by one and those that are ``done`` at once, then claim; None:
        something that was taken for done has to be settled by itself, nothing was claimed.
        """
        overruled: dict[str, Job] = {}
        ranges = self._ranges(ask)
        with named_errors():
            values = to_exchange(replace(ask, begun=(), reports=()), done, ranges)
        verdicts, rows = await self._transactions.write(
            CHANGED,
            settle.settle_and_exchange,
            replace(ask, outcomes=tuple(outcomes)),
            (self._statement, values),
            overruled,
            is_patient=is_patient,
        )
        given = self._given(ask, rows, ranges)
        return given and replace(
            given,
            verdicts=tuple(verdicts),
            overruled=reasons(overruled, State.CANCELLED),
            abandoned=reasons(overruled, State.FAILED),
        )

    def _ranges(self, ask: Ask) -> Ranges | None:
        queues = texts(ask.queues)
        return self._bounds.ranges(queues) if ask.want > 0 and queues else None

    def _given(self, ask: Ask, rows: Sequence[Row], ranges: Ranges | None) -> Exchange | None:
        header, jobs = to_claimed(rows, ask.worker, self.ctids)
        if header.unsettled:
            return None
        claim = header.claim
        if claim is not None and ranges is not None:
            passes_over = bool(ask.avoid) or claim.passed or ask.slots <= 0
            queues = texts(ask.queues)
            self._bounds.learn(
                () if passes_over else jobs,
                dict(zip(queues, claim.lowered, strict=True)),
                turns=claim.turns(queues),
                swept=claim.took if claim.wide or ranges.is_whole else None,
            )
        return Exchange(
            jobs=tuple(jobs),
            verdicts=(Verdict.DONE,) * len(ask.outcomes),
            cancels=tuple(id for id in header.cancels or () if id not in ask.told),
            due_in=self._due_in(header, ranges),
            is_keyed=claim is not None and claim.is_keyed,
            now=header.now,
        )

    def _due_in(self, header: Header, ranges: Ranges | None) -> float | None:
        """When something falls due, or the part of the lines before the bounds may be looked at."""
        claim, due_in = header.claim, None
        if claim is not None and claim.behind:
            return 0.0
        if claim is not None and claim.skipped:
            return SOON
        if header.due is not None:
            due_in = max(0.0, header.due - header.now)
        rests_for = self._bounds.rests_for
        if rests_for <= 0 or claim is None or ranges is None or claim.wide or ranges.is_whole:
            return due_in
        return min(rests_for, inf if due_in is None else due_in)


# --- what penstock.exchange takes and returns -----------------------------------------------------


def exchange_statement(schema: str) -> Statement:
    """The call of ``penstock.exchange``; its values are made by ``to_exchange``."""
    return Statement(b"exchange", placed(SQL["exchange"], schema))


class ClaimHeader(msgspec.Struct, frozen=True):
    """What ``penstock.exchange`` says of a claim beside the jobs it gives."""

    lowered: list[int]
    """What ``penstock.lowered_in`` says of each queue."""
    passed: bool = False
    """A job that runs at most once stays in line before some that were given."""
    keyed: list[str] = []
    """Those of the queues whose keys take turns."""
    is_keyed: bool = False
    """There is such a queue among those asked for, be it paused or locked."""
    notes: list[int | None] = []
    """The last note that was read, of each queue."""
    places: list[tuple[str, int, int]] | None = None
    """Where the first active line of a queue and priority is."""
    behind: bool = False
    """There is more to do in a queue whose keys take turns, before all of it can be claimed."""
    skipped: bool = False
    """Another claimer had the lock of a queue, or promotes what is due."""
    took: float | None = None
    """Seconds that the last look at the lines took."""
    wide: bool = False
    """It began at their start, though it need not have."""

    def turns(self, queues: Sequence[str]) -> Turns | None:
        """What it says of queues whose keys take turns."""
        if not self.keyed:
            return None
        numbers = dict(zip(queues, self.notes, strict=True))
        notes = {queue: numbers[queue] or 0 for queue in self.keyed}
        return Turns(self.keyed, notes, self.places or ())


class Header(msgspec.Struct, frozen=True):
    """What ``penstock.exchange`` says beside the jobs it gives."""

    now: float
    unsettled: list[str] = []
    """Jobs whose outcomes have to be looked at; nothing was claimed then."""
    due: float | None = None
    cancels: list[str] | None = None
    claim: ClaimHeader | None = None


class _Rest(msgspec.Struct, frozen=True, array_like=True):
    """What few jobs have, in the order of ``penstock.exchange``."""

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
    revision: int
    meta: str | None
    checkpoint: bytes | None


_header = msgspec.json.Decoder(Header)
_rest = msgspec.json.Decoder(_Rest)


def can_tell_begun(ask: Ask) -> bool:
    """What has begun can be told to ``penstock.exchange``."""
    return not any(BETWEEN in id for id, _ in ask.begun)


def to_done(outcomes: Sequence[Outcome], ctids: dict[str, str]) -> Done | None:
    """The first parameters of ``penstock.exchange``: successes whose results are plain texts; None:
    there is something else among the outcomes.

    ``ctids`` say where the rows of claimed jobs are, as far as that is known; each is of use once.
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
    tids = BETWEEN.join([ctids.pop(job, "(0,0)") for job in jobs])
    return tids, ids, ",".join([str(each.claim) for each in outcomes]), results


def to_exchange(ask: Ask, done: Done, ranges: Ranges | None) -> list[bytes | None]:
    """The parameters of ``penstock.exchange``, as texts.

    On failure: ``DataError``, as the driver says it, if something is no text that can be stored.
    """
    begun: tuple[str | None, ...] = (None, None)
    known = [each for each in ask.begun if can_be(each[0]) and BETWEEN not in each[0]]
    if known:
        begun = BETWEEN.join(id for id, _ in known), ",".join(str(claim) for _, claim in known)
    values = (
        ask.worker,
        *done,
        *begun,
        texts(ask.queues),
        ask.want if ranges else 0,
        ask.slots,
        texts(ask.avoid),
        ANY_PRIORITY if ask.least_urgent is None else ask.least_urgent,
        *(ranges.arrays if ranges else ("{}",) * 5),
        ranges.lowered if ranges else "{}",
        ranges.sweeps if ranges else False,
        to_reports(ask.reports) if ask.reports else None,
        ranges.notes if ranges else "{}",
        ask.promote,
    )
    try:
        encoded = [None if value is None else _to_text(value).encode() for value in values]
    except UnicodeEncodeError as error:
        raise psycopg.DataError(str(error)) from error
    if any(b"\0" in text for text in encoded if text is not None):
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return encoded


def _to_text(value: object) -> str:
    return "{" + ",".join(map(_quoted, value)) + "}" if isinstance(value, list) else str(value)


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def to_claimed(rows: Sequence[Row], worker: str, ctids: dict[str, str]) -> tuple[Header, list[Job]]:
    """Read what ``penstock.exchange`` returns; where the rows are is added to ``ctids``."""
    header = _header.decode(rows[-1][14])
    now, jobs = header.now, []
    for row in rows[:-1]:
        _, ctid, id, task, payload, queue, priority, at, by, seq, *nth, started, keep, rest = row
        ctids[id] = ctid
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
            claim=nth[0],
            attempt=nth[1],
            started=started,
            keep=keep,
            worker=worker,
            claimed_at=now,
            revision=1,
        )
        jobs.append(job if rest is None else _completed(job, _rest.decode(rest)))
    return header, jobs


def _completed(job: Job, rest: _Rest) -> Job:
    given = {name: getattr(rest, name) for name in _Rest.__struct_fields__}
    given["meta"] = None if rest.meta is None else rest.meta.encode()
    return replace(job, **given)
