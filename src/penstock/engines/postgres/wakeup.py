"""The wake-up of the PostgreSQL engine: LISTEN on a connection of its own, or else polling.

A NOTIFY takes a lock of the whole cluster when it commits, so ours are sent only when somebody
sleeps. Whoever is about to sleep says so in ``penstock.sleeper`` (committed), then looks once more.
Whoever has committed something asks, after the commit, whether anybody sleeps, and only then
notifies: either the sleeper's look sees the commit, or the writer's look sees the sleeper (law 11).
To be known as a sleeper is good for a few seconds, by the server's own clock, and renewed while
somebody sleeps, so that a busy store is not written to at every nap. Transactions of others always
notify, for nobody looks after them.

Sleepers are of a kind, so that a job which ends wakes those who wait for results, and no idle
worker. Whoever enqueued plain jobs says for which queue, so that a worker which takes any job of it
need not look before it claims.

Without a proven ear (see ``ear``) we poll, from often to seldom, and begin anew when there was
work: the server's snapshot is another one after every commit, and reading it costs next to nothing.

| if                                      | then                                                   |
|-----------------------------------------|--------------------------------------------------------|
| a notification is lost all the same     | nobody sleeps longer than ``POLL`` without a look      |
| the ear goes deaf                       | everybody who sleeps looks, then polls                 |
| it hears again                          | who polls becomes a sleeper, then looks once more      |
| the server is killed                    | it has forgotten who sleeps, and their ears are deaf   |
| a sleeper dies                          | it is notified in vain for at most ``LEASE``           |
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Final

import psycopg

from penstock.clock import Clock
from penstock.core.ids import new_id
from penstock.engines.postgres.connection import Link
from penstock.engines.postgres.errors import named_errors
from penstock.engines.postgres.pool import Links
from penstock.engines.postgres.schema import placed
from penstock.errors import EngineClosed, EngineCrowded, EngineError

# --- ear ----------------------------------------------------------------------------------------
#
# The ear of one handle: a connection that listens, and proof that it hears.
#
# That LISTEN was accepted says little: behind a pooler it was said on a connection that somebody
# else
# has by now, and a connection that died without a word looks like one on which nothing happens. So
# a
# notification of our own is sent, over another connection, and has to come. It is sent at the start
# and whenever nothing was heard for a while; as everybody hears it, one process at a time sends
# one,
# however many there are.
#
# While it does not hear, it tries again, at growing intervals.


QUIET: Final = 15.0
"""Seconds without a sound after which one is made."""
PATIENCE: Final = 5.0
"""Seconds that a sound of our own may take."""
AGAIN: Final = (0.1, 30.0)
"""Shortest and longest pause before it is tried again."""

SURE: Final = 3
"""Failures in a row after which it is not a passing one."""

PROBE: Final = "probe"


class Deaf(Exception):
    """Nothing will be heard here, however often it is tried; its text says why."""


class Ear:
    """Listens to one channel. Belongs to one loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Link]],
        channel: str,
        send: Callable[[str], Awaitable[None]],
        heard: Callable[[str], object],
        changed: Callable[[], None],
    ) -> None:
        """``send`` notifies the channel over another connection; ``heard`` is called with what
        others say there; ``changed`` is called when it begins to hear, or does no more.
        """
        self._connect = connect
        self._channel = channel
        self._send = send
        self._heard = heard
        self._changed = changed
        self._sounds = 0
        self._sound = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.hears = False
        """It was proven to hear, and nothing speaks against it."""
        self.trouble = ""
        """Why it did not hear the last time."""
        self.is_decided = asyncio.Event()
        """Set once it hears, or could not."""

    @property
    def is_deaf(self) -> bool:
        """It does not hear, and that will not pass by itself in a moment."""
        return not self.hears and self._failures >= SURE

    def prick_up(self) -> None:
        """Listen from now on. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._live(), name="penstock ear")

    async def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # --- inside --------------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                await self._listen()
            except Deaf as error:
                self._fail(str(error), SURE)
            except (psycopg.Error, OSError, EngineError) as error:
                self._fail(" ".join(str(error).split()), 1)
            shortest, longest = AGAIN
            pause = min(longest, shortest * 2.0 ** min(self._failures, 20))
            await asyncio.sleep(pause * (0.5 + random.random() / 2))

    async def _listen(self) -> None:
        """Hear until the connection breaks or is found dead."""
        link = await self._connect()
        try:
            if link.is_pooled:
                raise Deaf("a pooler lends its connections for one transaction each")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hear(link))
                group.create_task(self._prove())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await link.close()

    async def _hear(self, link: Link) -> None:
        async for what in link.listen(self._channel):
            self._sounds += 1
            self._sound.set()
            if what and what != PROBE:
                self._heard(what)
        raise psycopg.OperationalError("the connection that listens was closed")

    async def _prove(self) -> None:
        """Make a sound whenever there was none for a while, and hear it."""
        if not await self._comes():
            raise psycopg.OperationalError(f"LISTEN was not answered for {PATIENCE:g} s")
        while True:
            if await self._was_sent():
                if not await self._comes():
                    raise Deaf(f"a notification of our own did not come for {PATIENCE:g} s")
                self._succeed()
            before = -1
            while self._sounds != before:
                before = self._sounds
                await asyncio.sleep(QUIET * (0.5 + random.random() / 2))

    async def _was_sent(self) -> bool:
        self._sound.clear()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._send(PROBE)
        except (EngineCrowded, TimeoutError):
            return False  # then nothing is known
        return True

    async def _comes(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._sound.wait()
        except TimeoutError:
            return False

    def _succeed(self) -> None:
        self._failures = 0
        self.is_decided.set()
        if not self.hears:
            self.hears = True
            self._changed()

    def _fail(self, why: str, count: int) -> None:
        self._failures += count
        self.trouble = why
        self.is_decided.set()
        if self.hears:
            self.hears = False
            self._changed()


# --- watch --------------------------------------------------------------------------------------


POLL: Final = 1.0
"""Seconds after which a sleeper looks, whatever it was told."""
OFTEN: Final = 0.02
"""Seconds between the first two polls; each pause is half as long again, up to ``POLL``."""
LEASE: Final = 6.0
"""Seconds for which somebody is known to sleep; renewed at half of it."""
DECISION: Final = 2.0
"""Seconds to wait for an ear before one polls meanwhile."""

MOST_QUEUES: Final = 1000
"""Queues that are remembered."""

WORK: Final = "work"
"""A job may have become ready: for idle workers."""
DONE: Final = "done"
"""A job has ended: for those who wait for results."""
ORDERS: Final = "orders"
"""A running job is to be cancelled: for workers that have no room."""
NEWS: Final = "news"
"""Something else has changed."""
ANY: Final = "any"
"""Of whoever commits: all of these. Of whoever sleeps: any of these."""
KINDS: Final = (WORK, DONE, ORDERS, NEWS, ANY)

SOON: Final = 0.001
"""Seconds after which others hear news; what comes until then is told at once."""
SELDOM: Final = 0.05
"""Seconds between two times that they do: whoever uses the connection next has to wait for it."""

_log: Final = logging.getLogger("penstock.postgres")


class Watch:
    """One handle's eye on the store. Belongs to the handle's loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Link]] | None,
        links: Links,
        name: str,
        schema: str,
        clock: Clock,
        told: Callable[[str | None], object],
    ) -> None:
        """``connect`` opens the connection that listens; None: we poll. ``told`` is called when we
        poll though we should not have to (why), and when we do so no more (None).
        """
        self._links = links
        self._name = name
        self._schema = schema
        self._clock = clock
        self._told = told
        self._has_complained = False
        self._id = new_id()
        self._versions = dict.fromkeys(KINDS, 1)
        self._filled: dict[str, int] = {}
        """By queue, which version of ``WORK`` brought jobs that anybody may claim."""
        self._sleeping: dict[asyncio.Event, str] = {}
        self._known_until: dict[str, float] = {}
        self._snapshot = ""
        self._pause = OFTEN
        self._is_closed = False
        self._news: asyncio.TimerHandle | None = None
        self._told_news_at = -inf
        self._ear: Ear | None = None
        if connect is not None:
            channel = placed("penstock.wake", schema)
            self._ear = Ear(connect, channel, self._notify, self._stir, self._relearn)

    # --- whoever writes ------------------------------------------------------------------------

    def after_commit(self, link: Link, kind: str, queue: str = "") -> None:
        """Wake who sleeps for this, in this process and elsewhere; ``queue`` is the one that has
        new jobs, if there is one.
        """
        if kind == NEWS:
            self._tell_news_soon()
        else:
            self._pause = OFTEN
            named = f", {_literal(queue)}" if queue else ""
            link.post(placed(f"SELECT penstock.wake('{kind}'", self._schema) + f"{named})")
        self._stir(kind)

    def _tell_news_soon(self) -> None:
        """Nobody hurries to hear them, and whoever has them has other things to do first."""
        if self._news is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + SOON, self._told_news_at + SELDOM)
            self._news = loop.call_at(at, self._tell_news)

    def _tell_news(self) -> None:
        """Tell them on a connection that is free; if none is, try again later."""
        self._news = None
        self._told_news_at = asyncio.get_running_loop().time()
        link = self._links.free()
        if link is not None:
            link.post(placed(f"SELECT penstock.wake('{NEWS}')", self._schema))
        elif not self._is_closed:
            self._tell_news_soon()

    # --- whoever sleeps ------------------------------------------------------------------------

    async def version(self, kind: str = ANY) -> int:
        """Return a number that changes after any commit of this kind."""
        self._check()
        with named_errors(self._name):
            await self._prick_up()
            if self.hears:
                await self._register(kind)
            else:
                await self._peek()
        return self._versions[kind]

    async def listen(self, seen: int, timeout: float, kind: str = ANY) -> int:
        """Sleep until the version is no longer ``seen``, at most ``timeout`` seconds."""
        deadline = self._clock.monotonic() + timeout
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        polls, heard = 0, self.hears
        self._sleeping[event] = kind
        try:
            while not self._is_closed and self._versions[kind] == seen:
                left = deadline - self._clock.monotonic()
                if left <= 0 or (heard and polls):
                    break
                # In real time: what writes is real, whatever the clock of a test says.
                poll = loop.call_later(self._next_pause(), event.set)
                try:
                    await self._clock.wait(event, left)
                finally:
                    poll.cancel()
                event.clear()
                polls += 1
                if not heard:
                    heard = await self._poll(kind)
                    polls = 0
        finally:
            del self._sleeping[event]
        self._check()
        return self._versions[kind]

    def has_filled(self, queues: Iterable[str], seen: int) -> bool:
        """Since this version of ``WORK`` somebody said that one of these queues has new jobs which
        nothing keeps from being claimed.
        """
        return any(self._filled.get(queue, 0) > seen for queue in queues)

    async def close(self) -> None:
        """Stop listening, and end whoever still sleeps."""
        self._is_closed = True
        if self._news is not None:
            self._news.cancel()
            self._tell_news()
        self._stir(ANY)
        if self._ear is not None:
            await self._ear.close()

    # --- inside --------------------------------------------------------------------------------

    @property
    def hears(self) -> bool:
        """We need not poll."""
        return self._ear is not None and self._ear.hears

    def _check(self) -> None:
        if self._is_closed:
            raise EngineClosed(self._name)

    def _stir(self, what: str) -> None:
        """Something of this kind was committed, perhaps into a queue."""
        kind, _, queue = what.partition(" ")
        kinds = KINDS if kind not in KINDS or kind == ANY else (kind, ANY)
        for each in kinds:
            self._versions[each] += 1
        if queue:
            if len(self._filled) > MOST_QUEUES:
                self._filled.clear()
            self._filled[queue] = self._versions[WORK]
        for event, wanted in self._sleeping.items():
            if wanted in kinds:
                event.set()

    async def _prick_up(self) -> None:
        """See to it that there is an ear, and give it a moment to be proven."""
        if self._ear is None or self._ear.is_decided.is_set():
            return
        self._ear.prick_up()
        try:
            async with asyncio.timeout(DECISION):
                await self._ear.is_decided.wait()
        except TimeoutError:
            pass
        self._check()

    def _relearn(self) -> None:
        """The ear hears again, or does no more."""
        self._known_until.clear()
        self._pause = OFTEN
        if self.hears and self._has_complained:
            self._has_complained = False
            _log.info("listening schema=%s", self._schema)
            self._told(None)
        if not self.hears:
            self._stir(ANY)
        for event in self._sleeping:
            event.set()

    def _next_pause(self) -> float:
        pause = POLL if self.hears else self._pause
        if not self.hears:
            self._pause = min(POLL, 1.5 * self._pause)
        return pause * (0.75 + random.random() / 4)

    async def _poll(self, kind: str) -> bool:
        """See whether there was a commit; True: we need not ask again, for we will be told."""
        with named_errors(self._name):
            hears = self.hears
            if hears:
                await self._register(kind)
            await self._peek()
        return hears

    async def _register(self, kind: str) -> None:
        """Be known as a sleeper, before the last look."""
        now = asyncio.get_running_loop().time()
        if self._known_until.get(kind, 0.0) - now > LEASE / 2:
            return
        async with self._links.use() as link:
            await link.rows(
                placed("SELECT penstock.doze(%s, %s, %s)", self._schema),
                (f"{self._id}-{kind}", kind, LEASE),
            )
        self._known_until[kind] = now + LEASE

    async def _peek(self) -> None:
        """See whether anything was committed since the last time."""
        async with self._links.use() as link:
            ((snapshot,),) = await link.rows("SELECT pg_current_snapshot()::text")
        if self._ear is not None and self._ear.is_deaf and not self._has_complained:
            self._has_complained = True
            _log.warning("polling schema=%s why=%r", self._schema, self._ear.trouble)
            self._told(self._ear.trouble)
        if snapshot != self._snapshot:
            is_first, self._snapshot = not self._snapshot, str(snapshot)
            if not is_first:
                self._stir(ANY)

    async def _notify(self, what: str) -> None:
        """Say something to all who listen."""
        sql = placed("SELECT pg_notify('penstock.wake', %s)", self._schema)
        with named_errors(self._name):
            async with self._links.use() as link:
                await link.rows(sql, (what,))


def _literal(text: str) -> str:
    """A text in a statement that takes no values."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
