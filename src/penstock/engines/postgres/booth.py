"""An event loop's own place at the counter of a PostgreSQL store: it listens to the connection.

To hand a job to another thread, and the answer back, costs a coroutine a third of what the server
needs to store it. Here whoever comes sends its job by itself if nothing is on its way, and stands
in line if something is; all who stand there when the reply comes share the next commit. Nobody
waits for anything but the loop.

| if                                      | then                                                  |
|-----------------------------------------|-------------------------------------------------------|
| one has left the line                   | its job is left out                                   |
| one leaves while its job is being       | the connection is closed, and abandoned: whoever uses |
| stored, or the server does not answer   | the handle next sees to it that the server ended it;  |
| for ``LONGEST`` seconds                 | those who share its commit go to the loop of the      |
|                                         | handle, and send the same ids again                   |
| the connection breaks                   | the same; whoever was to be woken is, by another one  |
| the loop stops, or is blocked           | so is whoever came here; a worker that fell asleep a  |
|                                         | moment before finds their jobs when it looks by       |
|                                         | itself, within a second                               |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from math import inf

import psycopg

from penstock.clock import SystemClock
from penstock.engines.postgres.bell import HANDED, Bell
from penstock.engines.postgres.connection import Backend, Statement, Texts
from penstock.engines.postgres.enqueue import kind_of, to_plain
from penstock.engines.postgres.till import Till
from penstock.engines.postgres.window import BYTES, LONGEST, MOST, Order, Window
from penstock.engines.records import Receipt
from penstock.engines.visitor import Visitor
from penstock.errors import ItemRefused

_Group = dict[Visitor, None]
"""In order; a leaving visitor is looked for in it."""


class Booth:
    """One loop's; only its thread may come, where nothing else is said."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        till: Till,
        window: Window,
        abandon: Callable[[Backend], object],
        wake: Callable[[Sequence[str]], object],
    ) -> None:
        """The statements of the window are prepared. ``wake`` is told of queues that have new jobs,
        when whoever sleeps for these cannot be told here any more.

        On failure: NotImplementedError, where a loop of this kind listens to nothing.
        """
        self.loop = loop
        self.is_open = True
        self._till = till
        self._window = window
        self._abandon = abandon
        self._wake = wake
        self._line: deque[Visitor] = deque()
        self._serving: _Group = {}
        self._order: Order | None = None
        """What was said to serve them."""
        self._is_busy = False
        """Something is on its way."""
        self._is_saying = False
        """Somebody is about to say something, and will look who came meanwhile."""
        self._is_closed = False
        self._sent_at = -inf
        self._bell = Bell()
        self._waking: list[str] = []
        """Queues that somebody is told of now."""
        self._has_news = False
        self._reminder: asyncio.TimerHandle | None = None
        self._guard: asyncio.TimerHandle | None = None
        self._fd = till.fileno()
        Context().run(loop.add_reader, self._fd, self._hear)  # in no caller's context

    def enter(self, visitor: Visitor) -> None:
        """Stand in line, and be served if nobody is."""
        try:
            self._line.append(visitor)
            if not self._is_busy:
                self._go_on()
        except BaseException:
            self.leave(visitor)
            raise

    def leave(self, visitor: Visitor) -> None:
        """A caller does not wait for its answer: what is on its way must not arrive later."""
        visitor.leave()
        if visitor in self._serving:
            self._break()

    def close(self) -> None:
        """Let the connection go when nobody is served. Any thread may call; waits for nobody."""
        self.is_open = False
        if self.loop.is_running():
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._go_on, context=Context())
                return
        if self._is_busy:
            self._break()  # nobody will hear the reply
        else:
            self._go_on()

    # --- what is said --------------------------------------------------------------------------

    def _go_on(self) -> None:
        self._safely(self._say)

    def _safely(self, do: Callable[[], None]) -> None:
        """Whatever happens in the middle of it, nobody goes on from there, and nobody waits."""
        try:
            do()
        except psycopg.Error:
            self._break()
        except BaseException:
            self._break()
            raise

    def _say(self) -> None:
        """Say what is next, until something is on its way or nothing is left. A finaliser may come
        in the middle of it.
        """
        if self._is_saying:
            return
        self._is_saying = True
        try:
            while not self._is_busy and not self._is_closed:
                if not self.is_open:
                    self._part()
                elif self._has_news:
                    self._has_news = False
                    self._send(self._window.tell_news, [])
                elif self._is_time_to_wake():
                    self._send(self._window.wake, [self._waking.pop().encode()])
                elif self._line:
                    self._store(self._group())
                else:
                    break
        finally:
            self._is_saying = False

    def _is_time_to_wake(self) -> bool:
        if self._bell and not self._waking:
            left = self._bell.left()
            if left <= 0:
                self._waking = self._bell.ring()
            elif self._reminder is None:
                self._reminder = self.loop.call_later(left, self._remind, context=Context())
        return bool(self._waking)

    def _group(self) -> _Group:
        """The first ones in line who are still there, as long as their jobs are of one kind."""
        group: _Group = {}
        first: Visitor | None = None
        weight = 0
        while self._line and len(group) < MOST and weight < BYTES:
            visitor = self._line[0]
            if not visitor.has_gone:
                if first is not None and kind_of(visitor.draft) != kind_of(first.draft):
                    break
                first = first or visitor
                group[visitor] = None
                weight += len(visitor.draft.payload)
            self._line.popleft()
        return group

    def _store(self, group: _Group) -> None:
        if not group:
            return
        self._serving = group
        try:
            plain = to_plain(self._window.name, [visitor.draft for visitor in group])
        except ItemRefused:
            plain = None
        if plain is None:
            self._answer(is_stored=False)  # the loop of the handle says why
        else:
            order = self._order = self._window.order(plain, self._bell)
            self._send(order.statement, order.values)

    def _send(self, statement: Statement, values: Texts) -> None:
        self._is_busy = True
        self._sent_at = SystemClock.monotonic()
        if not self._till.send(statement, values):
            Context().run(self.loop.add_writer, self._fd, self._write)
        if self._guard is None:
            self._guard = self.loop.call_later(LONGEST, self._look, context=Context())

    def _part(self) -> None:
        """Leave for good: whoever stands in line goes to the loop of the handle."""
        words: list[tuple[Statement, Texts]] = [
            (self._window.wake, [queue.encode()]) for queue in self._unheard()
        ]
        if self._has_news:
            words.append((self._window.tell_news, []))
        if words:
            self._till.say_last(words)
        self._end()

    def _unheard(self) -> list[str]:
        """Queues with jobs that nobody was told of."""
        queues = [*self._waking, *self._bell.ring()]
        self._waking.clear()
        return queues

    # --- what the loop calls -------------------------------------------------------------------

    def _write(self) -> None:
        self._safely(self._flush)

    def _flush(self) -> None:
        if self._till.flush():
            self.loop.remove_writer(self._fd)

    def _hear(self) -> None:
        self._safely(self._take_in)

    def _take_in(self) -> None:
        if not self._till.hear() or not self._is_busy:
            return
        said = self._till.reply()
        self._is_busy = False
        order, self._order = self._order, None
        if order is not None:
            self._has_news = said == HANDED
            self._bell.hears(order.queue, said, has_looked=order.has_looked)
            self._answer(is_stored=True)
        self._say()

    def _remind(self) -> None:
        self._reminder = None
        self._go_on()

    def _look(self) -> None:
        """See whether the server still answers."""
        self._guard = None
        left = self._sent_at + LONGEST - SystemClock.monotonic()
        if self._is_busy and left <= 0:
            self._break()
        elif self._is_busy:
            self._guard = self.loop.call_later(left, self._look, context=Context())

    # --- its end -------------------------------------------------------------------------------

    def _answer(self, *, is_stored: bool) -> None:
        for visitor in self._serving:
            visitor.tell(Receipt(visitor.draft.id, True) if is_stored else None)
        self._serving = {}

    def _break(self) -> None:
        """Nobody goes on from here, whatever it is in the middle of."""
        if not self._is_closed:
            if not self._till.is_at_rest:
                self._abandon(self._till.backend)
            if self._serving:
                self._window.doubt([visitor.draft for visitor in self._serving])
            queues = self._unheard()
            self._end()
            if queues:
                self._wake(queues)

    def _end(self) -> None:
        self.is_open, self._is_closed = False, True
        with suppress(RuntimeError):  # it is closed, and listens to nothing
            self.loop.remove_reader(self._fd)
            self.loop.remove_writer(self._fd)
        for timer in (self._reminder, self._guard):
            if timer is not None:
                timer.cancel()
        self._till.close()
        self._answer(is_stored=False)
        while self._line:
            self._line.popleft().tell(None)
