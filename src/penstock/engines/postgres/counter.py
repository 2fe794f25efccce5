"""The counter of a PostgreSQL store: where any thread hands jobs in without the handle's loop.

A hand-over to the loop and back costs as much as storing a job. So whoever may block and finds the
counter free serves itself, on its own thread, with one job or several. Whoever does not, or may not
block, stands in line with its job, where a clerk takes all who stand there into one commit: single
callers save the way, many share commits. Whoever has several jobs and is not alone here does not
stand in line, but goes to the loop.

| if                                      | then                                                  |
|-----------------------------------------|-------------------------------------------------------|
| a caller is interrupted, or its time is | the connection is closed, and abandoned: whoever uses |
| over                                    | the handle next sees to it that the server ended it   |
| one has left the line                   | its job is left out                                   |
| one leaves while its job is being       | the connection is abandoned as well; those who share  |
| stored                                  | its commit go to the loop if that was not done yet    |
| the server does not answer              | callers leave when their time is over; the clerk      |
|                                         | gives up after ``LONGEST`` seconds, or when a caller  |
|                                         | who blocks has left                                   |
| the connection breaks                   | the callers go to the loop and send the same ids      |
|                                         | again, which are looked for first                     |
| a signal handler, or a finaliser,       | it finds its own thread at the counter, and goes to   |
| enqueues in the middle of an enqueue    | the loop                                              |
| the process forks                       | the child has no connection and no clerk, and gets    |
|                                         | its own                                               |
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from penstock.core.job import Draft, ids_of, payloads_of
from penstock.engines.crowd import Crowd
from penstock.engines.engine import Answer
from penstock.engines.postgres.connection import Backend
from penstock.engines.postgres.desk import Desk
from penstock.engines.postgres.enqueue import kind_of
from penstock.engines.postgres.regulars import Regulars
from penstock.engines.postgres.till import open_till
from penstock.engines.postgres.window import BYTES, LONGEST, MOST, Window
from penstock.engines.records import Receipt
from penstock.engines.validation import is_plain
from penstock.engines.visitor import Visitor, wait_for

APART: Final = 0.1
"""Seconds for which no other thread has come where one with several jobs serves itself: a commit of
many jobs would keep others waiting, who come again and again.
"""
PATIENCE: Final = 1.0
"""Seconds that the clerk waits for somebody who serves itself."""


class Reminder(NamedTuple):
    """Stands in line for nobody: there is somebody to be woken, for these queues now, for those of
    the bell soon.
    """

    queues: tuple[str, ...] = ()


REMINDER: Final = Reminder()

Line = SimpleQueue[Visitor | Reminder | None]
"""None: there is no more to come."""


class Counter:
    """One handle's counter; any thread may come to it."""

    def __init__(
        self,
        dsn: str,
        given: Mapping[str, object],
        timeout: float,
        window: Window,
        abandon: Callable[[Backend], object],
    ) -> None:
        """``abandon`` is told of what may still be served when its caller has left."""
        self._window = window
        open_one = partial(open_till, dsn, given, timeout)
        self._desk = Desk(open_one, window, abandon)
        self._new_regulars = partial(Regulars, open_one, window, abandon, self._wake)
        self._renew()

    def _renew(self) -> None:
        """Be as new; what a fork copied is its parent's, and nothing of it is closed."""
        self._pid = os.getpid()
        self._desk.renew()
        self._line: Line = SimpleQueue()
        self._hiring = threading.RLock()
        self._clerks: set[threading.Thread] = set()
        """Threads that serve the line: none, or one; two if a hiring was interrupted."""
        self._user = 0
        self._serving: set[Visitor] = set()
        self._is_minded = False
        """The clerk knows that there are jobs which nobody was told of yet."""
        self._crowd = Crowd()
        self._regulars = self._new_regulars()

    def close(self) -> None:
        """Let the connection go, or leave that to who uses it; whoever comes later goes to the
        loop. Waits for nobody who is being served.
        """
        self._desk.is_open = False
        if self._pid == os.getpid():
            self._regulars.close()
            self._line.put(None)
            self._desk.tidy()
            for clerk in list(self._clerks):
                if not self._serving:
                    clerk.join(PATIENCE)  # it has nothing to do but to go

    # --- who comes -----------------------------------------------------------------------------

    def serve(self, drafts: Sequence[Draft], timeout: float | None) -> list[Receipt] | None:
        """Store jobs while this thread waits; None: go to the loop, they may be stored.

        On failure: ``ItemRefused``; ``EngineTimeout``, then they may be stored all the same.
        """
        is_small = len(drafts) == 1 or sum(map(len, payloads_of(drafts))) <= BYTES
        if not self._may_come(drafts[0]) or not is_small:
            return None
        meets_others, is_one = self._crowd.comes(), len(drafts) == 1
        is_welcome = not meets_others if is_one else self._crowd.alone_for() >= APART
        if is_welcome and not self._desk.is_taken:
            return self._serve_oneself(drafts, timeout)
        if not is_one:
            return None  # the loop has other connections
        receipt = self._stand(drafts[0], timeout)
        return None if receipt is None else [receipt]

    def _stand(self, draft: Draft, timeout: float | None) -> Receipt | None:
        entered: list[Visitor] = []

        def enter(visitor: Visitor) -> None:
            entered.append(visitor)
            self._enter(visitor)

        try:
            return wait_for(draft, enter, timeout, self._window.name)
        except BaseException:
            for visitor in entered:
                self._leave(visitor)
            self._give_up()
            raise

    def hand_in(self, draft: Draft, answer: Answer) -> Callable[[], None] | None:
        """Stand in line without waiting; returns what leaves it. None: go to the loop."""
        if not self._may_come(draft):
            return None
        visitor = Visitor(draft, answer)
        booth = self._regulars.booth()
        if booth is not None:
            booth.enter(visitor)
            return partial(booth.leave, visitor)
        self._crowd.comes()
        self._enter(visitor)
        return partial(self._leave, visitor)

    def _may_come(self, draft: Draft) -> bool:
        if self._pid != os.getpid():
            self._renew()
        me = threading.get_ident()
        is_here = me == self._user or any(clerk.ident == me for clerk in list(self._clerks))
        return self._desk.is_open and not is_here and is_plain(draft)

    def _serve_oneself(
        self, drafts: Sequence[Draft], timeout: float | None
    ) -> list[Receipt] | None:
        try:
            with self._desk.lock:
                try:
                    self._desk.is_taken = True
                    self._user = threading.get_ident()
                    is_stored = self._desk.store(drafts, timeout)
                finally:
                    self._user = 0
                    self._desk.is_taken = False
        finally:
            if not self._desk.is_open:
                self._desk.tidy()
        if self._desk.bell and not self._is_minded:
            self._enter(REMINDER)
            if not self._clerks:
                self._ring()  # nobody can be hired any more
        return [Receipt(id, True) for id in ids_of(drafts)] if is_stored else None

    # --- who stands in line --------------------------------------------------------------------

    def _enter(self, visitor: Visitor | Reminder) -> None:
        self._line.put(visitor)
        if not self._desk.is_open:
            self._line.put(None)
        if self._clerks:
            return
        with self._hiring:
            if self._clerks:
                return
            clerk = threading.Thread(
                target=self._work, args=(self._line,), name="penstock-counter", daemon=True
            )
            self._clerks.add(clerk)
            try:
                clerk.start()
            except BaseException as error:
                self._clerks.discard(clerk)
                if not isinstance(error, RuntimeError):
                    raise
                _turn_away(self._line)  # no thread can be started any more

    def _leave(self, visitor: Visitor) -> None:
        """A caller does not wait for its answer: what is on its way must not arrive later."""
        visitor.leave()
        if visitor in self._serving:
            self._window.doubt((visitor.draft,))
            self._desk.desert(at_once=False)

    def _give_up(self) -> None:
        """Somebody's time is over while the clerk waits for the server: let it wait no longer."""
        if self._serving:
            self._desk.desert(at_once=True)

    def _work(self, line: Line) -> None:
        """Be the clerk."""
        batch: list[Visitor] = []
        is_last = False
        try:
            while not is_last:
                batch, is_last = _taken(line, self._next(line))
                self._serve_all(batch)
                batch = []
        finally:
            self._ring()
            self._clerks.discard(threading.current_thread())
            for visitor in batch:
                visitor.tell(None)
            self._desk.tidy()
            # Whoever found a clerk still there is not left behind; nor is another clerk.
            _turn_away(line)
            self._is_minded = False
            if self._clerks and not self._desk.is_open:
                line.put(None)

    def _next(self, line: Line) -> Visitor | None:
        """Whoever comes next; when nobody does, who sleeps is told of those who came before."""
        while True:
            # In this order: whoever puts somebody off from now on reminds the clerk.
            self._is_minded = False
            self._is_minded = bool(self._desk.bell)
            left = self._desk.bell.left()
            try:
                visitor = line.get(timeout=max(0.0, left) if self._is_minded else None)
            except Empty:
                if self._desk.bell.left() <= 0:
                    self._ring()
                continue
            if not isinstance(visitor, Reminder):
                return visitor
            if visitor.queues:
                self._ring(visitor.queues)

    def _wake(self, queues: Sequence[str]) -> None:
        """Let somebody be told of these, who waits for nothing here."""
        self._enter(Reminder(tuple(queues)))

    def _ring(self, queues: Sequence[str] = ()) -> None:
        """Wake who sleeps for these queues, and for those of the bell."""
        is_time = queues or self._desk.bell
        if not is_time or not self._desk.lock.acquire(timeout=PATIENCE):
            return
        try:
            self._desk.ring(LONGEST, queues)
        except Exception:
            self._desk.drop()  # then they look by themselves, within a second
        finally:
            self._desk.lock.release()

    def _serve_all(self, batch: list[Visitor]) -> None:
        """Serve a batch, and take out of it whoever is answered."""
        while batch:
            group = _alike(batch)
            stored = self._serve_alike(group)
            del batch[: len(group)]
            for visitor in group:
                visitor.tell(Receipt(visitor.draft.id, True) if visitor in stored else None)

    def _serve_alike(self, group: Sequence[Visitor]) -> Collection[Visitor]:
        """Store the jobs of those who are still there; returns whose are stored."""
        if not self._desk.lock.acquire(timeout=PATIENCE):
            return ()
        try:
            self._desk.is_taken = True
            # In this order: whoever leaves now either is left out, or knows that it is served.
            self._serving.update(group)
            here = [visitor for visitor in group if not visitor.has_gone]
            drafts = [visitor.draft for visitor in here]
            is_stored = here and self._desk.store(drafts, LONGEST)
            return here if is_stored else ()
        except Exception:
            return ()
        finally:
            self._serving.difference_update(group)
            self._desk.is_taken = False
            self._desk.lock.release()


def _taken(line: Line, first: Visitor | None) -> tuple[list[Visitor], bool]:
    """Whoever stands in line now; True: and there is no more to come."""
    batch: list[Visitor] = []
    visitor: Visitor | Reminder | None = first
    weight = 0
    while visitor is not None:
        if isinstance(visitor, Visitor):
            batch.append(visitor)
            weight += len(visitor.draft.payload)
        if len(batch) >= MOST or weight >= BYTES:
            return batch, False
        try:
            visitor = line.get_nowait()
        except Empty:
            return batch, False
    return batch, True


def _alike(batch: Sequence[Visitor]) -> list[Visitor]:
    """The first ones in line, as long as their jobs are of one kind."""
    kind = kind_of(batch[0].draft)
    return list(takewhile(lambda visitor: kind_of(visitor.draft) == kind, batch))


def _turn_away(line: Line) -> None:
    """Send everybody to the loop."""
    while not line.empty():
        try:
            visitor = line.get_nowait()
        except Empty:
            return
        if isinstance(visitor, Visitor):
            visitor.tell(None)
