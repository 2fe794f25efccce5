"""Who is responsible for a worker's process, as the worker sees them.

Under a supervisor a worker that cannot go on well is replaced, and what it cannot settle itself,
because a thread that nothing stops still runs it, is settled once its process has died. A worker in
somebody else's process has nobody to ask: its slot stays taken, and it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.core.job import Outcome


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells of itself every second, from a thread that its handlers cannot block
    unless they hold the interpreter.
    """

    worker: str
    running: int = 0
    """Attempts that have started and not ended."""
    waiting: int = 0
    """Claimed jobs that wait for a slot."""
    lag: float = 0.0
    """Seconds that the worker's loop has not come round."""
    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    """Ended for good."""
    retried: int = 0
    memory: int | None = None
    """Bytes."""


class Overseer(Protocol):
    """Any thread may call; no call waits."""

    @property
    def settles(self) -> bool:
        """It settles what is bequeathed to it."""

    def joined(self, worker: str) -> None:
        """The worker has its lease, under this name; it calls again with each new name."""

    def pulse(self, pulse: Pulse) -> None:
        """The worker lives."""

    def replace(self, reason: str, *, is_wedged: bool = False) -> None:
        """Another process should take over; this one goes on until it is told to stop.

        A wedged one has attempts that do not end: it is not waited for longer than ``drain``.
        """

    def bequeath(self, worker: str, outcomes: Sequence[Outcome]) -> None:
        """Settle these when this process is dead, not before."""


class Nobody:
    """Nobody: the worker is on its own."""

    settles = False

    def joined(self, worker: str) -> None:
        """Nobody wants to know."""

    def pulse(self, pulse: Pulse) -> None:
        """Nobody wants to know."""

    def replace(self, reason: str, *, is_wedged: bool = False) -> None:
        """Nobody could."""

    def bequeath(self, worker: str, outcomes: Sequence[Outcome]) -> None:
        """Never called: nobody settles anything."""
