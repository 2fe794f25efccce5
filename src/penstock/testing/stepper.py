"""A worker that does one thing when it is told: claim, run, settle, die.

It keeps the contract as a real worker does, through the same verbs, and runs attempts with the same
``Runner``. What it leaves out is what takes time or processes of its own: beats, leading, children.
If a test lets the process of an attempt die, that one

| is                                     | and the job                                            |
|----------------------------------------|--------------------------------------------------------|
| the worker itself                      | is rescued when the lease has run out, by the virtual  |
|                                        | clock; the worker goes on under another name           |
| a child, because the job was in a      | is ready again at once, as its worker lives to tell    |
| crash before or runs isolated          |                                                        |
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from penstock.clock import Clock
from penstock.context import Interrupted
from penstock.core.job import Hold, Outcome, OutcomeKind
from penstock.core.spec import Spec
from penstock.engines import changes
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Sighting, WorkerInfo
from penstock.job import Job, shown
from penstock.testing.execution import Execution
from penstock.testing.faults import Crash, InjectedFault, TaskFaults
from penstock.testing.runs import Failure, Run
from penstock.worker.child.process import crashed
from penstock.worker.exchange import failure_callbacks
from penstock.worker.inflight import Attempt
from penstock.worker.runner import Runner

RESCUE_BATCH: Final = 1000
NAME_PREFIX: Final = "sandbox-"
"""How the names of these workers begin."""

_OF_ATTEMPTS: Final = (
    Exception,
    asyncio.CancelledError,
    Crash,
    GeneratorExit,
    Interrupted,
    SystemExit,
)
"""What a handler may raise without stopping the test that runs it."""


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """A worker that died, and when its jobs are rescued."""

    worker: str
    rescued_at: float


class RecordingRunner(Runner):
    """A runner that keeps the exceptions themselves; chance has no say in when a retry comes."""

    def __init__(self, now: Callable[[], float], worker: Callable[[], str]) -> None:
        super().__init__(now, worker, chance=lambda: 0.0)
        self.seen: dict[tuple[str, int], tuple[BaseException, OutcomeKind]] = {}

    def _bad(
        self, attempt: Attempt, error: BaseException, kind: OutcomeKind, delay: float = 0.0
    ) -> Outcome:
        self.seen[attempt.key] = (error, kind)
        return super()._bad(attempt, error, kind, delay)


class Stepper:
    """One such worker on a memory store. ``engine`` must be one whose calls never wait."""

    def __init__(
        self,
        engine: Engine,
        specs: Mapping[str, Spec],
        clock: Clock,
        lease: float,
        faults: TaskFaults,
        deaths: list[WorkerDeath],
    ) -> None:
        self._engine = engine
        self._specs = specs
        self._clock = clock
        self._lease = lease
        self._faults = faults
        self._deaths = deaths
        self._turn = 0
        self.worker = _new_name()
        self._runner = RecordingRunner(clock.now, lambda: self.worker)

    async def join(self) -> None:
        """Have a lease, and say anew what is known here: tasks may be declared at any time."""
        await self._engine.join(
            WorkerInfo(
                id=self.worker,
                tasks=tuple(self._specs),
                pid=os.getpid(),
                slots=1,
                callbacks=failure_callbacks(self._specs),
            )
        )
        await changes.lift_known(self._engine, tuple(self._specs))

    async def leave(self) -> None:
        """Give the lease back."""
        await self._engine.leave(self.worker)

    async def claim(self, queues: tuple[str, ...]) -> Attempt | None:
        """The next attempt that is due in these queues; None: there is none."""
        while queues:
            self._turn += 1
            first = self._turn % len(queues)
            ask = Ask(worker=self.worker, queues=queues[first:] + queues[:first], want=1, slots=1)
            reply = await self._engine.exchange(ask)
            if not reply.jobs:
                return None
            (job,) = reply.jobs
            if (spec := self._specs.get(job.task)) is not None:
                return Attempt(job, spec, self._turn, self._clock.monotonic())
            await self._settle(
                Outcome(
                    job=job.id,
                    claim=job.claim,
                    kind=OutcomeKind.RELEASED,
                    has_begun=False,
                    hold=Hold.UNKNOWN_TASK,
                    hold_cause=job.task,
                )
            )
        return None

    async def run(self, attempt: Attempt, execution: Execution) -> Run:
        """Run an attempt to its end, whatever that is, and settle it."""
        job, at = attempt.job, self._clock.now()
        if job.crashes > 0:
            await self._engine.exchange(Ask(worker=self.worker, begun=(attempt.key,)))
        injected = InjectedFault(self._faults.take(job.task), attempt)
        if injected.dies_first:
            return await self._die(attempt, at)
        attempt.spec = injected.spec()
        attempt.seize()
        attempt.started_at = self._clock.monotonic()
        outcome = await execution.run(self._runner, attempt)
        await self._report(attempt)
        error, kind = self._runner.seen.pop(attempt.key, (None, None))
        if injected.died():
            return await self._die(attempt, at)
        failure = None
        if error is not None:
            seen = shown(job, attempt.spec.signature)
            failure = Failure(seen, error, kind is OutcomeKind.FAILED, at)
        if outcome is None or isinstance(error, KeyboardInterrupt):
            outcome = attempt.outcome(OutcomeKind.RELEASED)
        outcome = self._runner.followed(attempt, outcome)
        await self._settle(outcome)
        if error is not None and not isinstance(error, _OF_ATTEMPTS):
            raise error
        return Run(await self._now_of(attempt), outcome.kind, at, failure, injected.is_asked_for)

    async def give_back(self, attempt: Attempt) -> None:
        """Release a job whose attempt has not started."""
        await self._settle(replace(attempt.outcome(OutcomeKind.RELEASED), has_begun=False))

    async def rescue(self) -> None:
        """Take the jobs of workers that died a lease ago."""
        now = self._clock.now()
        over = [dead for dead in self._deaths if dead.rescued_at <= now]
        for dead in over:
            self._deaths.remove(dead)
            while await changes.rescue(self._engine, [Sighting(dead.worker, 0)], RESCUE_BATCH):
                pass

    async def _die(self, attempt: Attempt, at: float) -> Run:
        if attempt.job.crashes > 0 or attempt.spec.isolation is not None:
            how = "was killed, because the test says so"
            outcome = crashed(attempt, how, at, self.worker)
            await self._settle(self._runner.followed(attempt, outcome))
        else:
            self._deaths.append(WorkerDeath(self.worker, at + self._lease))
            self.worker = _new_name()
            await self.join()
        return Run(await self._now_of(attempt), OutcomeKind.CRASHED, at, None, True)

    async def _report(self, attempt: Attempt) -> None:
        report = attempt.context.take_report(is_last=True)
        if report is not None:
            await self._engine.exchange(Ask(worker=self.worker, reports=(report,)))

    async def _settle(self, outcome: Outcome) -> None:
        if outcome.is_settled:
            # A store in memory knows nothing of the transaction that the test has lent.
            outcome = replace(outcome, is_settled=False)
        await self._engine.exchange(Ask(worker=self.worker, outcomes=(outcome,)))

    async def _now_of(self, attempt: Attempt) -> Job[Any]:
        (found,) = await self._engine.get([attempt.job.id])
        return shown(found or attempt.job, attempt.spec.signature)


def _new_name() -> str:
    return f"{NAME_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
