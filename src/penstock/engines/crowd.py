"""Whether a store's counter has visitors on several threads: sharing costs them less than turns."""

from __future__ import annotations

import threading
from math import inf
from typing import Final

from penstock.clock import SystemClock

CROWD: Final = 0.002
"""Seconds between two callers who are taken for many, so that they will meet."""


class Crowd:
    """Who came of late. A hint: threads that come at the same instant may not see each other."""

    def __init__(self) -> None:
        self._last = (0, -inf)
        self._other_at = -inf
        """When somebody came last who was not the last to come."""

    def comes(self) -> bool:
        """This thread comes; True: another one came a moment ago, so that they will meet."""
        (before, at), me, now = self._last, threading.get_ident(), SystemClock.monotonic()
        self._last = me, now
        if before == me:
            return False
        self._other_at = at
        return now - at < CROWD

    def alone_for(self) -> float:
        """For how many seconds nobody has come but the last one."""
        return SystemClock.monotonic() - self._other_at
