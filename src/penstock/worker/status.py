"""What a worker tells of itself: to its parent every second, in counters, and as the store's time.

Under a supervisor a worker that cannot go on well is replaced, and what it cannot settle itself,
because a thread that nothing stops still runs it, is settled once its process has died. A worker in
an application's own process has no parent: its slot stays taken, and it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, assert_never

import msgspec

from penstock.clock import Clock
from penstock.core.job import SUCCEEDED, Outcome, OutcomeKind, Verdict


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


class Parent(Protocol):
    """The process that started the worker's and watches it. Any thread may call; no call waits."""

    @property
    def settles(self) -> bool:
        """It settles outcomes after the worker's death."""

    def joined(self, worker: str) -> None:
        """The worker has its lease, under this name; it calls again with each new name."""

    def pulse(self, pulse: Pulse) -> None:
        """The worker lives."""

    def settled(
        self, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict], given_up: int
    ) -> None:
        """The store has judged these outcomes, and ``given_up`` jobs have crashed too often."""

    def replace(self, reason: str, *, is_wedged: bool = False) -> None:
        """Another process should take over; this one goes on until it is told to stop.

        A wedged one has attempts that do not end: it is not waited for longer than ``drain``.
        """

    def settle_after_death(self, worker: str, outcomes: Sequence[Outcome]) -> None:
        """Settle these when this process is dead, not before."""


class NoParent:
    """The worker is on its own."""

    settles = False

    def joined(self, worker: str) -> None:
        pass

    def pulse(self, pulse: Pulse) -> None:
        pass

    def settled(
        self, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict], given_up: int
    ) -> None:
        pass

    def replace(self, reason: str, *, is_wedged: bool = False) -> None:
        pass

    def settle_after_death(self, worker: str, outcomes: Sequence[Outcome]) -> None:
        """Never called: ``settles`` is false."""


@dataclass(slots=True)
class Stats:
    """Counters that only grow; written by the worker's loop, read by any thread."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    snoozed: int = 0
    cancelled: int = 0
    released: int = 0
    expired: int = 0
    crashed: int = 0
    dropped: int = 0
    """Attempts whose lease was lost."""
    exchanges: int = 0

    def count(self, kind: OutcomeKind) -> None:
        """An attempt has ended so."""
        if kind is SUCCEEDED:
            self.succeeded += 1
            return
        match kind:
            case OutcomeKind.FAILED:
                self.failed += 1
            case OutcomeKind.RETRY:
                self.retried += 1
            case OutcomeKind.SNOOZE:
                self.snoozed += 1
            case OutcomeKind.CANCELLED:
                self.cancelled += 1
            case OutcomeKind.RELEASED:
                self.released += 1
            case OutcomeKind.EXPIRED:
                self.expired += 1
            case OutcomeKind.CRASHED:
                self.crashed += 1
            case _:
                assert_never(kind)

    def counted(self) -> dict[str, Any]:
        """The counters that are not zero, by name."""
        pairs = ((field.name, int(getattr(self, field.name))) for field in fields(self))
        return {name: value for name, value in pairs if value}


class StoreTime:
    """The store's instant: the last one it told, plus what has passed since. Any thread may ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None

    def now(self) -> float:
        """The store's instant; before the first exchange, this process's own."""
        offset = self._offset
        return self._clock.now() if offset is None else self._clock.monotonic() + offset

    def told(self, now: float) -> None:
        """The store said that it is ``now``."""
        self._offset = now - self._clock.monotonic()
