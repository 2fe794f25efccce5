"""Which event loop has a place of its own at the counter of a PostgreSQL store.

One at most, for it takes a connection: the first that comes again and again. Loops that come and go
are served by the clerk, as are all others. It is opened by a thread, since a loop cannot wait, and
nobody waits for it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from math import inf
from typing import Final
from weakref import WeakKeyDictionary

from penstock.clock import SystemClock
from penstock.engines.postgres.booth import Booth
from penstock.engines.postgres.connection import Backend
from penstock.engines.postgres.till import Till
from penstock.engines.postgres.window import LONGEST, Window

REGULAR: Final = 20
"""Visits after which a loop is taken for one that will come again."""
REST: Final = 30.0
"""Seconds without another try, when one went wrong."""


class Regulars:
    """The loops that come to one counter."""

    def __init__(
        self,
        open_till: Callable[[float], Till | None],
        window: Window,
        abandon: Callable[[Backend], object],
        wake: Callable[[Sequence[str]], object],
    ) -> None:
        """``abandon`` and ``wake`` are those of a booth."""
        self._open_till = open_till
        self._new_booth = partial(Booth, window=window, abandon=abandon, wake=wake)
        self._window = window
        self._visits: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        self._booth: Booth | None = None
        self._invited: asyncio.AbstractEventLoop | None = None
        """The loop for which a connection is being made."""
        self._rests_until = -inf
        self._is_closed = False
        self._inviting = threading.RLock()  # a finaliser may come while its own thread has it

    def booth(self) -> Booth | None:
        """The place of the loop that runs in this thread; None: it has none, or not yet."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        booth = self._booth
        if booth is not None and booth.loop is loop and booth.is_open:
            return booth
        visits = self._visits[loop] = self._visits.get(loop, 0) + 1
        if visits >= REGULAR and self._window.instant() is None:
            self._invite(loop)
        return None

    def close(self) -> None:
        """Let the connection go; waits for nobody."""
        self._is_closed = True
        if self._booth is not None:
            self._booth.close()

    def _invite(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._inviting:
            booth = self._booth
            if booth is not None and booth.loop.is_closed():
                booth.close()
            is_vacant = booth is None or not booth.is_open
            is_free = self._invited is None or self._invited.is_closed()
            if not is_vacant or not is_free or SystemClock.monotonic() < self._rests_until:
                return
            self._booth, self._invited = None, loop
        try:
            threading.Thread(
                target=self._open, args=(loop,), name="penstock-booth", daemon=True
            ).start()
        except RuntimeError:  # no thread can be started any more
            self._give_up(inf)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        till: Till | None = None
        try:
            until = SystemClock.monotonic() + LONGEST
            till = self._open_till(until)
            if till is None:
                self._give_up(inf)  # there is a pooler in between
                return
            till.prepare(self._window.statements, until)
            loop.call_soon_threadsafe(self._seat, loop, till, os.getpid(), context=Context())
        except Exception:  # whoever comes to the clerk, or to the loop of the handle, hears why
            if till is not None:
                till.close()
            self._give_up(REST)

    def _seat(self, loop: asyncio.AbstractEventLoop, till: Till, pid: int) -> None:
        """Called on the loop."""
        if pid != os.getpid():
            return  # a fork copied this call
        try:
            self._booth = self._new_booth(loop, till)
        except Exception as error:
            till.close()
            self._give_up(inf if isinstance(error, NotImplementedError) else REST)
            return
        self._visits.pop(loop, None)
        self._invited = None
        if self._is_closed:
            self._booth.close()

    def _give_up(self, seconds: float) -> None:
        self._rests_until = SystemClock.monotonic() + seconds
        self._invited = None
