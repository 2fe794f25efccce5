"""What a worker has done so far, for a status line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, assert_never

from penstock.core.job import SUCCEEDED, OutcomeKind


@dataclass(slots=True)
class Stats:
    """Counters that only grow; written by the worker's loop, read by anyone."""

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
