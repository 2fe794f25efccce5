"""What sees to all key lines of an SQLite store, a batch at a time: after what was decided about a
queue has changed, and when the leader prunes and repairs.

A decision is written alone. Where it makes the keys of a queue take turns, the queue is *moving*
until claims have labelled each of its ready jobs; where it changes how many jobs of a key may run,
until they have noted each of its lines. What enters meanwhile is labelled and noted at once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.engines.records import QueueSettings
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.key_lines import Line, note, shares, virtual_time
from penstock.engines.sqlite.rows import json_text

BATCH: Final = 200
"""Jobs that one claim labels, and lines that it notes beside, at most."""

_LEAST: Final = -(1 << 63)
FIRST_LINE: Final[Line] = ("", _LEAST, "")
"""Comes before every line there can be."""


class Moving(msgspec.Struct, frozen=True):
    """How far claims have come with a queue; None: all of it is seen to."""

    jobs: tuple[int, int] | None = None
    """The priority and the ticket of the last job that was labelled."""
    lines: tuple[str, int] | None = None
    """The key and the priority of the last line that was noted."""


_NO_JOB: Final = (_LEAST, 0)
_NO_LINE: Final = ("", _LEAST)
_DONE: Final = Moving()
_moving = msgspec.json.Decoder(Moving)


def set_queue(tx: SqliteTransaction, queue: str, settings: QueueSettings) -> None:
    before = tx.settings.get(queue, QueueSettings())
    left = moving(tx, queue)
    if not settings.is_keyed:
        left = _DONE
    elif not before.is_keyed:
        left = Moving(_before_jobs(tx, queue), _before_lines(tx, queue))
    elif settings.max_running_per_key != before.max_running_per_key:
        left = Moving(left.jobs, _before_lines(tx, queue))
    tx.run("set_queue", (queue, json_text(settings), _to_text(left)))


def _before_jobs(tx: SqliteTransaction, queue: str) -> tuple[int, int] | None:
    return _NO_JOB if tx.one("ready_after", (queue, *_NO_JOB, 1)) else None


def _before_lines(tx: SqliteTransaction, queue: str) -> tuple[str, int] | None:
    return _NO_LINE if tx.one("lines_after", (queue, *_NO_LINE, 1)) else None


def moving(tx: SqliteTransaction, queue: str) -> Moving:
    """What claims have yet to see to."""
    row = tx.one("moving", (queue,))
    return _DONE if row is None else _moving.decode(row[0])


def is_moving(tx: SqliteTransaction, queue: str) -> bool:
    """Claims have yet to see to some of the queue's jobs or lines."""
    return moving(tx, queue) != _DONE


def go_on(tx: SqliteTransaction, queue: str) -> None:
    """Label and note the next batch of a queue, if it is moving."""
    left = moving(tx, queue)
    if left != _DONE:
        jobs = None if left.jobs is None else _label(tx, queue, left.jobs)
        lines = None if left.lines is None else _note(tx, queue, left.lines)
        tx.run("set_moving", (_to_text(Moving(jobs, lines)), queue))


def _label(tx: SqliteTransaction, queue: str, after: tuple[int, int]) -> tuple[int, int] | None:
    found = tx.all("ready_after", (queue, *after, BATCH))
    tx.run("label", (json_text([entry for _, _, entry, _ in found]),))
    note(tx, {(queue, priority, key) for priority, _, _, key in found})
    return found[-1][:2] if len(found) == BATCH else None


def _note(tx: SqliteTransaction, queue: str, after: tuple[str, int]) -> tuple[str, int] | None:
    found = tx.all("lines_after", (queue, *after, BATCH))
    note(tx, [(queue, priority, key) for key, priority in found])
    return found[-1] if len(found) == BATCH else None


def _to_text(left: Moving) -> str | None:
    return None if left == _DONE else json_text(left)


# --- upkeep -------------------------------------------------------------------------------------


def prune_lines(tx: SqliteTransaction, limit: int) -> None:
    """Forget idle lines whose place says nothing more, looking at ``limit`` of each queue and
    priority.
    """
    last: tuple[str, int] = ("", _LEAST)
    while (row := tx.one("idle_after", last)) is not None:
        queue, priority = last = row
        time = virtual_time(tx, queue, priority)
        window = {"queue": queue, "priority": priority, "virtual_time": time, "limit": limit}
        tx.run("prune_lines", window)


def lost_lines(tx: SqliteTransaction, after: Line, limit: int) -> tuple[list[Line], Line | None]:
    """Of the next ``limit`` lines with jobs, those that could be active and that no claim would
    look at; and the last one seen, None if there are no more.
    """
    lost: list[Line] = []
    for queue in sorted(queue for queue in tx.settings if queue >= after[0]):
        keys = shares(tx, queue)
        if keys is None or is_moving(tx, queue):
            continue
        line = after if queue == after[0] else (queue, *FIRST_LINE[1:])
        while (row := tx.one("line_after", line)) is not None:
            if limit == 0:
                return lost, line
            limit -= 1
            line = (queue, row[0], row[1])
            if not row[2] and keys.room(row[1]) > 0:
                lost.append(line)
    return lost, None
