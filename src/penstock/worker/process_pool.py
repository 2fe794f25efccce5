"""The children for isolated attempts: processes that run one attempt after the other.

Each child has a thread of the worker, which takes the next attempt itself, writes the request and
listens until the attempt has ended; see ``child.talk`` for what they say. Children are started when
they are first needed. If one dies

| here                          | then                                                             |
|-------------------------------|------------------------------------------------------------------|
| idle                          | the next request finds it dead: as before the attempt has begun  |
| before the attempt has begun  | the attempt goes to a new child; after ``TRIES`` it is a failure |
| after it has begun            | the attempt is crashed; the next one gets a new child            |
| because we killed it          | the attempt ends as ``attempt.ending`` says                      |
| as it told the outcome        | the outcome stands; the next attempt gets a new child            |

The lock decides between a kill and an end: a child is killed only while it has the attempt that is
to be stopped, so nobody else's attempt is ever hit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from penstock.core.job import Outcome
from penstock.errors import CannotIsolate, MemoryExceeded
from penstock.worker.child.find_task import NotImportable, TaskLocation, locate
from penstock.worker.child.messages import AttemptEnded, CannotRun, RunAttempt
from penstock.worker.child.process import ChildDied, ChildProcess, crashed, talk
from penstock.worker.error_record import summary_of
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.pool import Means
from penstock.worker.runtime import resident
from penstock.worker.status import StoreTime
from penstock.worker.thread_pool import ThreadPool

TRIES: Final = 3
"""Children in a row that may die before they reach an attempt's task."""

IMPORTABLE: Final = "a child must be able to import its module, and to start up"


@dataclass(frozen=True, slots=True)
class Home:
    """What children need to know of their worker."""

    worker: Callable[[], str]
    """The worker's present id."""
    time: StoreTime


class Seat:
    """One thread's place, with the child that it has."""

    __slots__ = ("child", "is_told")

    def __init__(self) -> None:
        self.child: ChildProcess | None = None
        self.is_told = False
        """The child was, or is being, asked to run the thread's attempt."""


class ProcessPool(ThreadPool):
    """``size`` child processes, each with a thread; otherwise as ``ThreadPool``.

    ``begun`` is told when the handler is called, not before: getting there has its own limit. A
    child is replaced after ``max_jobs`` attempts, or if it has more memory than its task may.
    """

    def __init__(
        self,
        size: int,
        means: Means,
        home: Home,
        max_jobs: int | None = None,
    ) -> None:
        super().__init__(size, means)
        self._home = home
        self._max_jobs = max_jobs
        self._places: dict[Callable[..., Any], TaskLocation | NotImportable] = {}
        self._seats: dict[Attempt, Seat] = {}
        self._is_closed = False

    def interrupt(self, attempt: Attempt) -> None:
        """Kill the child; one whose attempt is only cancelled may first end it by itself."""
        with self._lock:
            seat = self._seats.get(attempt)
            if seat is None or seat.child is None or not seat.is_told:
                return  # it has ended, or its thread will see that it must
            if attempt.ending is Ending.CANCEL:
                seat.child.stop(seat.child.requests)
            else:
                seat.child.kill()

    def insist(self, attempt: Attempt) -> None:
        """Kill the child."""
        with self._lock:
            seat = self._seats.get(attempt)
            if seat is not None and seat.child is not None and seat.is_told:
                seat.child.kill()

    def close(self) -> None:
        """Kill what runs; let the other children end in peace. Nothing of it is waited for."""
        with self._lock:
            self._is_closed = True
            for attempt, seat in self._seats.items():
                attempt.end(Ending.LOST)
                if seat.child is not None and seat.is_told:
                    seat.child.kill()
        super().close()

    # --- in a thread ---------------------------------------------------------------------------

    def _blame(self, attempt: Attempt, error: Exception) -> Exception:
        return CannotIsolate(attempt.spec.name, summary_of(error))

    def _serve(self) -> None:
        seat = Seat()
        while (attempt := self._inbox.get()) is not None and not self._is_closed:
            # If this worker dies, that is not the doing of what it has in a child.
            attempt.is_reported = True
            if not self._begin(attempt):
                continue
            outcome = self._run(seat, attempt)
            with self._lock:
                self._running -= 1
            self._tell(partial(self._end, attempt, outcome))
            if self._loop.is_closed():
                break  # nobody is left who would close this pool
            self._look_after(seat, attempt)
        if seat.child is not None:
            seat.child.part()

    def _run(self, seat: Seat, attempt: Attempt) -> Outcome | None:
        """Run an attempt to its end, in as many children as that takes. Never raises."""
        with self._lock:
            self._seats[attempt] = seat
        try:
            return self._outcome(seat, attempt)
        except Exception as error:  # no memory for a process, no file descriptors, no interpreter
            if seat.child is not None:
                seat.child.kill()  # nobody knows what it would say next
            failure = CannotIsolate(attempt.spec.name, summary_of(error))
            return self._runner.broke(attempt, failure)
        finally:
            with self._lock:
                seat.is_told = False
                del self._seats[attempt]

    def _outcome(self, seat: Seat, attempt: Attempt) -> Outcome | None:
        name, function = attempt.spec.name, attempt.spec.function
        if (place := self._places.get(function)) is None:
            place = self._places[function] = locate(function)
        if isinstance(place, NotImportable):
            return self._runner.broke(attempt, CannotIsolate(name, place.why))
        how = ""
        for _ in range(TRIES):
            match self._ask(seat, attempt, place):
                case None:
                    return self._runner.ended(attempt)
                case AttemptEnded(outcome):
                    return None if attempt.ending is Ending.LOST else outcome
                case CannotRun(why):
                    return self._runner.broke(attempt, CannotIsolate(name, f"{why}; {IMPORTABLE}"))
                case ChildDied() as death:
                    seat.child = None
                    if attempt.ending is not None:
                        return self._runner.ended(attempt)
                    if death.used is not None:
                        limit = attempt.spec.max_memory or 0
                        return self._runner.broke(attempt, MemoryExceeded(name, death.used, limit))
                    if death.has_begun:
                        now, worker = self._home.time.now(), self._home.worker()
                        return crashed(attempt, death.how, now, worker)
                    how = death.how
        why = f"{TRIES} in a row died on the way to it, the last one {how}; see its standard error"
        return self._runner.broke(attempt, CannotIsolate(name, why))

    def _ask(
        self, seat: Seat, attempt: Attempt, place: TaskLocation
    ) -> CannotRun | AttemptEnded | ChildDied | None:
        """Let a child run it; None: it must not start any more."""
        child = seat.child
        if child is None:
            child = ChildProcess()
        with self._lock:
            seat.child = child
            if attempt.ending is not None:
                return None
            child.requests += 1
            seat.is_told = True
        request = RunAttempt(
            number=child.requests,
            job=attempt.job,
            place=place,
            worker=self._home.worker(),
            ahead=self._home.time.now() - self._clock.now(),
        )
        return talk(child, request, attempt, partial(self._has_begun, attempt))

    def _has_begun(self, attempt: Attempt) -> None:
        attempt.started_at = self._clock.monotonic()
        if attempt.spec.is_watched:
            self._tell(partial(self._begun, attempt))

    def _look_after(self, seat: Seat, attempt: Attempt) -> None:
        """Part with a child that should not run another attempt."""
        child, limit = seat.child, attempt.spec.max_memory
        if child is None:
            return
        is_spent = self._max_jobs is not None and child.requests >= self._max_jobs
        is_big = limit is not None and (resident(child.pid) or 0) > limit
        if child.is_killed or is_spent or is_big:
            seat.child = None
            child.part()
