"""Where suspects run: jobs that were in a crash, each alone in a child process.

A job that was in a crash and then kills the child in which it is alone was in one more crash, until
the limit of crashes ends it. The others of the same crash run through their children unharmed. A
child that has survived one suspect runs the next: after a crash there may be hundreds.

A task that a child cannot import (declared in ``__main__`` or inside a function) runs in this
process instead, but alone: it waits until nothing else runs, and nothing else starts until it has
ended. If it kills the process, only its own crashes are counted: the store knows before it starts,
while the death of a worker is no fault of what it has in children. If something else runs for long,
the crew takes it back for a while: one suspect must not keep everybody waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from penstock.core.job import Outcome
from penstock.errors import CannotIsolate, MemoryExceeded
from penstock.worker.child.find_task import NotImportable, TaskLocation, locate
from penstock.worker.child.messages import AttemptEnded, CannotRun, RunAttempt
from penstock.worker.child.process import ChildDied, ChildProcess, crashed, talk
from penstock.worker.error_record import summary_of
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.log import Journal
from penstock.worker.pool import AttemptQueue, Means, Pool
from penstock.worker.status import StoreTime

# --- alone --------------------------------------------------------------------------------------
#
# One attempt alone in a child process: how a suspect is kept apart.


Answer = CannotRun | AttemptEnded | ChildDied


class LoneChild:
    """A child while it runs one attempt. A thread of its own does what blocks.

    It is ``spare``, one that has run another before, or a new one. ``began`` is called on the loop
    when the handler is.
    """

    def __init__(
        self, attempt: Attempt, began: Callable[[], None], spare: ChildProcess | None = None
    ) -> None:
        self._attempt = attempt
        self._began = began
        self._spare = spare
        self._child: ChildProcess | None = None
        self._is_killed = False
        self._has_answered = False
        self._lock = threading.Lock()

    async def run(self, request: RunAttempt) -> Answer:
        """Run the attempt; return the child's last word, or how it died."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        target, args = self._live, (request, loop, answer)
        try:
            threading.Thread(target=target, args=args, name="penstock-child", daemon=True).start()
        except RuntimeError as error:  # no thread to be had
            return CannotRun(summary_of(error))
        try:
            return await answer
        except asyncio.CancelledError:
            self.kill()
            if self.left is not None:  # it has answered, and its thread has left it to us
                part_with([self.left])
            raise

    @property
    def left(self) -> ChildProcess | None:
        """The child that has run the attempt and can run another; None: there is none."""
        return self._child if self._has_answered else None

    def stop(self) -> None:
        """Let the handler know that it is cancelled."""
        with self._lock:
            child = self._child
        if child is None:
            self.kill()
        else:
            child.stop(child.requests)

    def kill(self) -> None:
        """End it, whatever it does."""
        with self._lock:
            self._is_killed = True
            if self._child is not None:
                self._child.kill()

    # --- in the thread -------------------------------------------------------------------------

    def _live(
        self, request: RunAttempt, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Answer]
    ) -> None:
        child = None
        try:
            child = self._spare or ChildProcess()
            child.requests += 1
            with self._lock:
                self._child = child
                if self._is_killed:
                    child.kill()
            numbered = replace(request, number=child.requests)
            said = talk(child, numbered, self._attempt, lambda: _tell(loop, self._began))
        except Exception as error:  # no memory for a process, no file descriptors
            said = CannotRun(summary_of(error))
        with self._lock:
            self._has_answered = is_left = isinstance(said, AttemptEnded) and not self._is_killed
            if not is_left:
                self._child = None
        is_heard = _tell(loop, partial(_answer, answer, said))
        if child is not None and not isinstance(said, ChildDied) and not (is_left and is_heard):
            child.part()


def _answer(answer: asyncio.Future[Answer], said: Answer) -> None:
    if not answer.done():
        answer.set_result(said)


def _tell(loop: asyncio.AbstractEventLoop, news: Callable[[], object]) -> bool:
    """Call it on the loop; False: the loop is closed, and nobody waits."""
    try:
        loop.call_soon_threadsafe(news)
    except RuntimeError:
        return False
    return True


def part_with(children: Sequence[ChildProcess]) -> None:
    """Let children end in peace, in a thread that nobody waits for."""

    def part() -> None:
        for child in children:
            child.part()

    try:
        threading.Thread(target=part, name="penstock-parting", daemon=True).start()
    except RuntimeError:  # no thread to be had
        for child in children:
            child.kill()


# --- suspects -----------------------------------------------------------------------------------


IDLE: Final = 10.0
"""Seconds after which children that no suspect needs are let go."""


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
    journal: Journal


class Suspects:
    """A pool of ``size`` child processes.

    There is room for one more that is next. A crash charges all suspects in a worker's inflight, so
    those that find no room go back under a hold.
    """

    def __init__(self, size: int, means: Means, around: Surroundings) -> None:
        self.size = size
        self._runner = means.runner
        self._gate = means.gate
        self._clock = means.clock
        self._begun = means.begun
        self._finished = means.finished
        self._around = around
        self._queue = AttemptQueue()
        self._taken: set[Attempt] = set()
        self._children: dict[Attempt, LoneChild] = {}
        self._spares: list[ChildProcess] = []
        self._changed = asyncio.Event()
        self._only_one = asyncio.Lock()

    @property
    def load(self) -> int:
        """Attempts that wait or run here, or run alone in this process."""
        return len(self._queue) + len(self._taken)

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
        return [*(each for each in self._taken if each.started_at is None), *self._queue]

    def put(self, attempts: Sequence[Attempt]) -> None:
        """Let suspects run, each when there is room."""
        self._queue.add(attempts)
        self.pump()

    def put_first(self, attempt: Attempt) -> None:
        """Let this one be the next."""
        self._queue.appendleft(attempt)
        self.pump()

    def pump(self) -> None:
        """Something has changed: the gate, the line, or what runs elsewhere."""
        self._changed.set()

    def withdraw(self, attempt: Attempt) -> bool:
        """Take out an attempt that waits; False: it has started."""
        waits_alone = attempt in self._taken and attempt.started_at is None
        return waits_alone or self._queue.withdraw(attempt)

    def discard(self, attempt: Attempt) -> None:
        """Forget an attempt that waits here and that somebody else has seized."""
        self._queue.withdraw(attempt)
        self.pump()

    def interrupt(self, attempt: Attempt) -> None:
        """Kill the child; one that is only cancelled may first end by itself. One that waits to be
        alone is told.
        """
        child = self._children.get(attempt)
        if child is not None and attempt.ending is Ending.CANCEL:
            child.stop()
        elif child is not None:
            child.kill()
        self.pump()

    def insist(self, attempt: Attempt) -> None:
        """Kill the child."""
        if (child := self._children.get(attempt)) is not None:
            child.kill()

    def close(self) -> None:
        """Kill the children; nobody wants to know how they end."""
        for attempt, child in self._children.items():
            attempt.end(Ending.LOST)
            child.kill()
        self._part_with_spares()

    def _part_with_spares(self) -> None:
        spares, self._spares = self._spares, []
        if spares:
            part_with(spares)

    async def serve(self) -> None:
        """Run suspects, one after the other; called once for each of ``size``."""
        while True:
            while not self._queue or not self._gate.admits(self._queue[0]):
                await self._rest()
            attempt = self._queue.popleft()
            self._taken.add(attempt)
            try:
                unfit = await self._run_in_child(attempt)
                if unfit is not None:
                    async with self._only_one:
                        await self._run_alone(attempt, unfit)
            finally:
                self._taken.discard(attempt)
                self.pump()

    async def _rest(self) -> None:
        """Wait for something to do; let children go that nothing came for."""
        if not self._spares:
            await self._change()
            return
        self._changed.clear()
        if not await self._clock.wait(self._changed, IDLE):
            self._part_with_spares()

    # --- in a child ----------------------------------------------------------------------------

    async def _run_in_child(self, attempt: Attempt) -> CannotRun | None:
        """Run it to its end; or say why it cannot be run in a child."""
        place = locate(attempt.spec.function)
        if isinstance(place, NotImportable):
            return CannotRun(place.why)
        is_isolated = attempt.spec.kind == "process"
        if place.script is not None and not is_isolated:
            return CannotRun("only a task with isolation='process' has its script run again")
        self._say(attempt, "in a child process")
        attempt.started_at = self._clock.monotonic()
        was_reported, attempt.is_reported = attempt.is_reported, True
        request = self._request(attempt, place)
        answer: CannotRun | AttemptEnded | ChildDied = ChildDied("is gone", has_begun=False)
        if self._spares:
            answer = await self._told(attempt, request, self._spares.pop())
        if isinstance(answer, ChildDied) and not answer.has_begun and attempt.ending is None:
            answer = await self._told(attempt, request, None)
        if isinstance(answer, ChildDied) and not answer.has_begun:
            answer = CannotRun(f"its child {answer.how} on the way to it")
        if isinstance(answer, CannotRun) and attempt.ending is None and not is_isolated:
            attempt.started_at = None
            attempt.is_reported = was_reported
            return answer
        self._finished(attempt, self._outcome(attempt, answer))
        return None

    async def _told(
        self, attempt: Attempt, request: RunAttempt, spare: ChildProcess | None
    ) -> CannotRun | AttemptEnded | ChildDied:
        """Let a child run it; keep the child if it can run another."""
        begun = partial(self._has_begun, attempt)
        child = self._children[attempt] = LoneChild(attempt, begun, spare)
        try:
            answer = await child.run(request)
        finally:
            del self._children[attempt]
            self.pump()
        limit = attempt.spec.max_memory
        if child.left is not None and limit is not None:
            part_with([child.left])  # who knows what it has kept
        elif child.left is not None:
            self._spares.append(child.left)
        return answer

    def _request(self, attempt: Attempt, place: TaskLocation) -> RunAttempt:
        around = self._around
        return RunAttempt(
            number=1,
            job=attempt.job,
            place=place,
            worker=around.worker(),
            ahead=around.time.now() - self._clock.now(),
        )

    def _has_begun(self, attempt: Attempt) -> None:
        """The timeout counts from the moment the handler is called."""
        if attempt in self._children:
            attempt.started_at = self._clock.monotonic()
            if attempt.spec.is_watched:
                self._begun(attempt)

    def _outcome(
        self, attempt: Attempt, answer: CannotRun | AttemptEnded | ChildDied
    ) -> Outcome | None:
        if attempt.ending is Ending.LOST:
            return None
        name = attempt.spec.name
        match answer:
            case AttemptEnded(outcome):
                return outcome
            case _ if attempt.ending is not None:
                return self._runner.ended(attempt)
            case CannotRun(why):
                return self._runner.broke(attempt, CannotIsolate(name, why))
            case ChildDied(used=int(used)):
                limit = attempt.spec.max_memory or 0
                return self._runner.broke(attempt, MemoryExceeded(name, used, limit))
            case ChildDied(how):
                return crashed(attempt, how, self._around.time.now(), self._around.worker())

    # --- alone in this process -----------------------------------------------------------------

    async def _run_alone(self, attempt: Attempt, unfit: CannotRun) -> None:
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
