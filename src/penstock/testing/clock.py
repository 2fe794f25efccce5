"""A clock that moves only when the test says so.

    clock = FakeClock()
    nap = asyncio.create_task(clock.sleep(60))
    await clock.asleep()        # wait until a task sleeps on it; no guessing
    clock.advance(60)
    await nap                   # at once

``advance`` moves time in one leap, as a stopped process sees it: a loop that sleeps a second at a
time wakes once. ``elapse`` lives through it, from one sleeper's instant to the next.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.clock import Clock
from penstock.errors import BadOption

TURNS: Final = 25
"""Turns of the loop that ``settle`` gives to others: a wake-up needs about three."""

ROUNDING: Final = 1e-6
"""Ten steps of 0.1 s are a second, whatever floating point says."""


@dataclass(eq=False, slots=True)
class _Sleeper:
    """One call of ``wait``. ``limit`` and ``is_up`` belong to its own loop."""

    deadline: float
    limit: asyncio.Timeout
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    is_up: bool = False

    def ring(self) -> None:
        """End the sleep, from any thread."""
        _call_on(self.loop, self._end)

    def _end(self) -> None:
        if not self.is_up:
            self.limit.reschedule(self.loop.time())


class FakeClock(Clock):
    """Time as a test wants it; may be read, slept on and moved from any loop and thread."""

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        self._now = now
        self._monotonic = 1000.0
        self._lock = threading.Lock()
        self._sleepers: set[_Sleeper] = set()
        self._watchers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        if event.is_set() or timeout is None:
            return await event.wait()
        limit = asyncio.timeout(None)
        sleeper = None
        try:
            async with limit:
                sleeper = self._lie_down(limit, timeout)
                return await event.wait()
        except TimeoutError:
            return event.is_set()
        finally:
            if sleeper is not None:
                self._get_up(sleeper)

    # --- what a test does ----------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass in one leap, and wake each sleeper whose time has come, the earliest first.

        Those woken run when the test next awaits something; ``settle`` is enough on one loop.
        """
        if seconds < 0:
            raise BadOption("seconds", seconds, "time only passes; use jump to set the wall clock")
        self._leap(seconds, None)

    def advance_to(self, instant: float) -> None:
        """The same, until the wall clock says exactly ``instant``; one that is over changes
        nothing.
        """
        if instant > self._now:
            self._leap(instant - self._now, instant)

    def _leap(self, seconds: float, instant: float | None) -> None:
        with self._lock:
            self._now = self._now + seconds if instant is None else instant
            self._monotonic += seconds
            due = sorted(filter(self._is_due, self._sleepers), key=lambda each: each.deadline)
            self._sleepers.difference_update(due)
        for sleeper in due:
            sleeper.ring()

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP or a person does; no time passes."""
        with self._lock:
            self._now += seconds

    async def elapse(self, seconds: float) -> None:
        """Let time pass from one sleeper's instant to the next, giving each its turn."""
        until = self._monotonic + seconds
        await self.settle()
        while (upcoming := self._next_deadline()) <= until:
            self.advance(max(upcoming - self._monotonic, 0.0))
            await self.settle()
        self.advance(max(until - self._monotonic, 0.0))
        await self.settle()

    async def asleep(self, sleepers: int = 1) -> None:
        """Wait until at least this many calls sleep on the clock.

        An ``Observed`` engine has one sleeper of its own while calls are under way.
        """
        changed = asyncio.Event()
        watcher = (asyncio.get_running_loop(), changed)
        try:
            while True:
                changed.clear()
                with self._lock:
                    if len(self._sleepers) >= sleepers:
                        return
                    self._watchers.append(watcher)
                await changed.wait()
        finally:
            with self._lock:
                self._watchers = [other for other in self._watchers if other is not watcher]

    async def settle(self) -> None:
        """Let the tasks of this loop run until they have had their turns.

        What happens on another thread is not waited for: await its own sign instead.
        """
        for _ in range(TURNS):
            await asyncio.sleep(0)

    # --- sleepers ------------------------------------------------------------------------------

    def _lie_down(self, limit: asyncio.Timeout, timeout: float) -> _Sleeper:
        with self._lock:
            sleeper = _Sleeper(self._monotonic + timeout, limit)
            is_due = self._is_due(sleeper)
            if not is_due:
                self._sleepers.add(sleeper)
            watchers, self._watchers = self._watchers, []
        if is_due:
            sleeper.ring()
        for loop, changed in watchers:
            _call_on(loop, changed.set)
        return sleeper

    def _get_up(self, sleeper: _Sleeper) -> None:
        sleeper.is_up = True
        with self._lock:
            self._sleepers.discard(sleeper)

    def _is_due(self, sleeper: _Sleeper) -> bool:
        return sleeper.deadline <= self._monotonic + ROUNDING

    def _next_deadline(self) -> float:
        with self._lock:
            return min((sleeper.deadline for sleeper in self._sleepers), default=math.inf)


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call something on a loop from any thread; a loop that has ended needs no call."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise
