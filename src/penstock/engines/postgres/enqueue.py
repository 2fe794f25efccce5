"""How jobs enter a PostgreSQL store: one statement for any number of them (see ``draft_columns``).

Ids that this process has just made are not looked for first. If one is taken all the same, or is
taken by another process in the middle, nothing is stored, and the batch is sent again *carefully*.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import inf
from typing import Final

from penstock.clock import Clock
from penstock.core.ids import made_at
from penstock.core.job import Draft
from penstock.engines.postgres.connection import Statement
from penstock.engines.postgres.draft_columns import Columns, Part, parts, to_columns
from penstock.engines.postgres.errors import (
    KNOWN_ID,
    LOCKED,
    NAME,
    SAME_ID,
    named_errors,
    says,
)
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.transaction import TRIES, Transaction, Transactions
from penstock.engines.postgres.wakeup import WORK
from penstock.engines.records import Receipt
from penstock.engines.sql_files import statements
from penstock.errors import EngineUnavailable, ItemContested

SQL: Final = statements("postgres/enqueue.sql")


def prepared(name: str, schema: str) -> Statement:
    """A statement of ``enqueue.sql`` whose values are texts."""
    return Statement(name.encode(), placed(SQL[name], schema))


CONTESTED: Final = frozenset({LOCKED, KNOWN_ID, SAME_ID})
"""States that say that another transaction has an id or a unique key just now."""


class Doubt:
    """Since when every id that this engine sent is known to be stored or not. Any thread may add.

    Ids that were made later are sent for the first time, and not looked for in the history.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler may add while its own thread does
        self.since = inf

    def begin(self) -> None:
        """The engine is opened: what another one sent before is in doubt."""
        self.since = self._clock.now()

    def add(self, drafts: Sequence[Draft]) -> None:
        """These may be stored, also if the clock was set back since their ids were made."""
        made = max(made_at(draft.id) for draft in drafts)
        with self._lock:
            self.since = max(self.since, self._clock.now(), made)


async def enqueue(
    transactions: Transactions, drafts: Sequence[Draft], doubt: Doubt
) -> list[Receipt]:
    """See the contract."""
    if not drafts:
        return []
    try:
        with named_errors():
            divided = parts(drafts)
            if len(divided) > 1:
                return await _put_parts(transactions, divided)
            return await _put(transactions, divided[0], doubt.since)
    except BaseException:
        doubt.add(drafts)
        raise


async def _put(transactions: Transactions, part: Part, doubted_since: float) -> list[Receipt]:
    columns = to_columns(part.drafts)
    statement, is_careful = prepared("put", transactions.schema), False
    for _ in range(TRIES):
        values = columns.texts(doubted_since, is_careful=is_careful)
        try:
            rows = await transactions.run(statement, values, WORK)
        except EngineUnavailable as error:
            if says(error, LOCKED):
                raise await _contested(transactions, columns) from error.__cause__
            if not (says(error, KNOWN_ID) or says(error, SAME_ID)):
                raise
            is_careful = True
        else:
            return part.receipts(rows)
    raise _refusal(None)


async def _put_parts(transactions: Transactions, divided: Sequence[Part]) -> list[Receipt]:
    """Store parts one after the other, in one transaction."""
    statement = prepared("put", transactions.schema)
    columns = [to_columns(part.drafts) for part in divided]

    async def step(transaction: Transaction) -> list[list[Row]]:
        return [
            await transaction.run(statement, each.texts(0.0, is_careful=True)) for each in columns
        ]

    for _ in range(TRIES):
        try:
            found = await transactions.write(WORK, step)
        except EngineUnavailable as error:
            if says(error, LOCKED):
                raise _refusal(None) from error.__cause__
            if not (says(error, KNOWN_ID) or says(error, SAME_ID)):
                raise
        else:
            return [
                receipt
                for part, rows in zip(divided, found, strict=True)
                for receipt in part.receipts(rows)
            ]
    raise _refusal(None)


async def enqueue_within(tx: Transaction, drafts: Sequence[Draft]) -> list[Receipt]:
    """Store jobs in a transaction that has begun.

    On failure: what the driver raises; ``CONTESTED`` says when that is no fault of the jobs.
    """
    statement = prepared("put", tx.schema)
    receipts: list[Receipt] = []
    for part in parts(drafts) if drafts else ():
        values = to_columns(part.drafts).texts(0.0, is_careful=True)
        receipts += part.receipts(await tx.run(statement, values))
    return receipts


async def _contested(transactions: Transactions, columns: Columns) -> ItemContested:
    """Find out which job of a batch an open transaction keeps from being stored."""
    values = (columns.ids, columns.fields["uniques"], columns.mark)
    ((number,),) = await transactions.call(SQL["contested"], values)
    return _refusal(None if number is None else number - 1)


def _refusal(index: int | None) -> ItemContested:
    return ItemContested(NAME, "an open transaction has this id or unique key", index)
