"""What is behind the counter of a PostgreSQL store: a connection that stores jobs in one commit.

One thread at a time uses it, whoever that is. Only what is usual is done here, jobs of one kind
that are nothing special. Whatever goes wrong, and whatever is not usual, is left to the loop of the
handle, which says what it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Final

import psycopg
from psycopg import errors

from penstock.clock import SystemClock
from penstock.core.job import Draft
from penstock.engines.postgres.bell import HANDED, Bell
from penstock.engines.postgres.connection import Backend
from penstock.engines.postgres.enqueue import Plain, to_plain
from penstock.engines.postgres.till import Till
from penstock.engines.postgres.window import Window
from penstock.errors import EngineTimeout

REST: Final = (10, 30.0)
"""How many times its own duration nobody tries to connect again after that went wrong, and how many
seconds at most: where connections are swallowed, each caller would wait for one.
"""

LAST_WORDS: Final = 0.5
"""Seconds that they may take."""


class Desk:
    """The connection, and the lock that whoever uses it has to hold."""

    def __init__(
        self,
        open_till: Callable[[float], Till | None],
        window: Window,
        abandon: Callable[[Backend], object],
    ) -> None:
        """Call ``renew`` first. ``open_till`` connects until an instant. ``abandon`` is told of
        what may still be served when its caller has left.
        """
        self._open_till = open_till
        self._abandon = abandon
        self._window = window
        self.is_open = True
        """Jobs are stored here."""

    def renew(self) -> None:
        """Be as new; what a fork copied is its parent's, and nothing of it is closed."""
        self.lock = threading.Lock()
        self.is_taken = False
        """A hint that somebody holds the lock: only that is sure."""
        self._till: Till | None = None
        self._rests_until = -inf
        self.bell = Bell()
        """Whoever stores jobs sees to it that it is rung in time."""

    def store(self, drafts: Sequence[Draft], limit: float | None) -> bool:
        """Store jobs of one kind in one commit; False: go to the loop, they may be stored. Called
        with the lock held.

        On failure: ``ItemRefused``; ``EngineTimeout``, then they may be stored all the same.
        """
        window = self._window
        plain = to_plain(window.name, drafts)
        now = SystemClock.monotonic()
        if plain is None or not self.is_open or now < self._rests_until:
            return False
        until = inf if limit is None else now + limit
        try:
            till = self._till or self._connected(until)
            if till is None:
                # The loop knows what to do with a pooler.
                self.is_open = False
                return False
            self._till = till
            try:
                till.set_clock(window.instant(), until)
                self._put(till, plain, until)
            except BaseException:
                # Whatever it was in the middle of: nobody goes on from there.
                if not till.is_at_rest:
                    self._abandon(till.backend)
                self.drop()
                raise
        except BaseException as error:
            window.doubt(drafts)
            if isinstance(error, errors._WaitTimeout):
                what = "enqueue" if len(drafts) == 1 else f"{len(drafts)} jobs"
                why = f"{what} took longer than {limit:g} s"
                raise EngineTimeout(window.name, why) from error
            # The other way says what is wrong, or finds that it went well all the same.
            if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.DataError):
                return False
            raise
        return True

    def _connected(self, until: float) -> Till | None:
        began_at = SystemClock.monotonic()
        try:
            return self._open_till(until)
        except psycopg.Error:
            now, (times, most) = SystemClock.monotonic(), REST
            self._rests_until = now + min(most, times * (now - began_at))
            raise

    def _put(self, till: Till, plain: Plain, until: float) -> None:
        order = self._window.order(plain, self.bell)
        said = till.run(order.statement, order.values, until)
        self.bell.hears(order.queue, said, has_looked=order.has_looked)
        if said == HANDED:
            till.post(self._window.tell_news, [], until)
        elif self.bell.left() <= 0:
            self._ring(till, until)

    def ring(self, limit: float, queues: Sequence[str] = ()) -> None:
        """Wake who sleeps for jobs that nobody was told of, and for these queues. Called with the
        lock held.

        On failure: what the driver raises.
        """
        if self._till is None:
            self.bell.ring()  # then they look by themselves, within a second
        else:
            self._ring(self._till, SystemClock.monotonic() + limit, queues)

    def _ring(self, till: Till, until: float, queues: Sequence[str] = ()) -> None:
        for queue in {*self.bell.ring(), *queues}:
            till.post(self._window.wake, [queue.encode()], until)

    def desert(self, *, at_once: bool) -> None:
        """Somebody waits no longer for what is being stored: it must not happen later. With
        ``at_once``, nobody else is to wait for the server, either.
        """
        till = self._till
        if till is not None:
            self._abandon(till.backend)
            if at_once:
                till.hang_up()

    def tidy(self) -> None:
        """Let the connection go, unless somebody is there: they look once more when they leave.
        Its last words are for those who sleep.
        """
        if self.lock.acquire(blocking=False):
            try:
                if self._till is not None and self._till.is_at_rest:
                    with suppress(psycopg.Error):
                        self.ring(LAST_WORDS)
                self.drop()
            finally:
                self.lock.release()

    def drop(self) -> None:
        """Let the connection go. Called with the lock held."""
        till, self._till = self._till, None
        if till is not None:
            till.close()
