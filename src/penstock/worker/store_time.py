"""What time the store has, estimated between two exchanges."""

from __future__ import annotations

from penstock.clock import Clock


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
