"""How jobs enter an SQLite store: ledger, unique keys, rows in few statements, and the inlet."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Final

from penstock.core.job import Draft
from penstock.engines.records import Receipt
from penstock.engines.sqlite.connection import ForkSafeConnection, SqliteTransaction
from penstock.engines.sqlite.errors import named_errors
from penstock.engines.sqlite.key_lines import line_of, note
from penstock.engines.sqlite.queues import take_tickets
from penstock.engines.sqlite.rows import Row, json_names, to_insert, to_lines, to_new
from penstock.engines.sqlite.write_lock import try_lock
from penstock.engines.validation import check_drafts
from penstock.errors import EngineBusy, EngineReentered

_TEN: Final = 10
"""Rows of one ``insert``, where there are so many."""


def enqueue(tx: SqliteTransaction, drafts: Sequence[Draft]) -> list[Receipt]:
    if not drafts:
        return []
    if any(draft.remember > 0 or draft.unique is not None for draft in drafts):
        return _enqueue_new(tx, drafts)
    first = take_tickets(tx, len(drafts))
    if _insert(tx, drafts, first):
        return [Receipt(draft.id, True, None, first + n) for n, draft in enumerate(drafts)]
    return _enqueue_new(tx, drafts)  # a repeated call


def _enqueue_new(tx: SqliteTransaction, drafts: Sequence[Draft]) -> list[Receipt]:
    """Store those whose ids and unique keys are not taken, by the store or by one before them."""
    ids = json_names([draft.id for draft in drafts])
    stored: dict[str, str] = dict(tx.all("stored", (ids,)))
    remembered: dict[str, str] = dict(tx.all("remembered", (ids, tx.now)))
    wanted = [draft.unique_key for draft in drafts]
    keys = json_names([key for key in wanted if key is not None])
    owners: dict[str | None, str] = dict(tx.all("keys", (keys, tx.now)))
    first = take_tickets(tx, len(drafts))
    new: list[Draft] = []
    receipts: list[Receipt] = []
    taken: list[tuple[str, str, float]] = []
    for draft, key in zip(drafts, wanted, strict=True):
        id, owner = draft.id, owners.get(key, draft.id)
        task = remembered.get(id) if draft.remember > 0 else None
        task = stored.get(id) if task is None else task
        if task is not None:
            receipts.append(Receipt(id, False, "id", task=task))
        elif owner != id:
            receipts.append(Receipt(owner, False, "unique"))
        else:
            receipts.append(Receipt(id, True, None, first + len(new)))
            new.append(draft)
            stored[id] = draft.task
            if key is not None:
                owners[key] = id
                taken.append((key, id, tx.now + draft.unique_for))
    _insert(tx, new, first)
    chosen = [(each.id, tx.now + each.remember, each.task) for each in new if each.remember > 0]
    tx.run_many("take_key", taken)
    tx.run_many("remember", chosen)
    return receipts


def _insert(tx: SqliteTransaction, drafts: Sequence[Draft], ticket: int) -> bool:
    """Insert all, or nothing if one of the ids is known; ``ticket`` is that of the first."""
    if not drafts:
        return True
    jobs = [
        to_new(draft, ticket + offset, tx.now, line_of(tx, draft.queue, draft.key))
        for offset, draft in enumerate(drafts)
    ]
    if not _insert_rows(tx, *to_insert(jobs)):
        return False
    if lines := to_lines(jobs):
        note(tx, lines)
    return True


def _insert_rows(tx: SqliteTransaction, columns: Sequence[str], rows: Sequence[Row]) -> bool:
    if len(rows) == 1:
        return tx.insert(columns, 1, rows) == 1
    whole = len(rows) - len(rows) % _TEN
    tens = [
        tuple(chain.from_iterable(rows[start : start + _TEN])) for start in range(0, whole, _TEN)
    ]
    with tx.savepoint() as roll_back:
        inserted = tx.insert(columns, _TEN, tens) + tx.insert(columns, 1, rows[whole:])
        if inserted != len(rows):
            roll_back()
    return inserted == len(rows)


class SqliteInlet:
    """The blocking way in: jobs are stored on the calling thread, over a connection of its own.

    A hand-over to another thread and back costs more than storing a job. It waits for neither a
    thread nor a process: where one writes already, ``enqueue`` waits in turn.

    A signal handler may raise at any moment on the main thread, and the next one while the first
    exception is dealt with. So locks and transactions are ended by a ``with`` that is left in C.

    | if                                      | then                                              |
    |-----------------------------------------|---------------------------------------------------|
    | the caller is interrupted               | its transaction is rolled back, or was committed; |
    |                                         | both locks are free                               |
    | a signal handler, or a finaliser,       | it gets ``EngineReentered``: the write lock is    |
    | enqueues in the middle of a ``put``     | its own thread's, so no other way would help      |
    | the process dies                        | SQLite rolls back, the system frees the lock      |
    | the process forks                       | the fork waits for the ``put``; both sides open a |
    |                                         | new connection at their next one                  |
    """

    def __init__(
        self,
        connection: ForkSafeConnection,
        name: str,
        path: str,
        store: Callable[[sqlite3.Connection, Sequence[Draft]], list[Receipt]],
    ) -> None:
        """``store`` stores drafts in a transaction that has begun."""
        self._connection = connection
        self._name = name
        self._path = path
        self._store = store
        self._used_by: int | None = None  # a thread; only a hint, the lock decides
        self._is_closed = False

    def put(self, drafts: Sequence[Draft], timeout: float | None) -> list[Receipt] | None:
        """See ``Inlet``. It never waits for another process, so ``timeout`` is of no matter."""
        drafts = tuple(drafts)
        check_drafts(self._name, drafts)
        if self._connection.is_mine:
            raise EngineReentered(self._name)
        me = threading.get_ident()
        if self._used_by not in (None, me):
            return None
        try:
            with self._connection.lock, named_errors(self._name, self._path):
                self._used_by = me
                return None if self._is_closed else self._put(drafts)
        except EngineBusy:  # a program that knows nothing of the write lock is writing
            return None
        finally:
            self._used_by = None

    def _put(self, drafts: Sequence[Draft]) -> list[Receipt] | None:
        with try_lock(self._path) or nullcontext() as lock:
            if lock is None:
                return None
            with self._connection.open() as raw:  # commits, or rolls back
                raw.execute("BEGIN IMMEDIATE")
                return self._store(raw, drafts)

    def close(self) -> None:
        """Let the connection go, after the ``put`` that is under way. Idempotent."""
        with self._connection.lock:
            self._is_closed = True
            self._connection.close()
