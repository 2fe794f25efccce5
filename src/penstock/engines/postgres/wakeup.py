"""The wake-up of the PostgreSQL engine: LISTEN on a connection of its own, or else polling.

A NOTIFY takes a lock of the whole cluster when it commits, so ours are sent only while there are
sleepers. A process that is about to sleep says so in ``penstock.sleeper`` (committed), then looks
once more. A process that has committed something asks, after the commit, whether there is a
sleeper, and only then notifies: either the sleeper's look sees the commit, or the writer's look
sees the sleeper (law 11). To be known as a sleeper is good for a few seconds, by the server's own
clock, and renewed while the sleep goes on, so that a busy store is not written to at every nap.
Transactions of other programs always notify, for nothing of ours looks after them.

Sleepers are of a kind, so that a job which ends wakes those that wait for results, and no idle
worker.

Without a proven ``Listener`` we poll, from often to seldom, and begin anew when there was work: the
server's snapshot is another one after every commit, and reading it costs next to nothing.

| if                                      | then                                                   |
|-----------------------------------------|--------------------------------------------------------|
| a notification is lost all the same     | no sleep is longer than ``POLL`` without a look        |
| the listener does not hear any more     | all sleepers look, then poll                           |
| it hears again                          | a poller becomes a sleeper, then looks once more       |
| the server is killed                    | it has forgotten all sleepers, and no listener hears   |
| a sleeper dies                          | it is notified in vain for at most ``LEASE``           |
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from penstock.clock import Clock
from penstock.core.ids import new_id
from penstock.engines.postgres.connection import SQL, Connection
from penstock.engines.postgres.errors import NAME, named_errors
from penstock.engines.postgres.listener import Listener
from penstock.engines.postgres.pool import ConnectionPool
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.schema import placed
from penstock.engines.records import News
from penstock.errors import EngineClosed

POLL: Final = 1.0
"""Seconds after which a sleeper looks, whatever it was told."""
OFTEN: Final = 0.02
"""Seconds between the first two polls; each pause is half as long again, up to ``POLL``."""
LEASE: Final = 24.0
"""Seconds for which a sleeper is known; renewed at half of it."""
DECISION: Final = 2.0
"""Seconds to wait for the listener to be proven, before we poll meanwhile."""

WORK: Final = News.WORK.value
"""For idle workers."""
DONE: Final = News.DONE.value
"""For callers that wait for results."""
OTHER: Final = "other"
"""Of a commit: something has changed for which no worker and no caller waits."""
CHANGED: Final = News.CHANGED.value
"""Of a commit: all kinds. Of a sleeper: any kind."""
KINDS: Final = (*(kind.value for kind in News), OTHER)

SOON: Final = 0.001
"""Seconds after which sleepers of ``OTHER`` are woken, once for all commits until then."""
SELDOM: Final = 0.05
"""Seconds between two times that they do: the next caller of that connection has to wait for it."""

_log: Final = logging.getLogger("penstock.postgres")


class Wakeups:
    """Wakes sleepers after commits, and sleeps until one comes. Belongs to the engine's loop."""

    def __init__(
        self,
        pool: ConnectionPool,
        schema: str,
        clock: Clock,
        told: Callable[[str | None], object],
        connect: Callable[[], Awaitable[Connection]] | None,
    ) -> None:
        """``told`` is called when we poll though we should not have to (why), and when we do so no
        more (None). ``connect`` opens the connection that listens; None: we poll.
        """
        self._pool = pool
        self._schema = schema
        self._clock = clock
        self._told = told
        self._has_complained = False
        self._id = new_id()
        self._versions = dict.fromkeys(KINDS, 1)
        self._sleepers: dict[asyncio.Event, str] = {}
        self._known_until: dict[str, float] = {}
        self._snapshot = ""
        self._pause = OFTEN
        self._is_closed = False
        self._waking_others: asyncio.TimerHandle | None = None
        self._woke_others_at = -inf
        self._listener: Listener | None = None
        if connect is not None:
            channel = placed("penstock.wake", schema)
            self._listener = Listener(connect, channel, self._notify, self._wake, self._relearn)

    # --- after a commit ------------------------------------------------------------------------

    def after_commit(self, connection: Connection, kind: str) -> None:
        """Wake sleepers of this kind, in this process and elsewhere."""
        if kind == OTHER:
            self._wake_others_soon()
        else:
            self._pause = OFTEN
            connection.post(placed(f"SELECT penstock.wake('{kind}')", self._schema))
        self._wake(kind)

    def _wake_others_soon(self) -> None:
        """These sleepers are in no hurry, and the caller has other things to do first."""
        if self._waking_others is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + SOON, self._woke_others_at + SELDOM)
            self._waking_others = loop.call_at(at, self._wake_others)

    def _wake_others(self) -> None:
        """Tell them on a connection that is free; if none is, try again later."""
        self._waking_others = None
        self._woke_others_at = asyncio.get_running_loop().time()
        connection = self._pool.free()
        if connection is not None:
            connection.post(placed(f"SELECT penstock.wake('{OTHER}')", self._schema))
        elif not self._is_closed:
            self._wake_others_soon()

    # --- sleep ---------------------------------------------------------------------------------

    async def version(self, kind: str) -> int:
        """Return a number that changes after any commit of this kind."""
        self._check()
        with named_errors():
            await self._start_listener()
            if self.hears:
                await self._register(kind)
            else:
                await self._peek()
        return self._versions[kind]

    async def listen(self, kind: str, seen: int, timeout: float) -> int:
        """Sleep until the version is no longer ``seen``, at most ``timeout`` seconds."""
        deadline = self._clock.monotonic() + timeout
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        polls, heard = 0, self.hears
        self._sleepers[event] = kind
        try:
            while not self._is_closed and self._versions[kind] == seen:
                left = deadline - self._clock.monotonic()
                if left <= 0 or (heard and polls):
                    break
                # In real time: other processes write in real time, whatever a test's clock says. A
                # caller that looks again within ``POLL`` by itself is not sent to look before.
                poll = None
                if not heard or left > POLL:
                    poll = loop.call_later(self._next_pause(), event.set)
                try:
                    await self._clock.wait(event, left)
                finally:
                    if poll is not None:
                        poll.cancel()
                event.clear()
                polls += 1
                if not heard:
                    heard = await self._poll(kind)
                    polls = 0
        finally:
            del self._sleepers[event]
        self._check()
        return self._versions[kind]

    async def close(self) -> None:
        """Stop listening, and end every sleep."""
        self._is_closed = True
        if self._waking_others is not None:
            self._waking_others.cancel()
            self._wake_others()
        self._wake(CHANGED)
        if self._listener is not None:
            await self._listener.close()

    # --- inside --------------------------------------------------------------------------------

    @property
    def hears(self) -> bool:
        """We need not poll."""
        return self._listener is not None and self._listener.hears

    def _check(self) -> None:
        if self._is_closed:
            raise EngineClosed(NAME)

    def _wake(self, kind: str) -> None:
        kinds = KINDS if kind not in KINDS or kind == CHANGED else (kind, CHANGED)
        for each in kinds:
            self._versions[each] += 1
        for event, wanted in self._sleepers.items():
            if wanted in kinds:
                event.set()

    async def _start_listener(self) -> None:
        """See to it that there is a listener, and give it a moment to be proven."""
        if self._listener is None or self._listener.is_decided.is_set():
            return
        self._listener.start()
        try:
            async with asyncio.timeout(DECISION):
                await self._listener.is_decided.wait()
        except TimeoutError:
            pass
        self._check()

    def _relearn(self) -> None:
        """The listener hears again, or does no more."""
        self._known_until.clear()
        self._pause = OFTEN
        if self.hears and self._has_complained:
            self._has_complained = False
            _say(logging.INFO, "listening", schema=self._schema)
            self._told(None)
        if not self.hears:
            self._wake(CHANGED)
        for event in self._sleepers:
            event.set()

    def _next_pause(self) -> float:
        pause = POLL if self.hears else self._pause
        if not self.hears:
            self._pause = min(POLL, 1.5 * self._pause)
        return pause * (0.75 + random.random() / 4)

    async def _poll(self, kind: str) -> bool:
        """See whether there was a commit; True: we need not ask again, for we will be told."""
        with named_errors():
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
        await self._rows("doze", f"{self._id}-{kind}", kind, LEASE)
        self._known_until[kind] = now + LEASE

    async def _peek(self) -> None:
        ((snapshot,),) = await self._rows("snapshot")
        if self._listener and self._listener.has_failed and not self._has_complained:
            self._has_complained = True
            _say(logging.WARNING, "polling", schema=self._schema, why=self._listener.trouble)
            self._told(self._listener.trouble)
        if snapshot != self._snapshot:
            is_first, self._snapshot = not self._snapshot, str(snapshot)
            if not is_first:
                self._wake(CHANGED)

    async def _notify(self, payload: str) -> None:
        with named_errors():
            await self._rows("notify", payload)

    async def _rows(self, name: str, *values: object) -> list[Row]:
        async with self._pool.use() as connection:
            return await connection.rows(placed(SQL[name], self._schema), values)


def _say(level: int, event: str, **fields: object) -> None:
    """Log an event with its fields, as ``penstock.logs`` does above this layer."""
    text = "".join([f" {name}={value!r}" for name, value in fields.items()])
    _log.log(level, "%s", event + text, extra={"event": event, "fields": fields})
