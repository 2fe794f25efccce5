"""The time outside of a test, which stands still unless it is told to pass."""

from __future__ import annotations


class Real:
    """What ``SystemClock`` says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
