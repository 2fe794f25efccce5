"""What a worker has in flight: attempts not yet ended, reports and outcomes not yet stored.

Every job that the store gave this worker is an attempt or has an outcome here until the store has
answered for its outcome. That is what ``held`` is compared with after a lost reply (law 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from msgspec.structs import replace

from penstock.context import REAL, Context
from penstock.core.job import Job, Outcome, OutcomeKind, Verdict
from penstock.core.spec import Spec
from penstock.engines.records import Report
from penstock.worker.interrupt import NEVER, InterruptGuard
from penstock.worker.pool import Pool

Key = tuple[str, int]
"""A job and its claim: with the worker's id, the fence."""


class Ending(Enum):
    """Why the worker, not the handler, ends an attempt."""

    TIMEOUT = auto()
    STALL = auto()
    CANCEL = auto()
    SHUTDOWN = auto()
    LOST = auto()
    """It belongs to another worker now: its outcome is dropped."""


class Attempt:
    """One execution of a job, waiting or running. Belongs to the worker's loop, except that the
    thread which runs it sets ``started_at``.
    """

    __slots__ = (
        "_token",
        "context",
        "ending",
        "error",
        "guard",
        "is_abandoned",
        "is_announced",
        "is_cleaning",
        "is_held_up",
        "is_over",
        "is_reported",
        "is_stuck",
        "job",
        "key",
        "number",
        "pool",
        "spec",
        "started_at",
        "taken_at",
        "task",
    )

    def __init__(
        self,
        job: Job,
        spec: Spec,
        number: int,
        taken_at: float,
        monotonic: Callable[[], float] = REAL.monotonic,
    ) -> None:
        self.job = job
        self.spec = spec
        self.key: Key = (job.id, job.claim)
        self.context = Context(job, monotonic)
        self.number = number
        """Its place among all that this worker claimed."""
        self.taken_at = taken_at
        """When it was claimed, on the monotonic clock."""
        self.started_at: float | None = None
        self.is_reported = job.started
        """The store knows that it has started, or need not: a crash of this process is not its
        doing.
        """
        self.is_announced = False
        """It starts as soon as the store knows."""
        self.is_abandoned = False
        """The slot that runs it must end, whatever the handler does."""
        self.is_cleaning = False
        """Its coroutine has come to its end and what surrounds it cleans up: let it."""
        self.is_held_up = False
        """It waits for what its handler needs, which is not its doing: its time does not run."""
        self.is_stuck = False
        """It must end, and nothing that was tried has ended it."""
        self.is_over = False
        """It has ended, or was withdrawn: it uses nothing any more."""
        self._token = [None]
        self.pool: Pool | None = None
        """Where it waits or runs."""
        self.ending: Ending | None = None
        self.error: BaseException | None = None
        """What its outcome tells of, until that is logged: its traceback leads back to here."""
        self.task: asyncio.Task[None] | None = None
        """The slot that runs it, while one does."""
        self.guard = NEVER if spec.is_async else InterruptGuard()
        """When its handler can be interrupted, if it runs in a thread."""

    def seize(self) -> bool:
        """Decide that it starts, or that it never does; only the first caller, from whatever
        thread, gets True.
        """
        try:
            self._token.pop()
        except IndexError:
            return False
        return True

    @property
    def is_waiting(self) -> bool:
        """It has not been seized."""
        return bool(self._token)

    def reset(self) -> None:
        """It could not start where it was to: let it be seized again."""
        self.started_at = None
        self.is_reported = self.job.started
        self._token = [None]

    @property
    def is_out_of_time(self) -> bool:
        """It was told to end because its time is over: whatever it returns now comes too late."""
        return self.ending is Ending.TIMEOUT or self.ending is Ending.STALL

    @property
    def runs_once(self) -> bool:
        """It must never run a second time."""
        return self.job.at_most_once or self.spec.at_most_once

    def end(self, ending: Ending) -> None:
        """Ask it to end. The first reason stands, unless the job is lost."""
        if self.ending is None or ending is Ending.LOST:
            self.ending = ending
        self.context.stop()

    def outcome(self, kind: OutcomeKind, reason: str | None = None) -> Outcome:
        """The plain outcome of this attempt."""
        return Outcome(job=self.job.id, claim=self.job.claim, kind=kind, reason=reason)


@dataclass(frozen=True, slots=True)
class Difference:
    """What the store and the worker disagree about."""

    unknown: list[Job]
    """The store says this worker has them."""
    gone: list[Attempt]
    """The store says it has them no more."""


class Inflight:
    """Attempts, outcomes and reports by (job, claim). Belongs to the worker's loop."""

    def __init__(self, monotonic: Callable[[], float] = REAL.monotonic) -> None:
        self._monotonic = monotonic
        self._attempts: dict[Key, Attempt] = {}
        self._outcomes: dict[Key, Outcome] = {}
        self._reports: dict[Key, Report] = {}
        self._told: set[str] = set()
        self._announced: Attempt | None = None
        self._taken = 0

    @property
    def is_empty(self) -> bool:
        """Nothing runs, waits or is to be settled."""
        return not self._attempts and not self._outcomes

    @property
    def outcomes(self) -> int:
        """How many outcomes are not answered yet."""
        return len(self._outcomes)

    def __iter__(self) -> Iterator[Attempt]:
        """The attempts that have not ended, whatever happens meanwhile."""
        return iter(list(self._attempts.values()))

    def __contains__(self, attempt: Attempt) -> bool:
        return attempt.key in self._attempts

    # --- attempts ------------------------------------------------------------------------------

    def take(self, job: Job, spec: Spec, now: float) -> Attempt:
        """Remember a claimed job."""
        self._taken += 1
        attempt = Attempt(job, spec, self._taken, now, self._monotonic)
        self._attempts[attempt.key] = attempt
        return attempt

    def settle(self, attempt: Attempt, outcome: Outcome | None) -> bool:
        """The attempt has ended; its outcome is kept for the next exchange.

        False: it was forgotten before, and its outcome is dropped.
        """
        key = attempt.key
        if self._attempts.pop(key, None) is None:
            return False
        if self._told:
            self._told.discard(key[0])
        self._collect(attempt, is_last=True)
        if outcome is not None:
            self._outcomes[key] = outcome
        return True

    def add(self, outcome: Outcome) -> None:
        """Keep the outcome of a job that never became an attempt."""
        self._outcomes[outcome.job, outcome.claim] = outcome

    def replace(self, outcome: Outcome, by: Outcome | None) -> None:
        """Say something else in place of an outcome, or nothing."""
        if self._forget(outcome) and by is not None:
            self.add(by)

    def is_waiting_for(self, outcomes: Sequence[Outcome]) -> bool:
        """One of these outcomes is still to be settled."""
        return any((outcome.job, outcome.claim) in self._outcomes for outcome in outcomes)

    def _forget(self, outcome: Outcome) -> bool:
        key = (outcome.job, outcome.claim)
        if self._reports:
            self._reports.pop(key, None)
        return self._outcomes.pop(key, None) is not None

    def find(self, ids: Iterable[str]) -> list[Attempt]:
        """The attempts of these jobs."""
        wanted = frozenset(ids)
        return [attempt for attempt in self if attempt.job.id in wanted]

    def clear(self) -> list[Attempt]:
        """Forget everything; return the attempts that were there."""
        forgotten = list(self)
        self._attempts.clear()
        self._outcomes.clear()
        self._reports.clear()
        self._told.clear()
        return forgotten

    def compare(self, held: Sequence[Job]) -> Difference:
        """Compare with what the store says this worker has.

        A job whose outcome waits to be settled is known; the verdict on it decides.
        """
        theirs = {(job.id, job.claim): job for job in held}
        return Difference(
            [
                job
                for key, job in theirs.items()
                if key not in self._attempts and key not in self._outcomes
            ],
            [attempt for key, attempt in self._attempts.items() if key not in theirs],
        )

    # --- for the next exchange -----------------------------------------------------------------

    def outgoing(self, limit: int) -> tuple[Outcome, ...]:
        """The outcomes to send, the oldest first."""
        return tuple(islice(self._outcomes.values(), limit))

    def answered(self, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> int:
        """The store has judged these outcomes; those it wants later stay. Count the stale ones."""
        stale, stays = 0, Verdict.LATER
        for outcome, verdict in zip(outcomes, verdicts, strict=True):
            if verdict is not stays:
                self._forget(outcome)
                stale += verdict is Verdict.STALE
        return stale

    def collect_reports(self) -> None:
        """Take what handlers have reported since the last time; the next exchange sends it."""
        for attempt in self._attempts.values():
            self._collect(attempt)

    def _collect(self, attempt: Attempt, *, is_last: bool = False) -> None:
        if (report := attempt.context.take_report(is_last=is_last)) is not None:
            unsent = self._reports.get(attempt.key)
            if unsent is not None and report.checkpoint is None:
                report = replace(report, checkpoint=unsent.checkpoint)
            self._reports[attempt.key] = report

    def reports(self, limit: int, outcomes: Sequence[Outcome] = ()) -> tuple[Report, ...]:
        """The reports to send: the last ones of the attempts with these outcomes, then others.

        After its outcome a report would change nothing: one that has an outcome goes with it, as
        often as that is sent.
        """
        if not self._reports:
            return ()
        keys = ((outcome.job, outcome.claim) for outcome in outcomes)
        last = [report for key in keys if (report := self._reports.get(key)) is not None]
        others = (each for key, each in self._reports.items() if key not in self._outcomes)
        return (*last, *islice(others, limit - len(last)))

    def stored(self, reports: Iterable[Report]) -> None:
        """The store has these reports; one that came meanwhile stays to be sent."""
        for report in reports:
            key = (report.job, report.claim)
            if key not in self._outcomes and self._reports.get(key) is report:
                del self._reports[key]

    def drop_reports(self, reports: Iterable[Report]) -> None:
        """Send these no more."""
        for report in reports:
            self._reports.pop((report.job, report.claim), None)

    def begun(self) -> tuple[Key, ...]:
        """The attempts that have started, or are about to, and of which the store does not know."""
        return tuple(
            key
            for key, attempt in self._attempts.items()
            if not attempt.is_reported and (attempt.started_at is not None or attempt.is_announced)
        )

    def announce(self, attempt: Attempt) -> None:
        """Let the store know that this attempt is about to start, before it does."""
        attempt.is_announced = True
        self._announced = attempt

    @property
    def is_announcing(self) -> bool:
        """An attempt waits for the store to know that it starts."""
        attempt = self._announced
        return attempt is not None and not attempt.is_reported and attempt in self

    def reported(self, begun: Iterable[Key]) -> bool:
        """The store knows that these have started; True: one of them has waited for that."""
        was_announcing = self.is_announcing
        for key in begun:
            if (attempt := self._attempts.get(key)) is not None:
                attempt.is_reported = True
        return was_announcing and not self.is_announcing

    def tell(self, id: str) -> None:
        """The cancellation of this running job is known."""
        self._told.add(id)

    @property
    def told(self) -> frozenset[str]:
        """Jobs still here whose cancellation is known."""
        return frozenset(self._told)
