"""Where attempts run: what every pool offers, in which order attempts wait, and when they start."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Protocol

from penstock.clock import Clock

if TYPE_CHECKING:
    from penstock.worker.inflight import Attempt


class Pool(Protocol):
    """Attempts wait here in order and run when there is room and the gate admits them."""

    size: int
    """Attempts that may run at once."""

    @property
    def load(self) -> int:
        """Attempts that wait or run here."""

    @property
    def is_quiet(self) -> bool:
        """Nothing runs here."""

    @property
    def waiting(self) -> list[Attempt]:
        """Those that have not started, the next one first."""

    def put(self, attempts: Sequence[Attempt]) -> None:
        """Let attempts run as soon as there is room."""

    def put_first(self, attempt: Attempt) -> None:
        """Let an attempt run before all that wait."""

    def pump(self) -> None:
        """Look again: the gate may have opened."""

    def withdraw(self, attempt: Attempt) -> bool:
        """Take out an attempt that waits; False: it has started."""

    def discard(self, attempt: Attempt) -> None:
        """Forget an attempt that waits here and that the caller has seized."""

    def interrupt(self, attempt: Attempt) -> None:
        """Stop a running attempt, as far as that is possible; ``attempt.ending`` says why."""

    def insist(self, attempt: Attempt) -> None:
        """Stop it by all means there are: it was interrupted a while ago, and still runs."""

    def close(self) -> None:
        """Start nothing more; the outcomes of what still runs are dropped."""


class StartGate:
    """Asked by pools right before a handler runs: is the lease trusted, must it be alone?"""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.trusted_until = 0.0
        """On the monotonic clock. Only the lease moves it, from any thread."""
        self.alone: Attempt | None = None
        """The one attempt that may start until it has ended."""

    @property
    def is_trusted(self) -> bool:
        """No other worker can have this worker's jobs yet."""
        return self._clock.monotonic() < self.trusted_until

    def admits(self, attempt: Attempt) -> bool:
        """The attempt may start now."""
        alone = self.alone
        is_next = alone is None or alone is attempt
        return is_next and self._clock.monotonic() < self.trusted_until


class AttemptQueue(deque["Attempt"]):
    """Claimed attempts that wait for a slot, most urgent first.

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
