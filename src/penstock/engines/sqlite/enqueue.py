"""How jobs enter an SQLite store: the ledger, unique keys, tickets, and rows in few statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Draft, Hold, Job, State
from penstock.engines.records import QueueSettings, Receipt
from penstock.engines.sqlite.queues import SqliteKeys
from penstock.engines.sqlite.rows import Row, to_insert, to_insert_plain
from penstock.engines.validation import is_plain

_TEN: Final = 10
"""Rows of ``insert_ten_plain``."""


class SqliteEntry:
    """The way in, inside one transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        sql: Mapping[str, str],
        tickets: Callable[[int], int],
        now: float,
    ) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany
        self._sql = sql
        self._tickets = tickets
        self._now = now

    def enqueue(
        self, drafts: Sequence[Draft], settings: Mapping[str, QueueSettings]
    ) -> list[Receipt]:
        """See the contract."""
        fair = {queue for queue, decided in settings.items() if decided.fair}
        if all(map(is_plain, drafts)) and not any(draft.queue in fair for draft in drafts):
            are_new = self._insert_plain(drafts)
        elif all(draft.remember <= 0 and draft.unique is None for draft in drafts):
            are_new = self._insert(drafts, fair)
        else:
            are_new = False
        if are_new:
            return [Receipt(draft.id, True) for draft in drafts]
        return [self._enqueue(draft, fair) for draft in drafts]

    def _enqueue(self, draft: Draft, fair: set[str]) -> Receipt:
        forgets_at = self._now if draft.remember > 0 else float("inf")
        if self._run(self._sql["known"], (draft.id, draft.id, forgets_at)).fetchone():
            return Receipt(draft.id, False, "id")
        if draft.unique is not None:
            keys = SqliteKeys(self._run, self._sql, self._now)
            owner = keys.taken(draft.unique, draft.id)
            if owner is not None:
                return Receipt(owner, False, "unique")
            keys.take(draft.unique, draft.id, self._now + draft.unique_for)
        if draft.remember > 0:
            self._run(self._sql["remember"], (draft.id, self._now + draft.remember))
        self._insert([draft], fair)
        return Receipt(draft.id, True)

    def _insert(self, drafts: Sequence[Draft], fair: set[str]) -> bool:
        """Insert all, or nothing if one of the ids is known."""
        rows = [to_insert(job) for job in self._born(drafts, fair)]
        if len(rows) == 1:
            return self._run(self._sql["insert"], rows[0]).rowcount == 1
        return self._all_or_none(len(rows), ("insert", rows))

    def _insert_plain(self, drafts: Sequence[Draft]) -> bool:
        """The same, for jobs that say nothing that ``lifecycle.born`` would have to look at."""
        seq, now = self._tickets(len(drafts)), self._now
        if len(drafts) == 1:
            row = to_insert_plain(drafts[0], seq, now)
            return self._run(self._sql["insert_plain"], row).rowcount == 1
        rows = [to_insert_plain(draft, seq + offset, now) for offset, draft in enumerate(drafts)]
        whole = len(rows) - len(rows) % _TEN
        tens = [
            tuple(chain.from_iterable(rows[start : start + _TEN]))
            for start in range(0, whole, _TEN)
        ]
        return self._all_or_none(
            len(rows), ("insert_ten_plain", tens), ("insert_plain", rows[whole:])
        )

    def _all_or_none(self, count: int, *statements: tuple[str, Sequence[Row]]) -> bool:
        self._run("SAVEPOINT batch")
        inserted = sum(
            self._run_many(self._sql[name], rows).rowcount for name, rows in statements if rows
        )
        if inserted != count:
            self._run("ROLLBACK TO batch")
        self._run("RELEASE batch")
        return inserted == count

    def _born(self, drafts: Sequence[Draft], fair: set[str]) -> Iterable[Job]:
        seq = self._tickets(len(drafts))
        for offset, draft in enumerate(drafts):
            job = replace(lifecycle.born(draft, self._now), seq=seq + offset)
            if job.state is State.READY and job.queue in fair:
                job = replace(job, hold=Hold.UNPLACED, hold_cause=job.queue)
            yield job
