"""How long to wait before the store is tried again: longer each time, never in step with others."""

from __future__ import annotations

from collections.abc import Callable
from random import random
from typing import Final

FIRST: Final = 0.05
LONGEST: Final = 5.0


class Backoff:
    """Waits that double up to ``longest``, each of them half left to chance."""

    def __init__(self, longest: float = LONGEST, chance: Callable[[], float] = random) -> None:
        self._longest = longest
        self._chance = chance
        self.failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        wait = min(self._longest, FIRST * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return wait * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """It went well."""
        self.failures = 0
