"""Who does the work: hands claimed jobs to slots, threads and children, and collects the outcomes.

Everything here happens on the worker's loop and never waits: what the store says comes in by one
side (``take``, ``cancel``, ``forget``), outcomes are put into the hands on the other.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Final

from penstock.core.job import SUCCEEDED, Hold, Job, Outcome, OutcomeKind, Verdict
from penstock.core.spec import KINDS, Kind
from penstock.engines.records import Report
from penstock.worker.async_pool import AsyncPool
from penstock.worker.deadlines import Ends
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.lone_attempts import Surroundings, Suspects
from penstock.worker.pool import Means, Pool
from penstock.worker.prefetch import Demand, DemandPlanner, Room
from penstock.worker.process_pool import Home, ProcessPool
from penstock.worker.runner import SHUT_DOWN, Runner
from penstock.worker.thread_pool import ThreadPool
from penstock.worker.tools import Tools

NO_SLOT: Final = "no slot was free"

WEDGED: Final = "the loop of its worker did not come round"

NOT_ALONE: Final = "after a crash a job runs apart from all others, and another one does"

SUSPECT_HOLD: Final = 1.0
"""Seconds before a suspect that found no room is offered again."""

QUIET_WITHIN: Final = 10.0
"""Seconds for which nothing else starts so that a suspect can be alone; then it goes back."""

LOUD_HOLD: Final = 30.0
"""Seconds before such a suspect is offered again, while others get their turn."""


class Dispatcher:
    """All attempts of one worker, wherever they run."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._inflight = tools.inflight
        self._stats = tools.stats
        self._wake = tools.wake
        self._gate = tools.gate
        self._is_verbose = tools.journal.is_verbose
        settings = tools.settings
        self._runner = runner = Runner(tools.time.now, tools.worker)
        self._ends = Ends(tools)
        means = Means(
            runner, tools.gate, tools.clock, self._ends.begun, self._finished, settings.reserve
        )
        self._slots = AsyncPool(settings.concurrency, means)
        self._threads = ThreadPool(settings.threads, means)
        home = Home(worker=tools.worker, time=tools.time)
        self._children = ProcessPool(settings.children, means, home, settings.max_jobs)
        around = Surroundings(
            worker=tools.worker,
            pools=(self._slots, self._threads, self._children),
            pool_of=self._pool_of,
            announce=self._announce,
            time=tools.time,
            journal=tools.journal,
        )
        self._suspects = Suspects(settings.children, means, around)
        self._by_kind: dict[Kind, Pool] = {
            "async": self._slots,
            "sync": self._threads,
            "process": self._children,
        }
        self._pools: tuple[Pool, ...] = (*self._by_kind.values(), self._suspects)
        self.planner = DemandPlanner(tools, self._by_kind)
        self.is_draining = False
        self.left_to_parent = False
        """Something is left to be settled when this process is dead, under its lease."""

    def lives(self) -> list[Coroutine[Any, Any, None]]:
        """What has to live for attempts to run: slots, alarms and suspects."""
        slots = [self._slots.serve() for _ in range(self._slots.size)]
        children = [self._suspects.serve() for _ in range(self._suspects.size)]
        return [*slots, *children, self._ends.run()]

    def close(self) -> None:
        """Let everything end; nobody wants to know how. Call it before the tasks are cancelled."""
        for pool in self._pools:
            pool.close()

    @property
    def is_unwound(self) -> bool:
        """No coroutine runs any more, not even one whose job is lost."""
        return self._slots.is_quiet

    def pump(self) -> None:
        """Let attempts start that the gate had kept."""
        for pool in self._pools:
            pool.pump()

    def demand(self, *, may_skip: bool) -> Demand:
        """How many jobs to ask for now."""
        return Demand() if self.is_draining else self.planner.demand(may_skip=may_skip)

    @property
    def has_stock(self) -> bool:
        """Claimed jobs wait for a slot, of every kind that has anything to do."""
        loads = [(pool.load, pool.size) for pool in self._by_kind.values()]
        busy = [load > size for load, size in loads if load]
        return bool(busy) and all(busy)

    @property
    def lasts(self) -> float:
        """Seconds for which what waits keeps the slots busy beyond the next round trip."""
        return self.planner.prefetch.lasts(self._rooms())

    def _rooms(self) -> dict[Kind, Room]:
        return {kind: Room(pool.size, pool.load) for kind, pool in self._by_kind.items()}

    @property
    def running(self) -> int:
        """How many attempts have started and not ended."""
        return sum(attempt.started_at is not None for attempt in self._inflight)

    # --- jobs come in --------------------------------------------------------------------------

    def take(self, jobs: Sequence[Job]) -> dict[Kind, int]:
        """Hand claimed jobs out, most urgent first; return how many of each kind there were."""
        now = self._tools.clock.monotonic()
        lots: dict[Kind, list[Attempt]] = {kind: [] for kind in KINDS}
        spec_of, take = self._tools.specs.get, self._inflight.take
        for job in jobs:
            spec = spec_of(job.task)
            if spec is None:
                self._turn_away(job)
                continue
            attempt = take(job, spec, now)
            if self.is_draining:
                self._settle(attempt, released(attempt, SHUT_DOWN))
            elif job.crashes == 0:
                attempt.pool = self._by_kind[spec.kind]
                lots[spec.kind].append(attempt)
            elif self._suspects.has_room:
                attempt.pool = self._suspects
                self._suspects.put([attempt])
            else:
                self._settle(attempt, _held(job, Hold.LIMIT, NOT_ALONE, SUSPECT_HOLD))
        self._tools.stats.claimed += len(jobs)
        for kind, lot in lots.items():
            if lot:
                self._by_kind[kind].put(lot)
                self._return_surplus(kind, lot)
        return {kind: len(lot) for kind, lot in lots.items()}

    def _return_surplus(self, kind: Kind, lot: list[Attempt]) -> None:
        """Give back at once what is more than a kind can take: the mix was not as expected."""
        pool = self._by_kind[kind]
        surplus = min(len(lot), pool.load - pool.size - self.planner.prefetch.stock(kind))
        if surplus > 0:
            self._release(pool.waiting[-surplus:], NO_SLOT)

    def _turn_away(self, job: Job) -> None:
        """Nobody here knows the task; it waits until a worker joins that does."""
        self.planner.unknown.add(job.task)
        self._inflight.add(_held(job, Hold.UNKNOWN_TASK, job.task))
        self._tools.stats.count(OutcomeKind.RELEASED)
        self._tools.journal.unknown_task(job.task, tuple(self._tools.specs))

    def _announce(self, attempt: Attempt) -> None:
        self._inflight.announce(attempt)
        self._tools.wake()

    def _pool_of(self, attempt: Attempt) -> Pool:
        return self._by_kind[attempt.spec.kind]

    # --- attempts end --------------------------------------------------------------------------

    def _finished(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """An attempt that ran has ended."""
        if attempt.ending is not None or attempt.spec.is_watched:
            self._ends.over(attempt)
        self.planner.prefetch.finished(attempt.spec.kind)
        self._over(attempt)
        if outcome is not None and (self._is_verbose or outcome.kind is not SUCCEEDED):
            self._tools.journal.ended(attempt.job, outcome)
        self._settle(attempt, outcome)

    def _over(self, attempt: Attempt) -> None:
        attempt.is_over = True
        if self._gate.alone is not None:
            self._suspects.pump()

    def _settle(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if self._inflight.settle(attempt, outcome) and outcome is not None:
            self._stats.count(outcome.kind)
        self._wake()

    @property
    def is_hopeless(self) -> bool:
        """All that still runs is stuck."""
        attempts = list(self._inflight)
        return bool(attempts) and all(attempt.is_stuck for attempt in attempts)

    def _withdraw(self, attempt: Attempt) -> bool:
        if attempt.pool is None or not attempt.pool.withdraw(attempt):
            return False
        self._over(attempt)
        return True

    def cancel(self, ids: Sequence[str]) -> None:
        """Somebody wants these jobs cancelled."""
        for attempt in self._inflight.find(ids) if ids else ():
            if self._withdraw(attempt):
                self._settle(attempt, attempt.outcome(OutcomeKind.CANCELLED))
            else:
                self._inflight.tell(attempt.job.id)
                self._ends.interrupt(attempt, Ending.CANCEL)

    def drop(self, attempts: Sequence[Attempt]) -> None:
        """These belong to others now; whatever becomes of them, nobody wants to know."""
        for attempt in attempts:
            if not self._withdraw(attempt):
                self._ends.interrupt(attempt, Ending.LOST)
            self._settle(attempt, None)
        self._tools.stats.dropped += len(attempts)

    def forget(self) -> int:
        """The lease is lost: everything belongs to others now."""
        attempts = list(self._inflight)
        self.drop(attempts)
        self._inflight.clear()
        return len(attempts)

    # --- jobs go back --------------------------------------------------------------------------

    def tidy(self) -> None:
        """Give back what waited too long for a slot: somebody else may be free."""
        if not self._gate.is_trusted:
            return  # they wait for the lease, not for a slot
        late = self._tools.clock.monotonic() - self._tools.settings.patience
        for pool in self._by_kind.values():
            stale = [attempt for attempt in pool.waiting if attempt.taken_at < late]
            if self._release(stale, NO_SLOT):
                self.planner.prefetch.stalled()
        for attempt in self._suspects.waiting:
            is_next = attempt is self._gate.alone
            extra, hold = (QUIET_WITHIN, LOUD_HOLD) if is_next else (0.0, SUSPECT_HOLD)
            if attempt.taken_at + extra < late and self._withdraw(attempt):
                self._settle(attempt, _held(attempt.job, Hold.LIMIT, NOT_ALONE, hold))

    def drain(self) -> None:
        """Take nothing more; give back what has not started."""
        self.is_draining = True
        for pool in self._pools:
            self._release(pool.waiting, SHUT_DOWN)

    def _release(self, attempts: Sequence[Attempt], reason: str) -> int:
        withdrawn = [attempt for attempt in attempts if self._withdraw(attempt)]
        for attempt in withdrawn:
            self._settle(attempt, released(attempt, reason))
        return len(withdrawn)

    def end_all(self) -> None:
        """Time is up: stop what can be stopped."""
        for attempt in self._inflight:
            self._ends.interrupt(attempt, Ending.SHUTDOWN)

    def leave_all(self) -> None:
        """What did not end when it was stopped: give it back all the same, or see to it that it is
        given back when this process is dead.
        """
        parent, outcomes = self._tools.parent, []
        for attempt in self._inflight:
            outcome = self._runner.ended(attempt)
            if parent.settles and outcome is not None:
                outcomes.append(outcome)
                outcome = None
            self._settle(attempt, outcome)
            attempt.end(Ending.LOST)
        if outcomes:
            self.left_to_parent = True
            parent.settle_after_death(self._tools.worker(), outcomes)

    def given_back(self, attempts: Sequence[Attempt], verdicts: Sequence[Verdict | None]) -> None:
        """Somebody else has seized these attempts and given them back, as far as there is a
        verdict.
        """
        for attempt, verdict in zip(attempts, verdicts, strict=True):
            if attempt.pool is not None:
                attempt.pool.discard(attempt)
            self._ends.over(attempt)  # it may have been told to end meanwhile
            self._over(attempt)
            is_settled = verdict is not None and verdict is not Verdict.LATER
            self._settle(attempt, None if is_settled else released(attempt, WEDGED))
        self.planner.prefetch.stalled()

    @property
    def waiting(self) -> list[Attempt]:
        """What has not started and waits for a slot of the loop or a thread; any thread may ask."""
        return [attempt for pool in self._by_kind.values() for attempt in pool.waiting]

    # --- progress ------------------------------------------------------------------------------

    def reports(self) -> list[Report]:
        """What handlers have reported since the last time."""
        found = (attempt.context.take_report() for attempt in self._inflight)
        return [report for report in found if report is not None]

    def resend_reports(self) -> None:
        """The reports did not arrive."""
        for attempt in self._inflight:
            attempt.context.resend()


def released(attempt: Attempt, reason: str) -> Outcome:
    """The outcome of an attempt that has not started."""
    return attempt.outcome(OutcomeKind.RELEASED, reason)


def _held(job: Job, hold: Hold, cause: str, delay: float = 0.0) -> Outcome:
    return Outcome(
        job=job.id,
        attempt=job.attempt,
        kind=OutcomeKind.RELEASED,
        hold=hold,
        hold_cause=cause,
        delay=delay,
    )
