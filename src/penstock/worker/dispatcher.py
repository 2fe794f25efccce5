"""Hands claimed jobs to the pools that run them, and collects the outcomes.

Everything here happens on the worker's loop and never waits: what the store says comes in by one
side (``take``, ``cancel``, ``forget``), outcomes go into ``inflight`` on the other.

A job that was in a crash is a *suspect*: its next attempt runs alone in a child process, or, if no
child can import its task, in this process while nothing else runs. A crash charges all suspects
that a worker has, so those that find no room go back under a hold.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from penstock.clock import Clock
from penstock.core.job import SUCCEEDED, Hold, Job, Outcome, OutcomeKind, Verdict
from penstock.core.spec import KINDS, Kind, Spec
from penstock.worker.async_pool import AsyncPool
from penstock.worker.child.find_task import NotImportable, locate
from penstock.worker.deadlines import Deadlines
from penstock.worker.inflight import Attempt, Ending, Inflight
from penstock.worker.log import WorkerLog
from penstock.worker.lone_attempts import LonePool
from penstock.worker.pool import Pool, StartGate
from penstock.worker.prefetch import Demand, DemandPlanner, Room
from penstock.worker.process_pool import ProcessPool
from penstock.worker.runner import SHUT_DOWN, Runner
from penstock.worker.settings import WorkerSettings
from penstock.worker.status import Parent, Stats, StoreTime
from penstock.worker.thread_pool import ThreadPool

NO_SLOT: Final = "no slot was free"

WEDGED: Final = "the loop of its worker did not come round"

NOT_ALONE: Final = "after a crash a job runs apart from all others, and another one does"

SUSPECT_HOLD: Final = 1.0
"""Seconds before a suspect that found no room is offered again."""

QUIET_WITHIN: Final = 10.0
"""Seconds for which nothing else starts so that a suspect can be alone; then it goes back."""

LOUD_HOLD: Final = 30.0
"""Seconds before such a suspect is offered again, while others get their turn."""

SUSPECT_IDLE: Final = 10.0
"""Seconds after which children that no suspect needs are let go."""


class Dispatcher:
    """All attempts of one worker, wherever they run.

    ``worker`` is the worker's present id; ``wake`` is called when there is something to send, or
    room for more.
    """

    def __init__(
        self,
        specs: Mapping[str, Spec],
        settings: WorkerSettings,
        *,
        clock: Clock,
        gate: StartGate,
        worker: Callable[[], str],
        stats: Stats,
        log: WorkerLog,
        parent: Parent,
        wake: Callable[[], None],
    ) -> None:
        self.inflight = Inflight(clock.monotonic)
        self.time = time = StoreTime(clock)
        self.stats = stats
        self._specs = specs
        self._settings = settings
        self._clock = clock
        self._gate = gate
        self._worker = worker
        self._log = log
        self._parent = parent
        self._wake = wake
        self._is_verbose = log.is_verbose
        self._runner = Runner(time.now, worker)
        self._deadlines = Deadlines(clock, settings, log, parent)
        common = (self._runner, gate, clock, self._deadlines.begun, self._finished)
        self._slots = AsyncPool(settings.concurrency, *common, settings.reserve)
        self._by_kind: dict[Kind, Pool] = {
            "async": self._slots,
            "sync": ThreadPool(settings.threads, *common, settings.reserve),
            "process": ProcessPool(
                settings.children,
                *common,
                settings.reserve,
                worker=worker,
                time=time,
                crash_limit=settings.crash_limit,
                max_jobs=settings.max_jobs,
            ),
        }
        self._suspects = ProcessPool(
            settings.children,
            *common,
            worker=worker,
            time=time,
            crash_limit=settings.crash_limit,
            idle=SUSPECT_IDLE,
            starting=lambda attempt: self._log_suspect(attempt, "in a child process"),
            unfit=self._run_alone,
        )
        others = (*self._by_kind.values(), self._suspects)
        self._lone = LonePool(gate, others, self._pool_of, self._announce)
        self._pools: tuple[Pool, ...] = (*others, self._lone)
        self.planner = DemandPlanner(specs, settings, gate, self.inflight, self._by_kind)
        self.is_draining = False
        self.left_to_parent = False
        """Something is left to be settled when this process is dead, under its lease."""

    def lives(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run so that attempts can: slots, deadlines, and what runs alone."""
        slots = [self._slots.serve() for _ in range(self._slots.size)]
        return [*slots, self._lone.serve(), self._deadlines.run()]

    def close(self) -> None:
        """Let everything end, and drop its outcomes. Call it before the tasks are cancelled."""
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
        return sum(attempt.started_at is not None for attempt in self.inflight)

    # --- jobs come in --------------------------------------------------------------------------

    def take(self, jobs: Sequence[Job]) -> dict[Kind, int]:
        """Hand claimed jobs out, most urgent first; return how many of each kind there were."""
        now = self._clock.monotonic()
        by_kind: dict[Kind, list[Attempt]] = {kind: [] for kind in KINDS}
        spec_of, take = self._specs.get, self.inflight.take
        for job in jobs:
            spec = spec_of(job.task)
            if spec is None:
                self._hold_unknown(job)
                continue
            attempt = take(job, spec, now)
            if self.is_draining:
                self._settle(attempt, released(attempt, SHUT_DOWN))
            elif job.crashes == 0:
                attempt.pool = self._by_kind[spec.kind]
                by_kind[spec.kind].append(attempt)
            else:
                self._take_suspect(attempt)
        self.stats.claimed += len(jobs)
        for kind, attempts in by_kind.items():
            if attempts:
                self._by_kind[kind].put(attempts)
                self._return_surplus(kind, len(attempts))
        return {kind: len(attempts) for kind, attempts in by_kind.items()}

    def _return_surplus(self, kind: Kind, taken: int) -> None:
        """Give back at once what is more than a kind can take: the mix was not as expected."""
        pool = self._by_kind[kind]
        surplus = min(taken, pool.load - pool.size - self.planner.prefetch.ahead(kind))
        if surplus > 0:
            self._release(pool.waiting[-surplus:], NO_SLOT)

    def _take_suspect(self, attempt: Attempt) -> None:
        if self._suspects.load + self._lone.load > self._suspects.size:
            self._settle(attempt, _held(attempt.job, Hold.LIMIT, NOT_ALONE, SUSPECT_HOLD))
            return
        if attempt.spec.kind != "process":
            location = locate(attempt.spec.function)
            if isinstance(location, NotImportable):
                self._run_alone(attempt, location.why)
                return
            if location.script is not None:
                why = "only a task with isolation='process' has its script run again"
                self._run_alone(attempt, why)
                return
        attempt.pool = self._suspects
        self._suspects.put([attempt])

    def _run_alone(self, attempt: Attempt, why: str) -> None:
        self._log_suspect(attempt, f"alone in this process ({why})")
        attempt.pool = self._lone
        self._lone.put([attempt])

    def _log_suspect(self, attempt: Attempt, where: str) -> None:
        job = attempt.job
        self._log.warning("suspect", job=job.id, task=job.task, crashes=job.crashes, runs=where)

    def _hold_unknown(self, job: Job) -> None:
        """The job waits until a worker joins that has its task."""
        self.planner.unknown.add(job.task)
        self.inflight.add(_held(job, Hold.UNKNOWN_TASK, job.task))
        self.stats.count(OutcomeKind.RELEASED)
        self._log.unknown_task(job.task, self._specs)

    def _announce(self, attempt: Attempt) -> None:
        self.inflight.announce(attempt)
        self._wake()

    def _pool_of(self, attempt: Attempt) -> Pool:
        return self._by_kind[attempt.spec.kind]

    # --- attempts end --------------------------------------------------------------------------

    def _finished(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if attempt.ending is not None or attempt.spec.is_watched:
            self._deadlines.forget(attempt)
        self.planner.prefetch.finished(attempt.spec.kind)
        self._over(attempt)
        if outcome is not None and (self._is_verbose or outcome.kind is not SUCCEEDED):
            self._log.attempt_ended(attempt.job, outcome)
        self._settle(attempt, outcome)

    def _over(self, attempt: Attempt) -> None:
        attempt.is_over = True
        if self._gate.alone is not None:
            self._lone.pump()

    def _settle(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if self.inflight.settle(attempt, outcome) and outcome is not None:
            self.stats.count(outcome.kind)
        self._wake()

    @property
    def is_hopeless(self) -> bool:
        """All that still runs is stuck."""
        attempts = list(self.inflight)
        return bool(attempts) and all(attempt.is_stuck for attempt in attempts)

    def _withdraw(self, attempt: Attempt) -> bool:
        if attempt.pool is None or not attempt.pool.withdraw(attempt):
            return False
        self._over(attempt)
        return True

    def cancel(self, ids: Sequence[str]) -> None:
        """These jobs are to be cancelled."""
        for attempt in self.inflight.find(ids) if ids else ():
            if self._withdraw(attempt):
                self._settle(attempt, attempt.outcome(OutcomeKind.CANCELLED))
            else:
                self.inflight.tell(attempt.job.id)
                self._deadlines.interrupt(attempt, Ending.CANCEL)

    def drop(self, attempts: Sequence[Attempt]) -> None:
        """These belong to other workers now: their outcomes are dropped."""
        for attempt in attempts:
            if not self._withdraw(attempt):
                self._deadlines.interrupt(attempt, Ending.LOST)
            self._settle(attempt, None)
        self.stats.dropped += len(attempts)

    def forget(self) -> int:
        """The lease is lost: everything belongs to others now."""
        attempts = list(self.inflight)
        self.drop(attempts)
        self.inflight.clear()
        return len(attempts)

    # --- jobs go back --------------------------------------------------------------------------

    def tidy(self) -> None:
        """Give back what waited too long for a slot: another worker may have one."""
        if not self._gate.is_trusted:
            return  # they wait for the lease, not for a slot
        late = self._clock.monotonic() - self._settings.patience
        for pool in self._by_kind.values():
            stale = [attempt for attempt in pool.waiting if attempt.taken_at < late]
            if self._release(stale, NO_SLOT):
                self.planner.prefetch.stalled()
        for attempt in (*self._suspects.waiting, *self._lone.waiting):
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
        for attempt in self.inflight:
            self._deadlines.interrupt(attempt, Ending.SHUTDOWN)

    def leave_all(self) -> None:
        """What did not end when it was stopped: give it back all the same, or see to it that it is
        given back when this process is dead.
        """
        outcomes = []
        for attempt in self.inflight:
            outcome = self._runner.ended(attempt)
            if outcome is not None:
                self._log.attempt_ended(attempt.job, outcome)
            if self._parent.settles and outcome is not None:
                outcomes.append(outcome)
                outcome = None
            self._settle(attempt, outcome)
            attempt.end(Ending.LOST)
        if outcomes:
            self.left_to_parent = True
            self._parent.settle_after_death(self._worker(), outcomes)

    def given_back(self, attempts: Sequence[Attempt], verdicts: Sequence[Verdict | None]) -> None:
        """The watchdog has seized these attempts and given them back, as far as there is a
        verdict.
        """
        for attempt, verdict in zip(attempts, verdicts, strict=True):
            if attempt.pool is not None:
                attempt.pool.discard(attempt)
            self._deadlines.forget(attempt)  # it may have been told to end meanwhile
            self._over(attempt)
            is_settled = verdict is not None and verdict is not Verdict.LATER
            self._settle(attempt, None if is_settled else released(attempt, WEDGED))
        self.planner.prefetch.stalled()

    @property
    def waiting(self) -> list[Attempt]:
        """What has not started and waits for a slot of the loop or a thread; any thread may ask."""
        return [attempt for pool in self._by_kind.values() for attempt in pool.waiting]


def released(attempt: Attempt, reason: str) -> Outcome:
    """The outcome of a job whose attempt has not started."""
    return replace(attempt.outcome(OutcomeKind.RELEASED, reason), has_begun=False)


def _held(job: Job, hold: Hold, cause: str, delay: float = 0.0) -> Outcome:
    return Outcome(
        job=job.id,
        claim=job.claim,
        kind=OutcomeKind.RELEASED,
        has_begun=False,
        hold=hold,
        hold_cause=cause,
        delay=delay,
    )
