"""Where suspects run: jobs that were in a crash, each in a child process of its own.

A job that was in a crash and then kills the child in which it is alone has proven to be the killer:
it ends failed at once, with the way its process died as the reason. The others of the same crash
run through their children unharmed.

A task that a child cannot import (declared in ``__main__`` or inside a function) runs in this
process instead, but alone: it waits until nothing else runs, and nothing else starts until it has
ended. If it kills the process, only its own crashes are counted: the store knows before it starts,
while the death of a worker is no fault of what it has in children. If something else runs for long,
the crew takes it back for a while: one suspect must not keep everybody waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.clock import Clock
from penstock.core.job import ErrorRecord, Outcome, OutcomeKind
from penstock.worker.attempt import Attempt, Ending
from penstock.worker.child_frames import Ended, Request, Unfit
from penstock.worker.child_process import ChildProcess, died
from penstock.worker.gate import Gate
from penstock.worker.journal import Journal
from penstock.worker.line import Line
from penstock.worker.pool import Pool
from penstock.worker.runner import Runner
from penstock.worker.store_time import StoreTime

START_UP: Final = 60.0
"""Seconds that a child may take to reach the task."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What suspects need to know of their worker."""

    worker: Callable[[], str]
    pools: tuple[Pool, ...]
    """Where everything else runs."""
    pool_of: Callable[[Attempt], Pool]
    """Where this attempt would run if it were no suspect."""
    announce: Callable[[Attempt], None]
    """Let the store know that this attempt is about to start."""
    time: StoreTime
    clock: Clock
    journal: Journal


class Suspects:
    """A pool of ``size`` child processes.

    There is room for one more that is next. A crash charges all suspects in a worker's hands, so
    those that find no room go back under a hold.
    """

    def __init__(
        self,
        size: int,
        runner: Runner,
        gate: Gate,
        around: Surroundings,
        begun: Callable[[Attempt], None],
        finished: Callable[[Attempt, Outcome | None], None],
    ) -> None:
        self.size = size
        self._runner = runner
        self._gate = gate
        self._around = around
        self._begun = begun
        self._finished = finished
        self._line = Line()
        self._taken: set[Attempt] = set()
        self._children: dict[Attempt, ChildProcess] = {}
        self._changed = asyncio.Event()
        self._only_one = asyncio.Lock()

    @property
    def load(self) -> int:
        """Attempts that wait or run here, or run alone in this process."""
        return len(self._line) + len(self._taken)

    @property
    def has_room(self) -> bool:
        """One more may come."""
        return self.load <= self.size

    @property
    def is_quiet(self) -> bool:
        """No child runs; a suspect that runs alone is in another pool."""
        return not self._children

    @property
    def waiting(self) -> list[Attempt]:
        """Those that have not started, the next one first."""
        return [*(each for each in self._taken if each.started_at is None), *self._line]

    def put(self, attempts: Sequence[Attempt]) -> None:
        """Let suspects run, each when there is room."""
        self._line.add(attempts)
        self.pump()

    def put_first(self, attempt: Attempt) -> None:
        """Let this one be the next."""
        self._line.add_first(attempt)
        self.pump()

    def pump(self) -> None:
        """Something has changed: the gate, the line, or what runs elsewhere."""
        self._changed.set()

    def withdraw(self, attempt: Attempt) -> bool:
        """Take out an attempt that waits; False: it has started."""
        waits_alone = attempt in self._taken and attempt.started_at is None
        return waits_alone or self._line.remove(attempt)

    def interrupt(self, attempt: Attempt) -> None:
        """Kill the child; one that waits to be alone is told."""
        if (child := self._children.get(attempt)) is not None:
            child.kill()
        self.pump()

    def close(self) -> None:
        """Kill the children; nobody wants to know how they end."""
        for attempt, child in self._children.items():
            attempt.end(Ending.LOST)
            child.kill()

    async def serve(self) -> None:
        """Run suspects, one after the other; called once for each of ``size``."""
        while True:
            while not self._line or not self._gate.admits(self._line.head):
                await self._change()
            attempt = self._line.take()
            self._taken.add(attempt)
            try:
                unfit = await self._run_in_child(attempt)
                if unfit is not None:
                    async with self._only_one:
                        await self._run_alone(attempt, unfit)
            finally:
                self._taken.discard(attempt)
                self.pump()

    # --- in a child ----------------------------------------------------------------------------

    async def _run_in_child(self, attempt: Attempt) -> Unfit | None:
        """Run it to its end; or say why it cannot be run in a child."""
        module, qualname = _place_of(attempt.spec.function)
        if module is None or qualname is None:
            return Unfit(f"{attempt.spec.name} is declared where nobody can import it from")
        self._say(attempt, "in a child process")
        clock = self._around.clock
        attempt.started_at = clock.monotonic()
        was_reported, attempt.is_reported = attempt.is_reported, True
        began = asyncio.Event()
        child = self._children[attempt] = ChildProcess(attempt, began.set)
        request = Request(
            job=attempt.job,
            module=module,
            qualname=qualname,
            worker=self._around.worker(),
            ahead=self._around.time.now() - clock.now(),
        )
        try:
            answer = await self._watched(attempt, child, request, began)
        finally:
            del self._children[attempt]
            self.pump()
        if isinstance(answer, Unfit) and attempt.ending is None:
            attempt.started_at = None
            attempt.is_reported = was_reported
            return answer
        self._finished(attempt, self._outcome(attempt, answer))
        return None

    async def _watched(
        self, attempt: Attempt, child: ChildProcess, request: Request, began: asyncio.Event
    ) -> Unfit | Ended | int:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch(attempt, child, began))
            try:
                return await child.run(request)
            finally:
                watch.cancel()

    async def _watch(self, attempt: Attempt, child: ChildProcess, began: asyncio.Event) -> None:
        """The timeout counts from the moment the handler is called; getting there has its own."""
        if not await self._around.clock.wait(began, START_UP):
            child.kill()
            return
        attempt.started_at = self._around.clock.monotonic()
        if attempt.spec.timeout is not None:
            self._begun(attempt)

    def _outcome(self, attempt: Attempt, answer: Unfit | Ended | int) -> Outcome | None:
        if attempt.ending is Ending.LOST:
            return None
        match answer:
            case Ended(outcome):
                return outcome
            case int(code) if attempt.ending is None:
                return self._killer(attempt, code)
            case _:
                return self._runner.ended(attempt)

    def _killer(self, attempt: Attempt, code: int) -> Outcome:
        job = attempt.job
        crashes = "a crash" if job.crashes == 1 else f"{job.crashes} crashes"
        return Outcome(
            job=job.id,
            attempt=job.attempt,
            kind=OutcomeKind.FAILED,
            reason=f"killed its own process ({died(code)}) after {crashes}",
            error=ErrorRecord(
                attempt=job.attempt,
                at=self._around.time.now(),
                kind="crash",
                message=f"the child process {died(code)} during this attempt",
                worker=self._around.worker(),
            ),
        )

    # --- alone in this process -----------------------------------------------------------------

    async def _run_alone(self, attempt: Attempt, unfit: Unfit) -> None:
        """Run it in this process while nothing else does."""
        self._say(attempt, f"alone in this process ({unfit.why})")
        self._gate.alone = attempt
        others = (*self._around.pools, self)
        try:
            while not attempt.is_over and not all(pool.is_quiet for pool in others):
                await self._change()
                if attempt.ending is not None and not attempt.is_over:
                    self._finished(attempt, self._runner.ended(attempt))
            if not attempt.is_over:
                self._around.announce(attempt)
            while not attempt.is_over and not attempt.is_reported:
                await self._change()
            if not attempt.is_over:
                attempt.pool = self._around.pool_of(attempt)
                attempt.pool.put_first(attempt)
            while not attempt.is_over:
                await self._change()
        finally:
            self._gate.alone = None
            for pool in others:
                pool.pump()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _say(self, attempt: Attempt, where: str) -> None:
        job = attempt.job
        self._around.journal.suspect(job.id, job.task, job.crashes, where)


def _place_of(function: Callable[..., object]) -> tuple[str | None, str | None]:
    """Module and qualified name by which a child can import a function; None: it cannot."""
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if module in (None, "__main__", "__mp_main__") or not qualname or "<locals>" in qualname:
        return None, None
    return module, qualname
