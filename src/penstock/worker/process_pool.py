"""The children for isolated attempts: processes that run one attempt after the other.

Each child has a thread of the worker, which takes the next attempt itself, writes the request and
listens until the attempt has ended; see ``child.process.converse`` for the messages. Children are
started when they are first needed. If one dies

| here                          | then                                                             |
|-------------------------------|------------------------------------------------------------------|
| idle                          | the next request finds it dead: as before the attempt has begun  |
| before the attempt has begun  | the attempt goes to a new child; after ``TRIES`` it is a failure |
| after it has begun            | the attempt is crashed; the next one gets a new child            |
| because we killed it          | the attempt ends as ``attempt.ending`` says                      |
| as it told the outcome        | the outcome stands; the next attempt gets a new child            |

The lock decides between a kill and an end: a child is killed only while it has the attempt that is
to be stopped, so no other attempt is ever killed.

A worker has two such pools: one for tasks with ``isolation="process"``, and one for jobs that were
in a crash. A job that kills the child in which it is alone was in one more crash, until the limit
of crashes ends it; the others of the same crash run through their children unharmed. What no child
can run is given to ``unfit`` there, and idle children are let go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty
from typing import Any, Final

from msgspec.structs import replace

from penstock.clock import Clock
from penstock.core.job import CRASH_LIMIT, Outcome
from penstock.errors import CannotIsolate, MemoryExceeded
from penstock.worker.child.find_task import NotImportable, TaskLocation, locate
from penstock.worker.child.messages import AttemptDone, CannotRun, RunAttempt
from penstock.worker.child.process import ChildDied, ChildProcess, converse, crashed
from penstock.worker.error_record import summary_of
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.pool import StartGate
from penstock.worker.runner import Runner
from penstock.worker.runtime import resident
from penstock.worker.status import StoreTime
from penstock.worker.thread_pool import ThreadPool

TRIES: Final = 3
"""Children in a row that may die before they reach an attempt's task."""

IMPORTABLE: Final = "a child must be able to import its module, and to start up"


class Seat:
    """One thread's child and attempt."""

    __slots__ = ("attempt", "child", "is_told")

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self.child: ChildProcess | None = None
        self.is_told = False
        """The child was, or is being, asked to run the attempt."""


class ProcessPool(ThreadPool):
    """``size`` child processes, each with a thread; otherwise as ``ThreadPool``.

    ``begun`` is told when the handler is called, not before: getting there has its own limit. A
    child is replaced after ``max_jobs`` attempts, or if it has more memory than its task may, and
    let go after ``idle`` seconds without an attempt. ``starting`` is called in a thread with each
    attempt that is given to a child. ``unfit`` is given, on the loop, attempts that no child can
    run although their tasks need none, and why; without it they fail.
    """

    def __init__(
        self,
        size: int,
        runner: Runner,
        gate: StartGate,
        clock: Clock,
        begun: Callable[[Attempt], None],
        finished: Callable[[Attempt, Outcome | None], None],
        reserve: Mapping[int, int] | None = None,
        *,
        worker: Callable[[], str],
        time: StoreTime,
        crash_limit: int = CRASH_LIMIT,
        max_jobs: int | None = None,
        idle: float | None = None,
        starting: Callable[[Attempt], None] | None = None,
        unfit: Callable[[Attempt, str], None] | None = None,
    ) -> None:
        super().__init__(size, runner, gate, clock, begun, finished, reserve)
        self._worker = worker
        self._time = time
        self._crash_limit = crash_limit
        self._max_jobs = max_jobs
        self._idle = idle
        self._starting = starting
        self._unfit = unfit
        self._locations: dict[Callable[..., Any], TaskLocation | NotImportable] = {}
        self._seats: list[Seat] = []
        self._is_closed = False

    def interrupt(self, attempt: Attempt) -> None:
        """Kill the child; one whose attempt is only cancelled may first end it by itself."""
        with self._lock:
            if (child := self._child_of(attempt)) is None:
                return  # it has ended, or its thread will see that it must
            if attempt.ending is Ending.CANCEL:
                child.stop(child.requests)
            else:
                child.kill()

    def insist(self, attempt: Attempt) -> None:
        """Kill the child."""
        with self._lock:
            if (child := self._child_of(attempt)) is not None:
                child.kill()

    def close(self) -> None:
        """Kill what runs; let the other children end in peace. Nothing of it is waited for."""
        with self._lock:
            self._is_closed = True
            for seat in self._seats:
                if seat.attempt is not None:
                    seat.attempt.end(Ending.LOST)
                    if seat.child is not None and seat.is_told:
                        seat.child.kill()
        super().close()

    def _child_of(self, attempt: Attempt) -> ChildProcess | None:
        for seat in self._seats:
            if seat.attempt is attempt and seat.is_told:
                return seat.child
        return None

    # --- in a thread ---------------------------------------------------------------------------

    def _no_thread(self, attempt: Attempt, error: Exception) -> Exception:
        return CannotIsolate(attempt.spec.name, summary_of(error))

    def _serve(self) -> None:
        seat = Seat()
        with self._lock:
            self._seats.append(seat)
        while (attempt := self._next(seat)) is not None and not self._is_closed:
            # If this worker dies, that is not the doing of what it has in a child.
            attempt.is_reported = True
            if not self._begin(attempt):
                continue
            answer = self._run(seat, attempt)
            with self._lock:
                self._running -= 1
            if isinstance(answer, CannotRun):
                self._tell(partial(self._give_to_unfit, attempt, answer.why))
            else:
                self._tell(partial(self._end, attempt, answer))
            if self._loop.is_closed():
                break  # the worker has ended without closing this pool
            self._replace_if_due(seat, attempt)
        if seat.child is not None:
            seat.child.retire()

    def _next(self, seat: Seat) -> Attempt | None:
        """The next attempt; None: the pool is closed."""
        if seat.child is not None:
            try:
                return self._inbox.get(timeout=self._idle)
            except Empty:
                child, seat.child = seat.child, None
                child.retire()
        return self._inbox.get()

    def _run(self, seat: Seat, attempt: Attempt) -> Outcome | CannotRun | None:
        """Run an attempt to its end, in as many children as that takes. Never raises."""
        with self._lock:
            seat.attempt = attempt
        try:
            return self._answer(seat, attempt)
        except Exception as error:  # no memory for a process, no file descriptors, no interpreter
            if seat.child is not None:
                seat.child.kill()  # what it would say next is unknown
            return self._refused_by_children(attempt, summary_of(error))
        finally:
            with self._lock:
                seat.attempt, seat.is_told = None, False

    def _answer(self, seat: Seat, attempt: Attempt) -> Outcome | CannotRun | None:
        name, function = attempt.spec.name, attempt.spec.function
        if (location := self._locations.get(function)) is None:
            location = self._locations[function] = locate(function)
        if isinstance(location, NotImportable):
            return self._refused_by_children(attempt, location.why)
        if self._starting is not None:
            self._starting(attempt)
        how = ""
        for _ in range(TRIES):
            match self._ask(seat, attempt, location):
                case None:
                    return self._runner.ended(attempt)
                case AttemptDone(outcome):
                    return None if attempt.ending is Ending.LOST else outcome
                case CannotRun(why):
                    return self._refused_by_children(attempt, f"{why}; {IMPORTABLE}")
                case ChildDied() as death:
                    seat.child = None
                    if attempt.ending is not None:
                        return self._runner.ended(attempt)
                    if death.used is not None:
                        limit = attempt.spec.max_memory or 0
                        return self._runner.broke(attempt, MemoryExceeded(name, death.used, limit))
                    if death.has_begun:
                        outcome = crashed(attempt, death.how, self._time.now(), self._worker())
                        return replace(outcome, crash_limit=self._crash_limit)
                    how = death.how
        why = f"{TRIES} in a row died on the way to it, the last one {how}; see its standard error"
        return self._refused_by_children(attempt, why)

    def _refused_by_children(self, attempt: Attempt, why: str) -> Outcome | CannotRun | None:
        is_isolated = attempt.spec.kind == "process"
        if self._unfit is not None and not is_isolated and attempt.ending is None:
            return CannotRun(why)
        return self._runner.broke(attempt, CannotIsolate(attempt.spec.name, why))

    def _ask(
        self, seat: Seat, attempt: Attempt, location: TaskLocation
    ) -> CannotRun | AttemptDone | ChildDied | None:
        """Let a child run it; None: it must not start any more."""
        child = seat.child or ChildProcess()
        with self._lock:
            seat.child = child
            if attempt.ending is not None:
                return None
            child.requests += 1
            seat.is_told = True
        request = RunAttempt(
            number=child.requests,
            job=attempt.job,
            location=location,
            worker=self._worker(),
            ahead=self._time.now() - self._clock.now(),
        )
        return converse(child, request, attempt, partial(self._has_begun, attempt))

    def _has_begun(self, attempt: Attempt) -> None:
        attempt.started_at = self._clock.monotonic()
        if attempt.spec.is_watched:
            self._tell(partial(self._begun, attempt))

    def _replace_if_due(self, seat: Seat, attempt: Attempt) -> None:
        child, limit = seat.child, attempt.spec.max_memory
        if child is None:
            return
        is_spent = self._max_jobs is not None and child.requests >= self._max_jobs
        is_big = limit is not None and (resident(child.pid) or 0) > limit
        if child.is_killed or is_spent or is_big:
            seat.child = None
            child.retire()

    # --- on the loop ---------------------------------------------------------------------------

    def _give_to_unfit(self, attempt: Attempt, why: str) -> None:
        self._forget(attempt)
        if attempt.ending is not None or self._unfit is None:
            self._finished(attempt, self._runner.ended(attempt))
            return
        attempt.reset()
        self._unfit(attempt, why)
