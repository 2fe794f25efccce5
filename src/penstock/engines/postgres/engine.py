"""The PostgreSQL engine: the truth for teams, every process on one database.

What a handle has open is in ``handle``; here is what it does, verb by verb. Time is the server's.
The usual turn of a worker and the usual way in are one function call each, so one round trip and
one commit (see ``sql/postgres/0006_exchange.sql``).

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| the process dies before a commit       | the server rolls back; nothing happened                 |
| it dies after a commit, before the     | it happened; a repeated call says so (see the contract) |
| answer                                 |                                                         |
| the server is killed                   | what was committed is there when it is back             |
| two handles are in each other's way    | one of them is repeated, or told to come later          |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import psycopg
from msgspec.structs import replace

from penstock.clock import SystemClock
from penstock.core.job import Draft, Job, Outcome, OutcomeKind, State, Verdict
from penstock.engines.engine import Answer
from penstock.engines.postgres.bounds import Ranges
from penstock.engines.postgres.entry import packed, to_json, to_plain, to_receipts
from penstock.engines.postgres.glance import glance
from penstock.engines.postgres.handle import PostgresHandle
from penstock.engines.postgres.jobs import PostgresJobs
from penstock.engines.postgres.offers import LEASE
from penstock.engines.postgres.rows import Row, texts
from penstock.engines.postgres.troubles import (
    KNOWN_ID,
    LOCKED,
    NO_LEASE,
    SAME_ID,
    named_errors,
)
from penstock.engines.postgres.views import PostgresViews
from penstock.engines.postgres.watch import ANY, DONE, NEWS, ORDERS, WORK
from penstock.engines.postgres.work import (
    NOTHING,
    Done,
    Header,
    can_be_told,
    to_claimed,
    to_done,
    to_exchange,
    to_texts,
)
from penstock.engines.records import (
    Ask,
    Cell,
    Control,
    Count,
    Exchange,
    Filter,
    Glance,
    Hand,
    Mended,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Report,
    Sighting,
    Standing,
    Term,
    WorkerInfo,
    reasons,
)
from penstock.engines.storable import check_drafts, check_outcomes, check_reports
from penstock.errors import EngineBusy, EngineClosed, EngineUnavailable, LeaseLost

PUT_PLAIN = "SELECT penstock.put_plain(%s, %s, %s, %s, %s, %s, %s)"
PUT = "SELECT * FROM penstock.put(%s)"
OFFER = "SELECT penstock.offer(%s, %s, %s, %s, %s)"
BEAT = "UPDATE penstock.worker SET beat = beat + 1 WHERE id = %s RETURNING 1"

LONGEST_NAP: Final = 0.05
"""Seconds between two looks of a sleeper who is woken for nothing, again and again."""


class PostgresEngine(PostgresHandle):
    """One handle on one PostgreSQL store."""

    # --- in ------------------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        if not drafts:
            return []
        try:
            with named_errors(self.traits.name):
                return await self._put(drafts)
        except BaseException:
            self._doubt(drafts)
            raise

    def pack(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        return packed(self.traits.name, drafts)

    def enqueue_now(self, draft: Draft, timeout: float | None) -> Receipt | None:
        counter = self._counter
        if counter is None:
            raise EngineClosed(self.traits.name)
        with named_errors(self.traits.name):
            return counter.serve(draft, timeout)

    def enqueue_soon(self, draft: Draft, answer: Answer) -> Callable[[], None] | None:
        if self._counter is None:
            raise EngineClosed(self.traits.name)
        return self._counter.hand_in(draft, answer)

    async def _put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        plain = to_plain(self.traits.name, drafts)
        if plain is not None:
            row = plain.row(self._doubted_at)
            try:
                await self._call(PUT_PLAIN, row, wakes=WORK, fills=plain.queue)
                return [Receipt(draft.id, True) for draft in drafts]
            except EngineUnavailable as error:
                if not any(_says(error, state) for state in (KNOWN_ID, SAME_ID, LOCKED)):
                    raise
        check_drafts(self.traits.name, drafts)
        return to_receipts(await self._call(PUT, (to_json(drafts),), wakes=WORK))

    # --- work ----------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo) -> None:
        await self._write(WORK, PostgresJobs.join, worker)

    async def leave(self, worker: str) -> None:
        heard = self._offers.last(worker)
        await self._write(NEWS if heard is None else ANY, PostgresJobs.leave, worker, heard)
        self._offers.forget(worker)

    async def beat(self, worker: str) -> None:
        if not await self._call(BEAT, (worker,), wakes=NEWS):
            raise LeaseLost(worker)

    async def exchange(self, ask: Ask) -> Exchange:
        if self._offers.has(ask.worker) and ask.queues and not (ask.outcomes or ask.begun):
            jobs = self._handed(ask)
            return Exchange(jobs=jobs, now=jobs[-1].claimed_at or 0.0)
        check_outcomes(self.traits.name, ask.outcomes)
        wakes = DONE if ask.outcomes else NEWS
        told = [each for each in ask.outcomes if each.is_settled]
        if not told:
            return await self._turn_of(ask, wakes)
        for each in told:
            self._places.pop(each.job, None)
        rest = tuple(each for each in ask.outcomes if not each.is_settled)
        given = await self._turn_of(replace(ask, outcomes=rest), wakes)
        left = iter(given.verdicts)
        verdicts = (Verdict.DONE if each.is_settled else next(left) for each in ask.outcomes)
        return replace(given, verdicts=tuple(verdicts))

    async def _turn_of(self, ask: Ask, wakes: str) -> Exchange:
        done = to_done(ask.outcomes, self._places)
        if done is not None and can_be_told(ask):
            quick = await self._quick_turn(ask, done, wakes)
            if quick is not None:
                return quick
        for each in ask.outcomes:
            self._places.pop(each.job, None)
        try:
            given = await self._mixed_turn(ask) if done is None else None
            if given is None:
                given = await self._slow_turn(ask, ask.outcomes, NOTHING, is_patient=True)
        except EngineBusy:
            given = await self._slow_turn(ask, ask.outcomes, NOTHING, is_patient=False)
        assert given is not None, "nothing was left to be settled"
        return given

    async def _mixed_turn(self, ask: Ask) -> Exchange | None:
        """Plain successes in one call, the other outcomes one by one; None: all of them have to be
        looked at, nothing was claimed.
        """
        plain = [each for each in ask.outcomes if each.kind is OutcomeKind.SUCCEEDED]
        done = to_done(plain, self._places)
        # Of two outcomes of one job the first counts.
        if (
            not plain
            or done is None
            or len({each.job for each in ask.outcomes}) < len(ask.outcomes)
        ):
            return None
        others = [each for each in ask.outcomes if each.kind is not OutcomeKind.SUCCEEDED]
        given = await self._slow_turn(ask, others, done, is_patient=True)
        if given is None:
            return None
        told = iter(given.verdicts)
        return replace(
            given,
            verdicts=tuple(
                Verdict.DONE if each.kind is OutcomeKind.SUCCEEDED else next(told)
                for each in ask.outcomes
            ),
        )

    async def _slow_turn(
        self, ask: Ask, outcomes: Sequence[Outcome], done: Done, *, is_patient: bool
    ) -> Exchange | None:
        """Settle these outcomes one by one and those that are ``done`` at once, then claim; None:
        something that was taken for done has to be looked at, nothing was claimed.
        """
        overruled: dict[str, Job] = {}
        ranges = self._ranges(ask)
        step = partial(
            PostgresJobs.exchange,
            ask=replace(ask, outcomes=tuple(outcomes)),
            overruled=overruled,
            rest=to_exchange(replace(ask, begun=()), done, ranges, self._offered(ask)),
        )
        verdicts, rows = await self._write(ANY, partial(step, is_patient=is_patient))
        given = self._given(ask, rows, ranges)
        return given and replace(
            given,
            verdicts=tuple(verdicts),
            overruled=reasons(overruled, State.CANCELLED),
            abandoned=reasons(overruled, State.FAILED),
        )

    async def _quick_turn(self, ask: Ask, done: Done, wakes: str) -> Exchange | None:
        """The whole turn in one call; None: an outcome has to be looked at, nothing was claimed."""
        ranges = self._ranges(ask)
        with named_errors(self.traits.name):
            values = to_texts(to_exchange(ask, done, ranges, self._offered(ask)))
        try:
            rows = await self._run(self._exchange, values, wakes)
        except EngineUnavailable as error:
            if _says(error, NO_LEASE):
                self._offers.forget(ask.worker)
                raise LeaseLost(ask.worker) from None
            if _says(error, LOCKED):
                return None
            raise
        return self._given(ask, rows, ranges)

    def _ranges(self, ask: Ask) -> Ranges | None:
        queues = texts(ask.queues)
        return self._bounds.ranges(queues) if ask.want > 0 and queues else None

    def _given(self, ask: Ask, rows: Sequence[Row], ranges: Ranges | None) -> Exchange | None:
        header, jobs = to_claimed(rows, ask.worker, self._places)
        if header.unsettled:
            return None
        if ranges is not None:
            self._learn(ask, header, jobs, ranges)
        self._offers.add(header.handed or ())
        return Exchange(
            jobs=(*jobs, *self._handed(ask)),
            verdicts=(Verdict.DONE,) * len(ask.outcomes),
            cancels=tuple(id for id in header.cancels or () if id not in ask.told),
            due_in=None if header.due is None else max(0.0, header.due - header.now),
            now=header.now,
        )

    def _offered(self, ask: Ask) -> int | None:
        """What the worker knows of what it was given, if this turn takes its offer back."""
        return self._offers.heard(ask.worker) if ask.queues else None

    def _handed(self, ask: Ask) -> tuple[Job, ...]:
        """What the worker was given without asking; a turn that only settles is not told."""
        if not ask.queues:
            return ()
        notes = self._offers.take(ask.worker)
        self._places.update((note.id, note.tid) for note in notes if note.tid is not None)
        return tuple(note.job() for note in notes)

    def _learn(self, ask: Ask, header: Header, jobs: Sequence[Job], ranges: Ranges) -> None:
        passes_over = bool(ask.avoid) or header.passed or ask.slots <= 0
        self._bounds.learn(
            () if passes_over else jobs,
            header.lowered,
            is_fair=header.fair,
            swept=header.took if header.wide or ranges.is_whole else None,
        )

    async def held(self, worker: str) -> list[Job]:
        jobs, number = await self._seek(PostgresViews.held, worker)
        self._offers.knows(worker, number)
        return jobs

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        check_reports(self.traits.name, reports)
        return await self._write(NEWS, PostgresJobs.progress, worker, reports)

    async def look(self, ask: Ask) -> float | None:
        return await self._glimpse(PostgresViews.look, ask)

    async def wait(self, ask: Ask, timeout: float) -> None:
        watch, kind = self._watching(), WORK if ask.want > 0 and ask.queues else ORDERS
        deadline, in_vain = self.clock.monotonic() + timeout, 0
        takes_any = kind == WORK and ask.slots > 0 and ask.least_urgent is None and not ask.avoid
        while (left := deadline - self.clock.monotonic()) > 0:
            seen = await watch.version(kind)
            due_in = await self._look_before_sleep(ask)
            if due_in is not None and due_in <= 0:
                return
            if takes_any and ask.is_idle and watch.hears and not await self._offer(ask):
                return
            if in_vain > 1:
                # What comes is for others: to look at each of it would be a hot loop.
                await asyncio.sleep(min(LONGEST_NAP, 0.001 * 2.0 ** min(in_vain, 10)))
            found = await watch.listen(seen, left if due_in is None else min(left, due_in), kind)
            if self._offers.has(ask.worker) or (takes_any and watch.has_filled(ask.queues, seen)):
                return
            in_vain = in_vain + 1 if found != seen else 0

    async def _offer(self, ask: Ask) -> bool:
        """Let the worker be given a job while it sleeps; False: it was, and has not heard of it."""
        offers, now = self._offers, asyncio.get_running_loop().time()
        if offers.has(ask.worker):
            return False
        if not offers.is_needed(ask.worker, now):
            return True
        heard = offers.offer(ask.worker, now)
        values = (ask.worker, offers.channel, texts(ask.queues), LEASE, heard)
        ((is_fine,),) = await self._call(OFFER, values)
        return bool(is_fine)

    async def _look_before_sleep(self, ask: Ask) -> float | None:
        """Look from the start of every line, unless that was dear the last time: then only beyond
        the bounds, and there is another look within a second.
        """
        narrow = self._bounds.narrow(texts(ask.queues)) if ask.want > 0 else None
        if narrow is not None:
            return await self._glimpse(PostgresViews.look, ask, narrow)
        began_at = SystemClock.monotonic()
        due_in = await self.look(ask)
        self._bounds.swept(SystemClock.monotonic() - began_at)
        if due_in is not None and due_in <= 0:
            # What was found may stand before a bound.
            self._bounds.forget()
        return due_in

    # --- control -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        return await self._write(ANY, PostgresJobs.cancel, ids, reason)

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        return await self._write(WORK, PostgresJobs.retry, ids)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._write(ANY, PostgresJobs.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._write(WORK, PostgresJobs.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._read(PostgresViews.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return await self._write(ANY, PostgresJobs.promote, limit)

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        return await self._write(ANY, PostgresJobs.rescue, dead, limit)

    async def prune(self, keep: float, limit: int) -> Pruned:
        pruned, whole = await self._write(NEWS, PostgresJobs.prune, keep, limit)
        if not whole:
            return pruned
        return replace(pruned, jobs=pruned.jobs + await self._drop_days(whole))

    async def mend(self, *, rehearse: bool = False) -> Mended:
        return await self._write(WORK, PostgresJobs.mend, rehearse=rehearse)

    # --- lead and small values -----------------------------------------------------------------

    async def lead(self, candidate: str, ttl: float) -> Term | None:
        return await self._write(NEWS, PostgresJobs.lead, candidate, ttl)

    async def resign(self, holder: str, epoch: int) -> None:
        await self._write(NEWS, PostgresJobs.resign, holder, epoch)

    async def leader(self) -> Term | None:
        return await self._read(PostgresViews.leader)

    async def cell(self, name: str) -> Cell:
        return await self._read(PostgresViews.cell, name)

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        return await self._write(NEWS, PostgresJobs.set_cell, name, value, version)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._seek(PostgresViews.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._read(PostgresViews.find, which, cursor, limit)

    async def count(self, which: Filter) -> int:
        return await self._read(PostgresViews.count, which)

    async def counts(self) -> list[Count]:
        return await self._read(PostgresViews.counts)

    async def loads(self, queues: Sequence[str]) -> Mapping[str, int]:
        return await self._seek(PostgresViews.loads, queues)

    async def glance(self, window: float, limit: int) -> Glance:
        return await self._read(glance, window, limit)

    async def workers(self) -> list[WorkerInfo]:
        return await self._read(PostgresViews.workers)

    async def hands(self) -> list[Hand]:
        return await self._read(PostgresViews.hands)

    async def line(self, id: str) -> Standing:
        return await self._read(PostgresViews.standing, id)

    async def results(self, ids: Sequence[str], timeout: float) -> dict[str, Job | None]:
        watch = self._watching()
        deadline = self.clock.monotonic() + timeout
        while True:
            seen = await watch.version(DONE) if timeout > 0 else 0
            jobs = dict(zip(ids, await self.get(ids), strict=True))
            ended = {id: job for id, job in jobs.items() if job is None or job.state.is_final}
            left = deadline - self.clock.monotonic()
            if ended or left <= 0:
                return ended
            await watch.listen(seen, left, DONE)

    async def version(self) -> int:
        return await self._watching().version()

    async def listen(self, seen: int, timeout: float) -> int:
        return await self._watching().listen(seen, timeout)


def _says(error: EngineUnavailable, state: str) -> bool:
    """The server raised this very state."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and cause.sqlstate == state
