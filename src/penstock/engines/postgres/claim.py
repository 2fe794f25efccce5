"""What a PostgreSQL handle does for a worker: its lease, its turns, and its sleep.

The usual turn is one function call, so one round trip and one commit (see
``sql/postgres/0006_exchange.sql``). Outcomes that are not plain successes are looked at one by one,
in the transaction of the rest of the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from penstock.clock import SystemClock
from penstock.core.job import Job, Outcome, OutcomeKind, State, Verdict
from penstock.engines.postgres.bounds import Ranges
from penstock.engines.postgres.control import PostgresJobs
from penstock.engines.postgres.errors import LOCKED, NO_LEASE, named_errors, says
from penstock.engines.postgres.handle import PostgresHandle
from penstock.engines.postgres.reads import PostgresViews
from penstock.engines.postgres.rows import Row, texts
from penstock.engines.postgres.settle import (
    NOTHING,
    Done,
    Header,
    can_be_told,
    to_claimed,
    to_done,
    to_exchange,
    to_texts,
)
from penstock.engines.postgres.wakeup import ANY, DONE, NEWS, ORDERS, WORK
from penstock.engines.records import Ask, Exchange, Report, WorkerInfo, reasons
from penstock.engines.validation import check_outcomes, check_reports
from penstock.errors import EngineBusy, EngineUnavailable, LeaseLost

BEAT: Final = "UPDATE penstock.worker SET beat = beat + 1 WHERE id = %s RETURNING 1"

LONGEST_NAP: Final = 0.05
"""Seconds between two looks of a sleeper who is woken for nothing, again and again."""


class PostgresExchanging(PostgresHandle):
    """The verbs of a worker."""

    # --- lease ---------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo) -> None:
        await self._write(WORK, PostgresJobs.join, worker)

    async def leave(self, worker: str) -> None:
        await self._write(NEWS, PostgresJobs.leave, worker)

    async def beat(self, worker: str) -> None:
        if not await self._call(BEAT, (worker,), wakes=NEWS):
            raise LeaseLost(worker)

    # --- turns ---------------------------------------------------------------------------------

    async def exchange(self, ask: Ask) -> Exchange:
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
            rest=to_exchange(replace(ask, begun=()), done, ranges),
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
            values = to_texts(to_exchange(ask, done, ranges))
        try:
            rows = await self._run(self._exchange, values, wakes)
        except EngineUnavailable as error:
            if says(error, NO_LEASE):
                raise LeaseLost(ask.worker) from None
            if says(error, LOCKED):
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
        return Exchange(
            jobs=tuple(jobs),
            verdicts=(Verdict.DONE,) * len(ask.outcomes),
            cancels=tuple(id for id in header.cancels or () if id not in ask.told),
            due_in=None if header.due is None else max(0.0, header.due - header.now),
            now=header.now,
        )

    def _learn(self, ask: Ask, header: Header, jobs: Sequence[Job], ranges: Ranges) -> None:
        passes_over = bool(ask.avoid) or header.passed or ask.slots <= 0
        self._bounds.learn(
            () if passes_over else jobs,
            header.lowered,
            is_fair=header.fair,
            swept=header.took if header.wide or ranges.is_whole else None,
        )

    async def held(self, worker: str) -> list[Job]:
        return await self._seek(PostgresViews.held, worker)

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        check_reports(self.traits.name, reports)
        return await self._write(NEWS, PostgresJobs.progress, worker, reports)

    # --- sleep ---------------------------------------------------------------------------------

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
            if in_vain > 1:
                # What comes is for others: to look at each of it would be a hot loop.
                await asyncio.sleep(min(LONGEST_NAP, 0.001 * 2.0 ** min(in_vain, 10)))
            found = await watch.listen(seen, left if due_in is None else min(left, due_in), kind)
            if takes_any and watch.has_filled(ask.queues, seen):
                return
            in_vain = in_vain + 1 if found != seen else 0

    async def _look_before_sleep(self, ask: Ask) -> float | None:
        """Look from the start of every line; beyond the bounds only, until the next sweep, if the
        last one was too dear to be followed by another.
        """
        narrow = self._bounds.narrow(texts(ask.queues)) if ask.want > 0 else None
        if narrow is not None:
            due_in = await self._glimpse(PostgresViews.look, ask, narrow)
            sweep_in = self._bounds.rests_for
            return sweep_in if due_in is None else min(due_in, sweep_in)
        began_at = SystemClock.monotonic()
        due_in = await self._glimpse(PostgresViews.look, ask, None)
        self._bounds.swept(SystemClock.monotonic() - began_at)
        if due_in is not None and due_in <= 0:
            self._bounds.forget()  # it may stand before a bound
        return due_in
