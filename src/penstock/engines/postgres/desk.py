"""What is behind the counter of a PostgreSQL store: a connection that stores jobs in one commit.

One thread at a time uses it, whoever that is. Only what is usual is done here, jobs of one kind
that are nothing special. Whatever goes wrong, and whatever is not usual, is left to the loop of the
handle, which says what it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

import psycopg
from psycopg import errors

from penstock.clock import SystemClock
from penstock.core.job import Draft
from penstock.engines.postgres.entry import Plain, to_plain
from penstock.engines.postgres.link import Backend, Statement
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.till import Till, open_till
from penstock.engines.queries import statements
from penstock.errors import EngineTimeout

ONCE: Final = 0.002
"""Seconds in which who sleeps is woken once: the first commit does so, and the last."""
ALONE: Final = 0.01
"""Seconds without another job after which one wakes who sleeps with its own commit. That locks out
others who would do so until it is on disk: many who came one after the other would not share it.
"""

REST: Final = (10, 30.0)
"""How many times its own duration nobody tries to connect again after that went wrong, and how many
seconds at most: where connections are swallowed, each caller would wait for one.
"""

LAST_WORDS: Final = 0.5
"""Seconds that they may take."""

HANDED: Final = b"handed"
"""What the store says when it gave a job to a worker at once: then nobody else need be woken."""


class Window:
    """What the counter has to know of its store."""

    def __init__(
        self,
        name: str,
        schema: str,
        doubted_at: Callable[[], float],
        doubt: Callable[[Sequence[Draft]], None],
        instant: Callable[[], float | None],
    ) -> None:
        """``doubted_at`` and ``doubt`` are of the handle: since when nothing that it sent is in
        doubt, and that something is now. ``instant`` is what a test says the time is.
        """
        self.name = name
        self.doubted_at = doubted_at
        self.doubt = doubt
        self.instant = instant
        self.put = _statement("put", schema)
        self.put_one = _statement("put_one", schema)
        self.wake = _statement("wake", schema)
        self.tell_news = _statement("tell_news", schema)


def _statement(name: str, schema: str) -> Statement:
    return Statement(name.encode(), placed(statements("postgres/counter.sql")[name], schema))


class Desk:
    """The connection, and the lock that whoever uses it has to hold."""

    def __init__(
        self,
        dsn: str,
        given: Mapping[str, object],
        timeout: float,
        window: Window,
        abandon: Callable[[Backend], object],
    ) -> None:
        """Call ``renew`` first. ``abandon`` is told of what may still be served when its caller has
        left.
        """
        self._open_till = partial(open_till, dsn, given, timeout)
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
        self._woke_at = -inf

    def store(self, drafts: Sequence[Draft], limit: float | None, put_off: set[str]) -> bool:
        """Store jobs of one kind in one commit, and wake who sleeps; False: go to the loop, they
        may be stored. Called with the lock held.

        If others were woken just now, this is ``put_off``: their queue is noted there, and whoever
        calls sees to it that they are woken soon.
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
                self._put(till, plain, until, put_off, is_one=len(drafts) == 1)
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

    def _put(
        self, till: Till, plain: Plain, until: float, put_off: set[str], *, is_one: bool
    ) -> None:
        window = self._window
        row = plain.row(window.doubted_at())
        values = [None if each is None else str(each).encode() for each in row]
        told: bytes | None = None
        since = SystemClock.monotonic() - self._woke_at
        if is_one and row[-1] is None:
            values[-1] = b"t" if since > ALONE else b"f"
            told = till.run(window.put_one, values, until)
        else:
            till.run(window.put, values, until)
        if told:
            self._woke_at = SystemClock.monotonic()
            if told == HANDED:
                till.post(window.tell_news, [], until)
        else:
            put_off.add(plain.queue)
            if since >= ONCE:
                self._wake(till, put_off, until)

    def wake(self, put_off: set[str], limit: float) -> None:
        """Wake who sleeps for jobs of these queues, and forget them. Called with the lock held.

        On failure: what the driver raises.
        """
        if self._till is not None:
            self._wake(self._till, put_off, SystemClock.monotonic() + limit)
        put_off.clear()

    def _wake(self, till: Till, put_off: set[str], until: float) -> None:
        self._woke_at = SystemClock.monotonic()
        while put_off:
            till.post(self._window.wake, [put_off.pop().encode()], until)

    def desert(self, *, at_once: bool) -> None:
        """Somebody waits no longer for what is being stored: it must not happen later. With
        ``at_once``, nobody else is to wait for the server, either.
        """
        till = self._till
        if till is not None:
            self._abandon(till.backend)
            if at_once:
                till.hang_up()

    def tidy(self, put_off: set[str]) -> None:
        """Let the connection go, unless somebody is there: they look once more when they leave.
        Its last words are for those who were put off.
        """
        if self.lock.acquire(blocking=False):
            try:
                if self._till is not None and self._till.is_at_rest:
                    with suppress(psycopg.Error):
                        self.wake(put_off, LAST_WORDS)
                self.drop()
            finally:
                self.lock.release()

    def drop(self) -> None:
        """Let the connection go. Called with the lock held."""
        till, self._till = self._till, None
        if till is not None:
            till.close()
