"""The line in which claimed attempts wait for a slot: in contract order, across claims."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from penstock.worker.attempt import Attempt


class Line(deque[Attempt]):
    """Attempts, most urgent first.

    Each claim arrives in contract order, and ``number`` keeps it. Between claims only the priority
    can be compared: tickets of different queues cannot, so what was claimed first goes first.
    """

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Put attempts where they belong."""
        is_sorted = True
        last_priority, last_number = _urgency(self[-1]) if self else (-inf, 0)
        for attempt in attempts:
            priority, number = attempt.job.priority, attempt.number
            if priority < last_priority or (priority == last_priority and number < last_number):
                is_sorted = False
            last_priority, last_number = priority, number
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
