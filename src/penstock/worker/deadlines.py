"""How an attempt is made to end: first it is asked, then it is forced, and then it is stuck.

| after                       | a coroutine      | a thread               | a child process        |
|-----------------------------|------------------|------------------------|------------------------|
| its timeout or stall, the   | is cancelled     | is interrupted, while  | is killed              |
| end of its lease or worker  |                  | its handler runs       |                        |
| a person's cancel           | is cancelled     | sees ``ctx.cancelled`` | sees ``ctx.cancelled`` |
| ``grace`` more              | is cancelled     | is interrupted, if it  | is killed              |
|                             | even in clean-up | was not before         |                        |
| ``stall_limit`` more        | is stuck: its slot stays taken, its process should be replaced     |

It has ended when it has ended, not before: until then its slot, its limits and its job are taken.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, assert_never

from penstock.clock import Clock
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.log import WorkerLog
from penstock.worker.settings import WorkerSettings
from penstock.worker.status import Parent

ROUNDING: Final = 0.001
"""Seconds that a deadline may be early: clocks and sleeps are not exact."""

FEW: Final = 64
"""Deadlines that are not worth sweeping."""


class DeadlineKind(Enum):
    """What it is time for."""

    TIMEOUT = auto()
    """The attempt has run for as long as it may."""
    STALL = auto()
    """It may have shown no sign of life for too long."""
    INSIST = auto()
    """It was asked to end and has not."""
    STUCK = auto()
    """Nothing that was tried has ended it."""


class Deadline:
    """One deadline of an attempt; without the attempt once it was taken back."""

    __slots__ = ("at", "attempt", "kind", "number")

    def __init__(self, at: float, number: int, attempt: Attempt, kind: DeadlineKind) -> None:
        self.at = at
        self.number = number
        self.attempt: Attempt | None = attempt
        self.kind = kind

    def __lt__(self, other: Deadline) -> bool:
        return (self.at, self.number) < (other.at, other.number)


class Deadlines:
    """Sees to it that attempts end: one task watches the deadlines of all. Belongs to the worker's
    loop.

    Most attempts end before any deadline. So taking one back is only a mark, and the marked ones
    are swept out when they are in the majority.
    """

    def __init__(
        self, clock: Clock, settings: WorkerSettings, log: WorkerLog, parent: Parent
    ) -> None:
        self._clock = clock
        self._grace = settings.grace
        self._stall_limit = settings.stall_limit
        self._log = log
        self._parent = parent
        self._heap: list[Deadline] = []
        self._of: dict[Attempt, list[Deadline]] = {}
        self._live = 0
        self._numbers = count()
        self._changed = asyncio.Event()
        self._wakes_at: float | None = None

    def begun(self, attempt: Attempt) -> None:
        """An attempt that is watched has started."""
        spec, now = attempt.spec, attempt.started_at
        if now is None or attempt.is_over:
            return
        if spec.timeout is not None:
            self._set(attempt, now + spec.timeout, DeadlineKind.TIMEOUT)
        if spec.stall is not None:
            self._set(attempt, now + spec.stall, DeadlineKind.STALL)

    def interrupt(self, attempt: Attempt, ending: Ending) -> None:
        """Make an attempt end, for this reason. One that is about to end for another one is left
        alone: a second interruption would hit its clean-up.
        """
        is_first = attempt.ending is None
        attempt.end(ending)
        if attempt.pool is not None and is_first:
            attempt.pool.interrupt(attempt)
            self._set(attempt, self._clock.monotonic() + self._grace, DeadlineKind.INSIST)

    def forget(self, attempt: Attempt) -> None:
        """The attempt has ended."""
        for deadline in self._of.pop(attempt, ()):
            deadline.attempt = None
            self._live -= 1
        if len(self._heap) > FEW and len(self._heap) > 2 * self._live:
            self._heap = [each for each in self._heap if each.attempt is not None]
            heapify(self._heap)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._changed.clear()
            self._wakes_at = self._heap[0].at if self._heap else None
            left = None if self._wakes_at is None else self._wakes_at - self._clock.monotonic()
            if left is None or left > ROUNDING:
                await self._clock.wait(self._changed, left)
            self._pass_all()

    def _set(self, attempt: Attempt, at: float, kind: DeadlineKind) -> None:
        deadline = Deadline(at, next(self._numbers), attempt, kind)
        heappush(self._heap, deadline)
        self._of.setdefault(attempt, []).append(deadline)
        self._live += 1
        if self._wakes_at is None or at < self._wakes_at:
            self._changed.set()

    def _pass_all(self) -> None:
        now = self._clock.monotonic() + ROUNDING
        while self._heap and self._heap[0].at <= now:
            deadline = heappop(self._heap)
            if (attempt := deadline.attempt) is None:
                continue
            self._live -= 1
            self._of[attempt].remove(deadline)
            self._passed(attempt, deadline.kind)

    def _passed(self, attempt: Attempt, kind: DeadlineKind) -> None:
        match kind:
            case DeadlineKind.TIMEOUT | DeadlineKind.STALL if attempt.ending is not None:
                pass  # it ends already, and has its grace
            case DeadlineKind.TIMEOUT:
                self._check_timeout(attempt)
            case DeadlineKind.STALL:
                self._check_stall(attempt)
            case DeadlineKind.INSIST:
                if attempt.pool is not None:
                    attempt.pool.insist(attempt)
                stuck_at = self._clock.monotonic() + self._stall_limit
                self._set(attempt, stuck_at, DeadlineKind.STUCK)
            case DeadlineKind.STUCK:
                self._give_up(attempt)
            case _:
                assert_never(kind)

    def _check_timeout(self, attempt: Attempt) -> None:
        """It may have been held up when it started, or be so still."""
        now, timeout = self._clock.monotonic(), attempt.spec.timeout or 0.0
        since = now if attempt.is_held_up else (attempt.started_at or 0.0)
        if since + timeout > now + ROUNDING:
            self._set(attempt, since + timeout, DeadlineKind.TIMEOUT)
        else:
            self.interrupt(attempt, Ending.TIMEOUT)

    def _check_stall(self, attempt: Attempt) -> None:
        stall, seen = attempt.spec.stall or 0.0, attempt.context.alive_at
        silent_since = (attempt.started_at if seen is None else seen) or 0.0
        if attempt.is_held_up:
            silent_since = self._clock.monotonic()
        if silent_since + stall > self._clock.monotonic() + ROUNDING:
            self._set(attempt, silent_since + stall, DeadlineKind.STALL)
        else:
            self.interrupt(attempt, Ending.STALL)

    def _give_up(self, attempt: Attempt) -> None:
        """Nothing ends this attempt: its slot is lost to this process, which should be replaced."""
        attempt.is_stuck = True
        job, hint = attempt.job, "its process is replaced"
        if not self._parent.settles:
            hint = (
                "its slot stays taken until this process ends; a task with "
                'isolation="process" can be killed'
            )
        self._log.error("attempt stuck", job=job.id, task=job.task, hint=hint)
        why = f"job {job.id} ({job.task}) must end and does not"
        self._parent.replace(why, is_wedged=True)
