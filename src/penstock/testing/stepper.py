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
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context as Variables
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from msgspec.structs import replace

from penstock.clock import Clock
from penstock.context import Interrupted
from penstock.core.job import Hold, Job, Outcome, OutcomeKind
from penstock.core.spec import Spec
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Sighting, WorkerInfo
from penstock.testing.faults import Crash, Doom, Faults
from penstock.testing.runs import Failure, Run
from penstock.worker.child.process import crashed
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.runner import Runner

# --- places -------------------------------------------------------------------------------------
#
# Where a sandbox runs handlers: in the calling thread, or on the calling loop.
#
# ``Here`` never waits for anything but the handler itself, so a thread can take the whole drain in
# one step: sync handlers are called by it, async ones run on a loop of the sandbox. ``OnLoop`` lets
# async handlers run on the loop of the test and sync ones in a thread beside it.
#
# A task's ``timeout`` counts real seconds here: a handler that hangs ends as it would in a worker.


T = TypeVar("T")


class Place(Protocol):
    """Where attempts run."""

    async def run(self, runner: Runner, attempt: Attempt) -> Outcome | None:
        """Run one attempt to its end."""

    async def enter(self, stay: Stay) -> None:
        """Begin what surrounds the attempts."""

    async def leave(self, stay: Stay) -> None:
        """End it."""


class Stay:
    """What surrounds the attempts: begun and ended by one task, as hooks with a task group or a
    time limit need it. What it sets in ``variables`` async handlers see, as in a worker.
    """

    def __init__(self, life: AbstractAsyncContextManager[None]) -> None:
        self.variables = Variables()
        self._life = life
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin, on this loop. On failure: what the beginning raises; there is no end to it."""
        loop = asyncio.get_running_loop()
        begun = loop.create_future()
        self._task = task = loop.create_task(self._live(begun), context=self.variables)
        try:
            await asyncio.wait([begun, task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if task.done():
            await task

    async def end(self) -> None:
        """End, on the same loop."""
        assert self._task is not None
        self._over.set()
        await self._task

    async def _live(self, begun: asyncio.Future[None]) -> None:
        async with self._life:
            begun.set_result(None)
            await self._over.wait()


def taken(work: Coroutine[Any, Any, T]) -> T:
    """Take a coroutine that never waits to its end, in this thread."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("something waited in a sandbox that runs in one thread")


class Here:
    """The thread that drains, with a loop of the sandbox for what is async."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._variables = Variables()

    def close(self) -> None:
        """Let the loop go, and cancel what handlers have left on it."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the sandbox's loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        task = self._loop.create_task(work, context=self._variables.copy())
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # Ctrl-C, while it waited
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task]))
            raise

    async def run(self, runner: Runner, attempt: Attempt) -> Outcome | None:
        if attempt.spec.is_async:
            return self.wait(attended(runner, attempt))
        return called(runner, attempt)

    async def enter(self, stay: Stay) -> None:
        self.wait(stay.begin())
        self._variables = stay.variables

    async def leave(self, stay: Stay) -> None:
        self._variables = Variables()
        self.wait(stay.end())


class OnLoop:
    """The loop that drains, with a thread for what is sync.

    ``outside`` is called before it waits for something that is not on the loop.
    """

    def __init__(self, threads: Executor, outside: Callable[[], None]) -> None:
        self._threads = threads
        self._outside = outside
        self._variables = Variables()

    async def run(self, runner: Runner, attempt: Attempt) -> Outcome | None:
        loop = asyncio.get_running_loop()
        work: asyncio.Future[Outcome | None]
        if attempt.spec.is_async:
            work = loop.create_task(attended(runner, attempt), context=self._variables.copy())
        else:
            work = loop.run_in_executor(self._threads, called, runner, attempt)
            self._outside()
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                stop(attempt, Ending.LOST)
                await asyncio.wait([work])
            raise

    async def enter(self, stay: Stay) -> None:
        await stay.begin()
        self._variables = stay.variables

    async def leave(self, stay: Stay) -> None:
        await stay.end()


class Guided(OnLoop):
    """As ``OnLoop``, but async handlers run inside the very coroutine that awaits them, so that
    whoever leads that one leads them too.
    """

    async def run(self, runner: Runner, attempt: Attempt) -> Outcome | None:
        if attempt.spec.is_async:
            return await attended(runner, attempt)
        return await super().run(runner, attempt)


async def attended(runner: Runner, attempt: Attempt) -> Outcome | None:
    """Run an async attempt in this task, for as long as it may."""
    loop, limit = asyncio.get_running_loop(), attempt.spec.timeout
    attempt.task = asyncio.current_task()
    alarm = None
    if limit is not None:
        alarm = loop.call_later(limit, stop, attempt, Ending.TIMEOUT)
    try:
        return await runner.run(attempt)
    finally:
        task, attempt.task = attempt.task, None
        if alarm is not None:
            alarm.cancel()
        if attempt.ending is Ending.TIMEOUT or attempt.ending is Ending.CANCEL:
            while task is not None and task.cancelling():
                task.uncancel()


def called(runner: Runner, attempt: Attempt) -> Outcome | None:
    """Run a sync attempt in this thread, for as long as it may."""
    with _alarm(attempt):
        return runner.call(attempt)


@contextmanager
def _alarm(attempt: Attempt) -> Iterator[None]:
    limit = attempt.spec.timeout
    if limit is None:
        yield
        return
    alarm = threading.Timer(limit, stop, (attempt, Ending.TIMEOUT))
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def stop(attempt: Attempt, ending: Ending, *, hits: bool = True) -> None:
    """Ask an attempt to end, as its worker would; a thread that is only asked may go on."""
    attempt.end(ending)
    if hits:
        attempt.guard.interrupt()
    task = attempt.task
    if task is not None and not attempt.is_cleaning:
        task.get_loop().call_soon_threadsafe(task.cancel)


# --- stepper ------------------------------------------------------------------------------------


RESCUE_BATCH: Final = 1000
NAME: Final = "sandbox-"
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
class Death:
    """A worker that died, and when its jobs are rescued."""

    worker: str
    rescued_at: float


class Witness(Runner):
    """A runner that keeps the exceptions themselves; chance has no say in when a retry comes."""

    def __init__(self, now: Callable[[], float], worker: Callable[[], str]) -> None:
        super().__init__(now, worker, chance=lambda: 0.0)
        self.seen: dict[tuple[str, int], tuple[BaseException, OutcomeKind]] = {}

    def _bad(
        self,
        attempt: Attempt,
        error: BaseException,
        kind: OutcomeKind,
        reason: str,
        delay: float = 0.0,
    ) -> Outcome:
        self.seen[attempt.key] = (error, kind)
        return super()._bad(attempt, error, kind, reason, delay)


class Stepper:
    """One such worker on a memory store. ``engine`` must be one whose calls never wait."""

    def __init__(
        self,
        engine: Engine,
        specs: Mapping[str, Spec],
        clock: Clock,
        lease: float,
        faults: Faults,
        deaths: list[Death],
    ) -> None:
        self._engine = engine
        self._specs = specs
        self._clock = clock
        self._lease = lease
        self._faults = faults
        self._deaths = deaths
        self._turn = 0
        self.worker = _new_name()
        self._runner = Witness(clock.now, lambda: self.worker)

    async def join(self) -> None:
        """Have a lease, and say anew what is known here: tasks may be declared at any time."""
        await self._engine.join(
            WorkerInfo(id=self.worker, tasks=tuple(self._specs), pid=os.getpid(), slots=1)
        )

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
                    attempt=job.attempt,
                    kind=OutcomeKind.RELEASED,
                    hold=Hold.UNKNOWN_TASK,
                    hold_cause=job.task,
                )
            )
        return None

    async def run(self, attempt: Attempt, place: Place) -> Run:
        """Run an attempt to its end, whatever that is, and settle it."""
        job, at = attempt.job, self._clock.now()
        if job.crashes > 0:
            await self._engine.exchange(Ask(worker=self.worker, begun=(attempt.key,)))
        doom = Doom(self._faults.take(job.task), attempt)
        if doom.dies_first:
            return await self._die(attempt, at)
        attempt.spec = doom.spec()
        attempt.seize()
        attempt.started_at = self._clock.monotonic()
        outcome = await place.run(self._runner, attempt)
        await self._report(attempt)
        error, kind = self._runner.seen.pop(attempt.key, (None, None))
        if doom.died():
            return await self._die(attempt, at)
        failure = None
        if error is not None:
            failure = Failure(job, error, kind is OutcomeKind.FAILED, at)
        if outcome is None or isinstance(error, KeyboardInterrupt):
            outcome = attempt.outcome(OutcomeKind.RELEASED)
        await self._settle(outcome)
        if error is not None and not isinstance(error, _OF_ATTEMPTS):
            raise error
        return Run(await self._now_of(job), outcome.kind, at, failure, doom.is_injected)

    async def give_back(self, attempt: Attempt) -> None:
        """Release an attempt that has not started."""
        await self._settle(attempt.outcome(OutcomeKind.RELEASED))

    async def rescue(self) -> None:
        """Take the jobs of workers that died a lease ago."""
        now = self._clock.now()
        over = [death for death in self._deaths if death.rescued_at <= now]
        for death in over:
            self._deaths.remove(death)
            while await self._engine.rescue([Sighting(death.worker, 0)], RESCUE_BATCH):
                pass

    async def _die(self, attempt: Attempt, at: float) -> Run:
        if attempt.job.crashes > 0 or attempt.spec.isolation is not None:
            how = "was killed, because the test says so"
            await self._settle(crashed(attempt, how, at, self.worker))
        else:
            self._deaths.append(Death(self.worker, at + self._lease))
            self.worker = _new_name()
            await self.join()
        return Run(await self._now_of(attempt.job), OutcomeKind.CRASHED, at, None, True)

    async def _report(self, attempt: Attempt) -> None:
        report = attempt.context.take_report()
        if report is not None:
            await self._engine.progress(self.worker, [report])

    async def _settle(self, outcome: Outcome) -> None:
        if outcome.is_settled:
            # A store in memory knows nothing of the transaction that the test has lent.
            outcome = replace(outcome, is_settled=False)
        await self._engine.exchange(Ask(worker=self.worker, outcomes=(outcome,)))

    async def _now_of(self, job: Job) -> Job:
        (found,) = await self._engine.get([job.id])
        return found or job


def _new_name() -> str:
    return f"{NAME}{os.getpid()}-{os.urandom(4).hex()}"
