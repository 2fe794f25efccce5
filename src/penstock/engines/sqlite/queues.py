"""The lines of an SQLite store: tickets, what falls due, which jobs are next, unique keys.

Every function is part of one transaction, and of a write transaction where it writes: no other
process writes before it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.core import lifecycle
from penstock.core.job import Job, State
from penstock.engines.records import ANY_PRIORITY, Ask, Promoted
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.key_lines import (
    NO_LIMIT,
    line_of,
    next_jobs,
    note,
    note_change,
    shares,
)
from penstock.engines.sqlite.rows import Candidate, QueueHead, Row, json_text, to_jobs, to_save

_ANYTHING: Final = {"avoid": "[]", "slots": 1, "least_urgent": ANY_PRIORITY}
"""What to ask about a queue to find its first job, whichever worker could have it."""


def take_tickets(tx: SqliteTransaction, count: int) -> int:
    """Take so many tickets; return the first."""
    if count == 0:
        return 0
    (last,) = tx.run("tickets", (count,)).fetchone()
    return int(last) - count + 1


def is_ordered(tx: SqliteTransaction, queue: str) -> bool:
    return queue in tx.settings and tx.settings[queue].ordered


def room_in(tx: SqliteTransaction, queue: str) -> int:
    """How many more jobs of a queue may run now."""
    chosen = tx.settings.get(queue)
    if chosen is None:
        return NO_LIMIT
    if chosen.paused:
        return 0
    if chosen.most is None:
        return NO_LIMIT
    (running,) = tx.run("running_in", (queue,)).fetchone()
    return chosen.most - int(running)


def head_of(ask: Ask, queue: str, room: int, now: float) -> QueueHead:
    """What is asked about one queue, for one worker."""
    return {
        "queue": queue,
        "want": min(ask.want, room),
        "slots": ask.slots,
        "avoid": json_text(sorted(task for task in ask.avoid if "\0" not in task)),
        "least_urgent": ANY_PRIORITY if ask.least_urgent is None else ask.least_urgent,
        "now": now,
    }


def save(tx: SqliteTransaction, before: Job | None, job: Job) -> None:
    """Write back a job that was like ``before``; None: it is new."""
    could_start = job.state is State.READY and job.hold is None
    tx.run("save", to_save(job, line_of(tx, job.queue, job.key) if could_start else None))
    note_change(tx, before, job)


def promote_due(tx: SqliteTransaction, limit: int) -> Promoted:
    """Expire and promote what is due, at most ``limit`` of each, the earliest first."""
    limit = max(0, limit)
    old = to_jobs(tx.all("expired", (tx.now, limit)))
    for job in old:
        if (key := job.unique_key) is not None:
            give_key_back(tx, key, job.id)
        save(tx, job, lifecycle.expired(job, tx.now))
    window = {"now": tx.now, "limit": limit}
    due = tx.all("due", window) + tx.all("hold_over", window)
    due = sorted(due, key=lambda row: row[4:])[:limit]
    ticket = take_tickets(tx, len(due))
    lines = [line_of(tx, queue, key) for _, queue, _, key, *_ in due]
    promoted = [(ticket + n, lines[n], entry) for n, (entry, *_) in enumerate(due)]
    tx.run_many("promote", promoted)
    stands_in = zip(due, lines, strict=True)
    note(tx, {(row[1], row[2], line) for row, line in stands_in if line is not None})
    return Promoted(ready=len(due), expired=len(old))


# --- which jobs are next ------------------------------------------------------------------------


def candidates(tx: SqliteTransaction, head: QueueHead) -> list[Candidate]:
    """The first jobs of a queue that a worker could have now, in order."""
    queue = head["queue"]
    if is_ordered(tx, queue):
        return _next_in_order(tx, head)
    keys = shares(tx, queue)
    if keys is not None:
        return next_jobs(tx, head, keys)
    return _to_candidates(tx.run("head_of_many", head))


def _next_in_order(tx: SqliteTransaction, head: QueueHead) -> list[Candidate]:
    """The next job of an ordered queue, if this worker could have it: no job is passed over but by
    those that are open already. Asked only while none of its jobs runs.
    """
    if tx.one("is_blocked", head):
        return _to_candidates(tx.run("next_open", head))
    keys = shares(tx, head["queue"])
    if keys is None:
        first = _to_candidates(tx.run("first_in_order", head))
    else:
        first = next_jobs(tx, {**head, **_ANYTHING}, keys)
    return [job for job in first if tx.one("could_have", {**head, "entry": job.entry})]


def _to_candidates(rows: Iterable[Row]) -> list[Candidate]:
    return [Candidate(*row) for row in rows]


# --- unique keys (law 13) -----------------------------------------------------------------------


def key_owner(tx: SqliteTransaction, key: str, by: str) -> str | None:
    """The job that keeps ``by`` from this key, if any."""
    row = tx.one("key", (key,))
    if row is None:
        return None
    owner, until, held = row
    return str(owner) if owner != by and (held or until > tx.now) else None


def take_key(tx: SqliteTransaction, key: str, owner: str, until: float) -> None:
    """Give a free key to a job, with a window that ends at ``until``."""
    tx.run("take_key", (key, owner, until))


def hold_key(tx: SqliteTransaction, key: str, owner: str) -> None:
    """Give a free key back to a job that had it before; its window goes on."""
    row = tx.one("key", (key,))
    take_key(tx, key, owner, row[1] if row is not None and row[0] == owner else tx.now)


def give_key_back(tx: SqliteTransaction, key: str, owner: str) -> None:
    """The job's life needs the key no longer; its window may."""
    if tx.run("loosen_key", (key, owner)).rowcount:
        tx.run("drop_key", (key, tx.now))
