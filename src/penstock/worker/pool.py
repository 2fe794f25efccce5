"""What the worker expects of a place where attempts run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Protocol

from penstock.clock import Clock
from penstock.core.job import Outcome

if TYPE_CHECKING:
    from penstock.worker.inflight import Attempt
    from penstock.worker.runner import Runner


# --- gate ---------------------------------------------------------------------------------------
#
# The gate that every attempt passes when it starts: is the lease trusted, must it be alone?


class StartGate:
    """Asked by slots and threads right before a handler runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.trusted_until = 0.0
        """On the monotonic clock. Only the lease moves it, from any thread."""
        self.alone: Attempt | None = None
        """The one attempt that may start until it has ended."""

    @property
    def is_trusted(self) -> bool:
        """Nobody can have taken this worker's jobs yet."""
        return self._clock.monotonic() < self.trusted_until

    def admits(self, attempt: Attempt) -> bool:
        """The attempt may start now."""
        alone = self.alone
        is_next = alone is None or alone is attempt
        return is_next and self._clock.monotonic() < self.trusted_until


# --- line ---------------------------------------------------------------------------------------
#
# The line in which claimed attempts wait for a slot: in contract order, across claims.


class AttemptQueue(deque["Attempt"]):
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


# --- pool ---------------------------------------------------------------------------------------


class Pool(Protocol):
    """Attempts wait here in line and run when there is room and the gate admits them."""

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
        """WorkersSeen again: the gate may have opened."""

    def withdraw(self, attempt: Attempt) -> bool:
        """Take out an attempt that waits; False: it has started."""

    def discard(self, attempt: Attempt) -> None:
        """Forget an attempt that waits here and that somebody else has seized."""

    def interrupt(self, attempt: Attempt) -> None:
        """Stop a running attempt, as far as that is possible; ``attempt.ending`` says why."""

    def insist(self, attempt: Attempt) -> None:
        """Stop it by all means there are: it was interrupted a while ago, and still runs."""

    def close(self) -> None:
        """Start nothing more; what still runs is nobody's business."""


# --- means --------------------------------------------------------------------------------------
#
# What every place where attempts run needs of its worker.


@dataclass(frozen=True, slots=True)
class Means:
    """Both calls are made on the worker's loop."""

    runner: Runner
    gate: StartGate
    clock: Clock
    begun: Callable[[Attempt], None]
    """Told of each watched attempt that has started."""
    finished: Callable[[Attempt, Outcome | None], None]
    """Told of each attempt that has ended; without an outcome, nobody wants to know it."""
    kept: Mapping[int, int] = field(default_factory=dict)
    """The slots that are kept, by priority."""
