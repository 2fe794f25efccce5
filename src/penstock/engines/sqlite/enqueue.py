"""How jobs enter an SQLite store: ledger, unique keys, rows in few statements, and the inlet."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Final

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Draft, Hold, Job, State
from penstock.engines.records import Receipt
from penstock.engines.sqlite.connection import ForkSafeConnection, SqliteTransaction
from penstock.engines.sqlite.errors import named_errors
from penstock.engines.sqlite.queues import is_fair, key_owner, take_key, take_tickets
from penstock.engines.sqlite.rows import Row, to_insert, to_insert_plain
from penstock.engines.sqlite.write_lock import try_lock
from penstock.engines.validation import check_drafts, is_plain
from penstock.errors import EngineBusy, EngineReentered

_TEN: Final = 10
"""Rows of ``insert_ten_plain``."""


def enqueue(tx: SqliteTransaction, drafts: Sequence[Draft]) -> list[Receipt]:
    if all(is_plain(draft) and not is_fair(tx, draft.queue) for draft in drafts):
        are_new = _insert_plain(tx, drafts)
    elif all(draft.remember <= 0 and draft.unique is None for draft in drafts):
        are_new = _insert(tx, drafts)
    else:
        are_new = False
    if are_new:
        return [Receipt(draft.id, True) for draft in drafts]
    return [_enqueue(tx, draft) for draft in drafts]


def _enqueue(tx: SqliteTransaction, draft: Draft) -> Receipt:
    forgets_at = tx.now if draft.remember > 0 else float("inf")
    if tx.one("known", (draft.id, draft.id, forgets_at)):
        return Receipt(draft.id, False, "id")
    if draft.unique is not None:
        owner = key_owner(tx, draft.unique, draft.id)
        if owner is not None:
            return Receipt(owner, False, "unique")
        take_key(tx, draft.unique, draft.id, tx.now + draft.unique_for)
    if draft.remember > 0:
        tx.run("remember", (draft.id, tx.now + draft.remember))
    _insert(tx, [draft])
    return Receipt(draft.id, True)


def _insert(tx: SqliteTransaction, drafts: Sequence[Draft]) -> bool:
    """Insert all, or nothing if one of the ids is known."""
    rows = [to_insert(job) for job in _born(tx, drafts)]
    if len(rows) == 1:
        return tx.run("insert", rows[0]).rowcount == 1
    return _all_or_none(tx, len(rows), ("insert", rows))


def _insert_plain(tx: SqliteTransaction, drafts: Sequence[Draft]) -> bool:
    """The same, for jobs that say nothing that ``lifecycle.born`` would have to look at."""
    seq, now = take_tickets(tx, len(drafts)), tx.now
    if len(drafts) == 1:
        return tx.run("insert_plain", to_insert_plain(drafts[0], seq, now)).rowcount == 1
    rows = [to_insert_plain(draft, seq + offset, now) for offset, draft in enumerate(drafts)]
    whole = len(rows) - len(rows) % _TEN
    tens = [
        tuple(chain.from_iterable(rows[start : start + _TEN])) for start in range(0, whole, _TEN)
    ]
    return _all_or_none(tx, len(rows), ("insert_ten_plain", tens), ("insert_plain", rows[whole:]))


def _all_or_none(tx: SqliteTransaction, count: int, *statements: tuple[str, Sequence[Row]]) -> bool:
    with tx.savepoint() as roll_back:
        inserted = sum(tx.run_many(name, rows).rowcount for name, rows in statements if rows)
        if inserted != count:
            roll_back()
    return inserted == count


def _born(tx: SqliteTransaction, drafts: Sequence[Draft]) -> Iterator[Job]:
    seq = take_tickets(tx, len(drafts))
    for offset, draft in enumerate(drafts):
        job = replace(lifecycle.born(draft, tx.now), seq=seq + offset)
        if job.state is State.READY and is_fair(tx, job.queue):
            job = replace(job, hold=Hold.UNPLACED, hold_cause=job.queue)
        yield job


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
