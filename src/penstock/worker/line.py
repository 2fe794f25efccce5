"""The line in which claimed attempts wait for a slot: in contract order, across claims."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from penstock.worker.attempt import Attempt


class Line:
    """Attempts, most urgent first.

    Each claim arrives in contract order, and ``number`` keeps it. Between claims only the priority
    can be compared: tickets of different queues cannot, so what was claimed first goes first.
    """

    def __init__(self) -> None:
        self._waiting: deque[Attempt] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._waiting)

    @property
    def head(self) -> Attempt:
        """The one that is next."""
        return self._waiting[0]

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Put attempts where they belong."""
        waiting = self._waiting
        is_sorted = True
        for attempt in attempts:
            if waiting and _urgency(attempt) < _urgency(waiting[-1]):
                is_sorted = False
            waiting.append(attempt)
        if not is_sorted:
            self._waiting = deque(sorted(waiting, key=_urgency))

    def add_first(self, attempt: Attempt) -> None:
        """Put an attempt before all others."""
        self._waiting.appendleft(attempt)

    def take(self) -> Attempt:
        """Take the next one out."""
        return self._waiting.popleft()

    def remove(self, attempt: Attempt) -> bool:
        """Take this one out; False: it is not here."""
        try:
            self._waiting.remove(attempt)
        except ValueError:
            return False
        return True


def _urgency(attempt: Attempt) -> tuple[int, int]:
    return attempt.job.priority, attempt.number
