"""The lines of an SQLite store: tickets, what falls due, fair and ordered queues, unique keys.

Every function is part of one transaction, and of a write transaction where it writes: no other
process writes before it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.core import fairness, lifecycle
from penstock.core.job import Hold, Job, State
from penstock.engines.records import ANY_PRIORITY, Ask, Promoted
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.rows import Row, json_text, to_jobs, to_save

NO_LIMIT: Final = 1 << 31

QueueHead = Mapping[str, Any]
"""The parameters of the statements that look at the head of one queue's line."""


def take_tickets(tx: SqliteTransaction, count: int) -> int:
    """Take so many tickets; return the first."""
    if count == 0:
        return 0
    (last,) = tx.run("tickets", (count,)).fetchone()
    return int(last) - count + 1


def is_fair(tx: SqliteTransaction, queue: str) -> bool:
    return queue in tx.settings and tx.settings[queue].fair


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


def head_of(tx: SqliteTransaction, ask: Ask, queue: str, room: int) -> QueueHead:
    """What is asked about one queue, for one worker."""
    return {
        "queue": queue,
        "want": min(ask.want, room),
        "slots": ask.slots,
        "avoid": json_text(sorted(task for task in ask.avoid if "\0" not in task)),
        "least_urgent": ANY_PRIORITY if ask.least_urgent is None else ask.least_urgent,
        "is_fair": is_fair(tx, queue),
        "now": tx.now,
    }


def promote_due(tx: SqliteTransaction, limit: int) -> Promoted:
    """Expire and promote what is due, at most ``limit`` of each, the earliest first."""
    limit = max(0, limit)
    old = to_jobs(tx.all("expired", (tx.now, limit)))
    for job in old:
        if job.unique is not None:
            give_key_back(tx, job.unique, job.id)
        tx.run("save", to_save(lifecycle.expired(job, tx.now)))
    window = {"now": tx.now, "limit": limit}
    due = tx.all("due", window) + tx.all("hold_over", window)
    due = sorted(due, key=lambda row: (row[2], row[3]))[:limit]
    scheduled = [row for row in due if row[4] == State.SCHEDULED]
    seq = take_tickets(tx, len(scheduled))
    for offset, (id, queue, *_) in enumerate(scheduled):
        hold = (Hold.UNPLACED, queue) if is_fair(tx, queue) else (None, None)
        tx.run("promote", (seq + offset, *hold, id))
    for id, _, _, _, state in due:
        if state != State.SCHEDULED:
            tx.run("unhold", (id,))
    return Promoted(ready=len(due), expired=len(old))


# --- ordered queues, asked only while none of their jobs runs -----------------------------------


def next_in_order(tx: SqliteTransaction, head: QueueHead) -> Row | None:
    """Entry, priority and at_most_once of the next job, if this worker could have it."""
    if tx.one("is_blocked", head):
        return tx.one("next_open", head)
    row = tx.one("next_in_order", head)
    return row[:3] if row is not None and row[3] else None


def gives_something(tx: SqliteTransaction, head: QueueHead) -> bool:
    """This worker could have a job of the queue now."""
    if is_ordered(tx, head["queue"]):
        return next_in_order(tx, head) is not None
    return tx.one("head_of_many", head) is not None


# --- fair queues: the transaction that writes is the one placer of every queue (law 8) ----------


def place_all(tx: SqliteTransaction) -> int:
    """Give every unplaced job of a fair queue its place, in order of arrival."""
    if not any(each.fair for each in tx.settings.values()):
        return 0
    queues = [queue for (queue,) in tx.all("unplaced_queues")]
    return sum(_place(tx, queue) for queue in queues if is_fair(tx, queue))


def _place(tx: SqliteTransaction, queue: str) -> int:
    weights = tx.settings[queue].weights
    virtual_times: dict[int, float] = dict(tx.all("lanes", (queue,)))
    spots: dict[tuple[int, str], float | None] = {}
    placed: list[Row] = []
    for id, priority, key in tx.all("unplaced", (queue,)):
        if (priority, key) not in spots:
            row = tx.one("spot", (queue, priority, key))
            spots[priority, key] = None if row is None else row[0]
        place = fairness.place(virtual_times.get(priority, 0.0), spots[priority, key])
        spots[priority, key] = fairness.following(place, weights.get(key, 1.0))
        placed.append((place, id))
    tx.run_many("place", placed)
    tx.run_many("set_spot", [(queue, *spot, following) for spot, following in spots.items()])
    return len(placed)


def advance_places(tx: SqliteTransaction, claimed: Sequence[Job]) -> None:
    """Move virtual time on to the places that were claimed."""
    tx.run_many("advance_lane", [(job.queue, job.priority, job.place) for job in claimed])


def forget_places(tx: SqliteTransaction, queue: str) -> None:
    """The queue is no longer fair: places mean nothing, and no job waits for one."""
    for id, _, of, _ in tx.all("held_for", (Hold.UNPLACED,)):
        if of == queue:
            tx.run("unhold", (id,))
    for statement in ("level", "forget_lanes", "forget_spots"):
        tx.run(statement, (queue,))


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
