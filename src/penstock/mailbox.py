"""A mailbox on an event loop: any thread posts calls, one wake-up delivers all that are there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Mailbox:
    """Calls to be made on one loop, in the order they are posted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._is_signalled = False

    def post(self, call: Callable[[], object]) -> None:
        """Have ``call`` made on the loop; RuntimeError if the loop is closed."""
        # Appended before the flag is read, and the flag is taken down before the box is emptied:
        # whoever finds it up is seen by a delivery that has yet to begin.
        self._calls.append(call)
        if not self._is_signalled:
            try:
                self._is_signalled = True
                self._loop.call_soon_threadsafe(self._deliver)
            except BaseException:  # the loop is closed, or Ctrl-C came in between
                self._is_signalled = False
                raise

    def _deliver(self) -> None:
        self._is_signalled = False
        while self._calls:
            self._calls.popleft()()
