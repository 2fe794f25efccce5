"""The gate that every attempt passes when it starts: is the lease trusted, must it be alone?"""

from __future__ import annotations

from penstock.clock import Clock
from penstock.worker.attempt import Attempt


class Gate:
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
