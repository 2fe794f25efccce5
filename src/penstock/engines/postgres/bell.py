"""When whoever sleeps is told of jobs that were stored at a counter, and when it is not worth it.

To tell them after each commit would cost a caller a third of what its job does. So they are told
once in a while; the last commit is seen to by whoever watches the bell. And while one job follows
the other, each commit looks whether somebody sleeps: if nobody does, those before it need not be
told of, for whoever fell asleep since has looked after them.
"""

from __future__ import annotations

from math import inf
from typing import Final

from penstock.clock import SystemClock

ONCE: Final = 0.002
"""Seconds in which who sleeps is told once: the first commit does so, and the last."""
ALONE: Final = 0.01
"""Seconds without another job after which one wakes who sleeps with its own commit. That locks out
others who would do so until it is on disk: many who came one after the other would not share it.
"""
LOOK: Final = ONCE / 2
"""Seconds after which another commit looks."""

HANDED: Final = b"handed"
"""The store gave the job to a worker at once: nobody else need be woken."""
TOLD: Final = b"told"
"""The commit itself woke who slept."""
ASLEEP: Final = b"asleep"
"""Somebody sleeps."""


class Bell:
    """Who was told of what, on one connection."""

    def __init__(self) -> None:
        self._came_at = -inf
        self._told_at = -inf
        self._looked_at = -inf
        self._queues: set[str] = set()

    def __bool__(self) -> bool:
        """There are jobs that nobody was told of yet."""
        return bool(self._queues)

    def asks(self) -> bool | None:
        """What a single job is to do when it is stored: wake who sleeps, True; only look whether
        somebody does, False; neither.
        """
        now = SystemClock.monotonic()
        came_at, self._came_at = self._came_at, now
        if now - max(came_at, self._told_at) > ALONE:
            return True
        return False if now - self._looked_at >= LOOK else None

    def hears(self, queue: str, said: bytes | None, *, has_looked: bool) -> None:
        """Jobs of this queue are stored, and this is what the store said."""
        now = SystemClock.monotonic()
        if said in (HANDED, TOLD):
            self._told_at = now
            return
        if said == ASLEEP:
            self._looked_at = -inf
        elif has_looked:
            self._looked_at = now
            self._queues.clear()
        self._queues.add(queue)

    def left(self) -> float:
        """Seconds until it is to be rung; nobody need wait for that if no queue is new."""
        return max(self._told_at, self._looked_at) + ONCE - SystemClock.monotonic()

    def ring(self) -> list[str]:
        """Queues that somebody is told of now."""
        queues = list(self._queues)
        self._queues.clear()
        self._told_at = SystemClock.monotonic()
        return queues
