"""What time alone brings about: one task watches the alarms of all attempts.

Most alarms never ring: their attempts end before. So taking one back is only a mark, and the marked
ones are swept out when they are in the majority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from penstock.clock import Clock
from penstock.worker.attempt import Attempt

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
