"""How an attempt is made to end: first it is asked, then it is forced, and then it is stuck.

| after                       | a coroutine      | a thread               | a child process        |
|-----------------------------|------------------|------------------------|------------------------|
| its timeout or stall, the   | is cancelled     | is hit, while its      | is killed              |
| end of its lease or worker  |                  | handler runs           |                        |
| a person's cancel           | is cancelled     | sees ``ctx.cancelled`` | sees ``ctx.cancelled`` |
| ``grace`` more              | is cancelled     | is hit, if it was not  | is killed              |
|                             | even in clean-up | before                 |                        |
| ``stall_limit`` more        | is stuck: its slot stays taken, its process should be replaced     |

It has ended when it has ended, not before: until then its slot, its limits and its job are taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, assert_never

from penstock.clock import Clock
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.tools import Tools

# --- alarms -------------------------------------------------------------------------------------
#
# What time alone brings about: one task watches the alarms of all attempts.
#
# Most alarms never ring: their attempts end before. So taking one back is only a mark, and the
# marked
# ones are swept out when they are in the majority.


ROUNDING: Final = 0.001
"""Seconds that an alarm may be early: clocks and sleeps are not exact."""

FEW: Final = 64
"""Alarms that are not worth sweeping."""


class Ring(Enum):
    """What it is time for."""

    TIMEOUT = auto()
    """The attempt has run for as long as it may."""
    STALL = auto()
    """It may have shown no sign of life for too long."""
    INSIST = auto()
    """It was asked to end and has not."""
    STUCK = auto()
    """Nothing that was tried has ended it."""


class Alarm:
    """One attempt's alarm; without the attempt once it was taken back."""

    __slots__ = ("at", "attempt", "number", "ring")

    def __init__(self, at: float, number: int, attempt: Attempt, ring: Ring) -> None:
        self.at = at
        self.number = number
        self.attempt: Attempt | None = attempt
        self.ring = ring

    def __lt__(self, other: Alarm) -> bool:
        return (self.at, self.number) < (other.at, other.number)


class Alarms:
    """Calls ``rang`` when an alarm is due, on the loop; the earliest first."""

    def __init__(self, clock: Clock, rang: Callable[[Attempt, Ring], None]) -> None:
        self._clock = clock
        self._rang = rang
        self._heap: list[Alarm] = []
        self._of: dict[Attempt, list[Alarm]] = {}
        self._live = 0
        self._numbers = count()
        self._changed = asyncio.Event()
        self._wakes_at: float | None = None

    def set(self, attempt: Attempt, at: float, ring: Ring) -> None:
        """Ring at this instant of the monotonic clock, unless taken back."""
        alarm = Alarm(at, next(self._numbers), attempt, ring)
        heappush(self._heap, alarm)
        self._of.setdefault(attempt, []).append(alarm)
        self._live += 1
        if self._wakes_at is None or at < self._wakes_at:
            self._changed.set()

    def take_back(self, attempt: Attempt) -> None:
        """Let no alarm of this attempt ring any more."""
        for alarm in self._of.pop(attempt, ()):
            alarm.attempt = None
            self._live -= 1
        if len(self._heap) > FEW and len(self._heap) > 2 * self._live:
            self._heap = [alarm for alarm in self._heap if alarm.attempt is not None]
            heapify(self._heap)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._changed.clear()
            self._wakes_at = self._heap[0].at if self._heap else None
            left = None if self._wakes_at is None else self._wakes_at - self._clock.monotonic()
            if left is None or left > ROUNDING:
                await self._clock.wait(self._changed, left)
            self._ring_all()

    def _ring_all(self) -> None:
        now = self._clock.monotonic() + ROUNDING
        while self._heap and self._heap[0].at <= now:
            alarm = heappop(self._heap)
            if (attempt := alarm.attempt) is None:
                continue
            self._live -= 1
            self._of[attempt].remove(alarm)
            self._rang(attempt, alarm.ring)


# --- ends ---------------------------------------------------------------------------------------


class Ends:
    """Sees to it that attempts end. Belongs to the worker's loop."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._clock = tools.clock
        self._alarms = Alarms(tools.clock, self._rang)

    def run(self) -> Coroutine[Any, Any, None]:
        """Watch the time until cancelled."""
        return self._alarms.run()

    def over(self, attempt: Attempt) -> None:
        """It has ended."""
        self._alarms.take_back(attempt)

    def interrupt(self, attempt: Attempt, ending: Ending) -> None:
        is_first = attempt.ending is None
        attempt.end(ending)
        if attempt.pool is None:
            return
        attempt.pool.interrupt(attempt)
        if is_first:
            insist_at = self._clock.monotonic() + self._tools.settings.grace
            self._alarms.set(attempt, insist_at, Ring.INSIST)

    def begun(self, attempt: Attempt) -> None:
        """An attempt that is watched has started."""
        spec, now = attempt.spec, attempt.started_at
        if now is None or attempt.is_over:
            return
        if spec.timeout is not None:
            self._alarms.set(attempt, now + spec.timeout, Ring.TIMEOUT)
        if spec.stall is not None:
            self._alarms.set(attempt, now + spec.stall, Ring.STALL)

    def _rang(self, attempt: Attempt, ring: Ring) -> None:
        match ring:
            case Ring.TIMEOUT | Ring.STALL if attempt.ending is not None:
                pass  # it ends already, and has its grace
            case Ring.TIMEOUT:
                self._look_at_time(attempt)
            case Ring.STALL:
                self._look_for_life(attempt)
            case Ring.INSIST:
                if attempt.pool is not None:
                    attempt.pool.insist(attempt)
                stuck_at = self._clock.monotonic() + self._tools.settings.stall_limit
                self._alarms.set(attempt, stuck_at, Ring.STUCK)
            case Ring.STUCK:
                self._be_wedged(attempt)
            case _:
                assert_never(ring)

    def _look_at_time(self, attempt: Attempt) -> None:
        """It may have been held up when it started, or be so still."""
        now, timeout = self._clock.monotonic(), attempt.spec.timeout or 0.0
        since = now if attempt.is_held_up else (attempt.started_at or 0.0)
        if since + timeout > now + ROUNDING:
            self._alarms.set(attempt, since + timeout, Ring.TIMEOUT)
        else:
            self.interrupt(attempt, Ending.TIMEOUT)

    def _look_for_life(self, attempt: Attempt) -> None:
        stall, seen = attempt.spec.stall or 0.0, attempt.context.alive_at
        silent_until = (attempt.started_at if seen is None else seen) or 0.0
        if attempt.is_held_up:
            silent_until = self._clock.monotonic()
        if silent_until + stall > self._clock.monotonic() + ROUNDING:
            self._alarms.set(attempt, silent_until + stall, Ring.STALL)
        else:
            self.interrupt(attempt, Ending.STALL)

    def _be_wedged(self, attempt: Attempt) -> None:
        """Nothing ends this attempt: its slot is lost to this process, which should be replaced."""
        attempt.is_stuck = True
        job = attempt.job
        self._tools.journal.stuck(job.id, job.task, self._tools.parent.settles)
        why = f"job {job.id} ({job.task}) must end and does not"
        self._tools.parent.replace(why, is_wedged=True)
