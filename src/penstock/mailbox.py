"""A mailbox on an event loop: any thread posts calls, one wake-up delivers all that are there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context


class Mailbox:
    """Calls to be made on one loop, in the order they are posted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._deliveries = 0
        self._signalled_for = -1

    def is_here(self) -> bool:
        """It is the loop that calls: what is to be done there can be done now."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def post(self, call: Callable[[], object]) -> None:
        """Have ``call`` made on the loop; RuntimeError if the loop is closed."""
        # Appended before the count is read, and counted before the box is emptied: whoever finds
        # the next delivery signalled is seen by it. It says so only when it is done, for a signal
        # handler may come in between, post, and wait for that very delivery.
        self._calls.append(call)
        coming = self._deliveries
        if self._signalled_for != coming:
            # In no caller's context, for it delivers the calls of others too.
            self._loop.call_soon_threadsafe(self._deliver, context=Context())
            self._signalled_for = coming

    def _deliver(self) -> None:
        self._deliveries += 1
        while self._calls:
            self._calls.popleft()()
