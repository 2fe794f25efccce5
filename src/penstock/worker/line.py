"""The line in which claimed attempts wait for a slot: in contract order, across claims."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from penstock.worker.attempt import Attempt


class Line(deque[Attempt]):
    """Attempts, most urgent first.

    Each claim arrives in contract order, and ``number`` keeps it. Between claims only the priority
    can be compared: tickets of different queues cannot, so what was claimed first goes first.
    """

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Put attempts where they belong."""
        is_sorted = True
        last = _urgency(self[-1]) if self else None
        for attempt in attempts:
            urgency = _urgency(attempt)
            if last is not None and urgency < last:
                is_sorted = False
            last = urgency
        self.extend(attempts)
        if not is_sorted:
            attempts = sorted(self, key=_urgency)
            self.clear()
            self.extend(attempts)

    def withdraw(self, attempt: Attempt) -> bool:
        """Take this one out; False: it is not here."""
        try:
            self.remove(attempt)
        except ValueError:
            return False
        return True


def _urgency(attempt: Attempt) -> tuple[int, int]:
    return attempt.job.priority, attempt.number
