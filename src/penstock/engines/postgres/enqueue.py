"""How jobs enter a PostgreSQL store: as a few long texts if they are plain, else as JSON."""

from __future__ import annotations

import base64
import threading
from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import Any, Final, NamedTuple

from penstock.clock import Clock
from penstock.core.ids import all_made_at, made_at
from penstock.core.job import Draft, DraftBatch, ids_of, payloads_of
from penstock.engines.postgres.connection import Statement
from penstock.engines.postgres.errors import (
    KNOWN_ID,
    LOCKED,
    NAME,
    SAME_ID,
    named_errors,
    says,
)
from penstock.engines.postgres.rows import Row, json_text
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.transaction import Transactions
from penstock.engines.postgres.wakeup import WORK
from penstock.engines.records import Receipt
from penstock.engines.sql_files import statements
from penstock.engines.validation import check_drafts, is_plain
from penstock.errors import EngineUnavailable

BETWEEN: Final = "\x1f"
"""Stands between the items of a list: no JSON text and no id that we make has it."""
_OWN: Final = ("id", "payload")


kind_of: Final = attrgetter(*(each for each in Draft.__struct_fields__ if each not in _OWN))
"""All that jobs of one kind have in common."""


SQL: Final = statements("postgres/enqueue.sql")


def prepared(name: str, schema: str) -> Statement:
    """A statement of ``enqueue.sql`` whose values are texts."""
    return Statement(name.encode(), placed(SQL[name], schema))


class PlainJobs(NamedTuple):
    """Plain jobs of one kind, as ``penstock.put_plain`` takes them."""

    ids: str
    payloads: str
    task: str
    queue: str
    priority: int
    by: str
    made_at: float
    """When the first of the ids was made."""

    def values(self, doubted_since: float) -> list[bytes | None]:
        """The parameters as texts; for ``doubted_since`` see ``Doubt``."""
        texts: list[bytes | None] = [str(each).encode() for each in self]
        if self.made_at > doubted_since:
            texts[-1] = None
        return texts


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


def is_list(joined: str, count: int) -> bool:
    """The server will find so many items in this text: none has what stands between them, or what
    no text can have.
    """
    return joined.count(BETWEEN) == count - 1 and "\0" not in joined


def to_plain(drafts: Sequence[Draft]) -> PlainJobs | None:
    """What to send of these jobs; None: they are not plain, or of several kinds.

    On failure: ``ItemRefused``, as any job.
    """
    if len(drafts) == 1:
        return _one_plain(drafts[0])
    first = drafts[0]
    if not is_plain(first):
        return None
    if not isinstance(drafts, DraftBatch) and not all(
        map(kind_of(first).__eq__, map(kind_of, drafts))
    ):
        return None
    check_drafts(NAME, (first,))
    ids, payloads = ids_of(drafts), payloads_of(drafts)
    try:
        all_payloads = b"\x1f".join(payloads).decode()
    except UnicodeDecodeError:
        return None
    all_ids = BETWEEN.join(ids)
    if not (
        is_list(all_ids, len(drafts))
        and is_list(all_payloads, len(drafts))
        and all(payloads)
        and all(ids)
    ):
        return None
    kind = (first.task, first.queue, first.priority, first.enqueued_by)
    return PlainJobs(all_ids, all_payloads, *kind, all_made_at(ids))


def _one_plain(draft: Draft) -> PlainJobs | None:
    """The same for one job, whose caller waits."""
    if not is_plain(draft):
        return None
    check_drafts(NAME, (draft,))
    id = draft.id
    try:
        payload = draft.payload.decode()
    except UnicodeDecodeError:
        return None
    if not id or not payload or not is_list(id, 1) or not is_list(payload, 1):
        return None
    kind = (draft.task, draft.queue, draft.priority, draft.enqueued_by)
    return PlainJobs(id, payload, *kind, made_at(id))


async def enqueue(
    transactions: Transactions, drafts: Sequence[Draft], doubt: Doubt
) -> list[Receipt]:
    """See the contract. Plain jobs of one kind are sent as a few long texts; if one of their ids is
    known, or locked by another transaction, all of them are sent as JSON like any others.
    """
    if not drafts:
        return []
    try:
        with named_errors():
            plain = to_plain(drafts)
            if plain is not None and await _put_plain(transactions, plain, doubt.since):
                return [Receipt(id, True) for id in ids_of(drafts)]
            check_drafts(NAME, drafts)
            return to_receipts(await transactions.call(SQL["put"], (to_json(drafts),), wakes=WORK))
    except BaseException:
        doubt.add(drafts)
        raise


async def _put_plain(transactions: Transactions, plain: PlainJobs, doubted_since: float) -> bool:
    statement = prepared("put_plain", transactions.schema)
    try:
        values = plain.values(doubted_since)
        await transactions.run(statement, values, WORK, fills=plain.queue)
    except EngineUnavailable as error:
        if not any(says(error, state) for state in (KNOWN_ID, SAME_ID, LOCKED)):
            raise
        return False
    return True


def to_json(drafts: Sequence[Draft]) -> str:
    """The drafts as ``penstock.put`` reads them."""
    return json_text([_record(draft) for draft in drafts])


def to_receipts(rows: Sequence[Row]) -> list[Receipt]:
    """What ``penstock.put`` says of each draft."""
    return [Receipt(*row) for row in rows]


def _record(draft: Draft) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": draft.id,
        "task": draft.task,
        "queue": draft.queue,
        "priority": draft.priority,
        "delay": draft.delay,
        "run_at": draft.run_at,
        "expires_in": draft.expires_in,
        "remember": draft.remember,
        # A caller's own id may have been used at any time.
        "since": made_at(draft.id) if draft.remember <= 0 else 0.0,
        "key": draft.key,
        "unique": draft.unique,
        "unique_until": draft.unique_until,
        "unique_for": draft.unique_for,
        "at_most_once": draft.at_most_once,
        "name": draft.name,
        "tags": list(draft.tags) or None,
        "correlation_id": draft.correlation_id,
        "enqueued_by": draft.enqueued_by,
    }
    try:
        text = draft.payload.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        record["payload64"] = base64.b64encode(draft.payload).decode()
    else:
        record["payload"] = text
    return record
