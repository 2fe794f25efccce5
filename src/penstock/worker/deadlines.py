"""The timeouts of running attempts: one task watches them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.worker.attempt import Attempt

ROUNDING: Final = 0.001
"""Seconds that a timeout may be early: clocks and sleeps are not exact."""


class Deadlines:
    """Tells ``passed`` of each attempt that ran longer than its timeout.

    Attempts with the same timeout end in the order they began: a dict per timeout is a line whose
    first entry is the next one due, and anything can leave it at once.
    """

    def __init__(self, clock: Clock, passed: Callable[[Attempt], None]) -> None:
        self._clock = clock
        self._passed = passed
        self._lines: dict[float, dict[Attempt, float]] = {}
        self._changed = asyncio.Event()
        self._wakes_at: float | None = None

    def add(self, attempt: Attempt) -> None:
        """Watch an attempt that has just begun."""
        timeout = attempt.spec.timeout
        if timeout is None or attempt.started_at is None:
            return
        deadline = attempt.started_at + timeout
        self._lines.setdefault(timeout, {})[attempt] = deadline
        if self._wakes_at is None or deadline < self._wakes_at:
            self._changed.set()

    def discard(self, attempt: Attempt) -> None:
        """Stop watching an attempt."""
        timeout = attempt.spec.timeout
        if timeout is not None and (line := self._lines.get(timeout)):
            line.pop(attempt, None)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._changed.clear()
            self._wakes_at = self._next()
            left = None if self._wakes_at is None else self._wakes_at - self._clock.monotonic()
            if left is None or left > ROUNDING:
                await self._clock.wait(self._changed, left)
            for attempt in self._due():
                self.discard(attempt)
                self._passed(attempt)

    def _next(self) -> float | None:
        heads = (next(iter(line.values())) for line in self._lines.values() if line)
        return min(heads, default=None)

    def _due(self) -> list[Attempt]:
        now = self._clock.monotonic() + ROUNDING
        due = []
        for line in self._lines.values():
            for attempt, deadline in line.items():
                if deadline > now:
                    break
                due.append(attempt)
        return due
