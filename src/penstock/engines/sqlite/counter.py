"""The counter of an SQLite store: where a thread that may block hands a job in.

A hand-over to another thread and back costs more than storing a job. So whoever finds the counter
free serves itself, on its own thread. Whoever does not stands in line, and the store's thread takes
all who stand there into one transaction: single callers save the way, many share commits.

The counter has a connection and a gate of its own, and waits for nobody with them: where another
process writes, the store's thread waits in turn.

A signal handler may raise at any moment in the middle of it, in the main thread, and the next one
in the middle of tidying up after that. So whatever is taken here is given back by a ``with`` that
is left in C (see ``undo``).

| if                                      | then                                                  |
|-----------------------------------------|-------------------------------------------------------|
| a caller is interrupted while it serves | its transaction is rolled back, or was committed; the |
| itself                                  | counter is free                                       |
| one is interrupted in line              | its job is stored or not; its neighbours' are         |
| a signal handler, or a finaliser,       | it gets ``EngineReentered``: its own thread would     |
| enqueues in the middle of an enqueue    | have to go on first                                   |
| the process dies                        | SQLite rolls back, the system frees the gate          |
| the process forks                       | the fork waits for who serves itself                  |
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.core.job import Draft
from penstock.engines.crowd import Crowd
from penstock.engines.records import Receipt
from penstock.engines.sqlite.connection import SqliteLink, SqliteThread
from penstock.engines.sqlite.write_lock import FileGate
from penstock.engines.visitor import Answer, Visitor, wait_for
from penstock.errors import EngineClosed, EngineReentered, ItemRefused

MOST: Final = 1000
"""Jobs that are stored in one transaction at most."""

Step = Callable[[sqlite3.Connection, Sequence[Draft]], list[Receipt]]
"""Stores drafts in a transaction that has begun."""
Store = Callable[[Sequence[Draft]], list[Receipt]]
"""Stores drafts in a transaction of its own."""


class SqliteCounter:
    """One handle's counter; any thread may come to it."""

    def __init__(
        self, link: SqliteLink, gate: FileGate, thread: SqliteThread, name: str, step: Step
    ) -> None:
        self._link = link
        self._gate = gate
        self._thread = thread
        self._name = name
        self._step = step
        self._line: deque[Visitor] = deque()
        self._is_taken = False  # a hint: only the lock of the link is sure
        self._is_closed = False
        self._crowd = Crowd()

    def close(self) -> None:
        """Send nobody away who is being served; refuse whoever is in line or comes later.

        To be called on the store's thread, when it has done all that was posted before.
        """
        self._is_closed = True
        with self._link.lock:
            self._link.close()
            self._gate.close()
        while self._line:
            self._line.popleft().answer(None, EngineClosed(self._name))

    # --- who serves itself ---------------------------------------------------------------------

    def serve(self, drafts: Sequence[Draft]) -> list[Receipt] | None:
        """Store jobs here and now; None: somebody is in the way, so stand in line.

        On failure: what SQLite raises; nothing is stored then.
        """
        if self._link.is_mine:
            raise EngineReentered(self._name)
        if self._line or self._is_taken or self._crowd.comes():
            return None
        return self._write(drafts)

    def _write(self, drafts: Sequence[Draft]) -> list[Receipt] | None:
        """Store jobs unless another process writes."""
        with self._link.lock, self._gate.freeing:
            try:
                self._is_taken = True
                # A forked child has no gate.
                if self._is_closed or not self._gate.is_open or not self._gate.grab():
                    return None
                with self._link.open() as connection:  # commits, or rolls back
                    connection.execute("BEGIN IMMEDIATE")
                    return self._step(connection, drafts)
            finally:
                self._is_taken = False

    # --- who stands in line --------------------------------------------------------------------

    def stand(self, draft: Draft, timeout: float | None, store: Store) -> Receipt:
        """Wait until the store's thread has stored the job, with those of all others in line.

        On failure: what ``store`` raises, ``EngineTimeout``, ``EngineClosed``.
        """
        receipt = wait_for(draft, partial(self._enter, store), timeout, self._name)
        assert receipt is not None
        return receipt

    def hand_in(self, draft: Draft, answer: Answer, store: Store) -> Callable[[], None]:
        """Stand in line without waiting; returns what leaves it.

        On failure: ``EngineClosed``, here or as the answer.
        """
        visitor = Visitor(draft, answer)
        self._enter(store, visitor)
        return visitor.leave

    def _enter(self, store: Store, visitor: Visitor) -> None:
        self._line.append(visitor)
        # Every caller calls: what is no longer in line costs the thread one look.
        self._thread.post(partial(self._take, store))
        # Whoever came too late for ``close`` to find it comes in time to find it closed.
        if self._is_closed:
            raise EngineClosed(self._name)

    def _take(self, store: Store) -> None:
        """Store what is in line, as one batch."""
        line = [self._line.popleft() for _ in range(min(len(self._line), MOST))]
        if batch := [visitor for visitor in line if not visitor.has_gone]:
            _serve(batch, partial(self._store, store))

    def _store(self, store: Store, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store a batch after whoever serves itself just now; ``store`` waits for others."""
        try:
            receipts = self._write(drafts)
        except Exception:  # the other way says it in the words of the contract
            receipts = None
        return store(drafts) if receipts is None else receipts


def _serve(batch: Sequence[Visitor], store: Store) -> None:
    """Store a batch; if it is refused its halves, until each culprit stands alone (law 10)."""
    try:
        receipts = store([visitor.draft for visitor in batch])
    except ItemRefused as refusal:
        middle = len(batch) // 2
        if middle == 0:
            batch[0].answer(None, refusal)
        else:
            _serve(batch[:middle], store)
            _serve(batch[middle:], store)
    except Exception as error:
        for visitor in batch:
            visitor.answer(None, error)
    else:
        for visitor, receipt in zip(batch, receipts, strict=True):
            visitor.answer(receipt, None)
