"""Ordered queues of an SQLite store: which job is next, and when there may be one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from sqlite3 import Cursor
from typing import Any

from penstock.core import fairness
from penstock.core.job import Hold, Job
from penstock.engines.records import QueueSettings, least_before
from penstock.engines.sqlite.rows import Row

Line = Mapping[str, Any]
"""The parameters of a look at one queue's line."""


class SqliteOrder:
    """The ordered queues inside one transaction; each is asked only while none of its jobs runs."""

    def __init__(self, run: Callable[[str, Line], Cursor], sql: Mapping[str, str]) -> None:
        self._run = run
        self._sql = sql

    def next(self, line: Line) -> Row | None:
        """Entry, priority and at_most_once of the next job, if this worker could have it."""
        if self._first("is_blocked", line):
            return self._first("next_open", line)
        row = self._first("next_in_order", line)
        return row[:3] if row is not None and row[3] else None

    def gives_at(self, line: Line) -> float | None:
        """When this worker could have a job or place one; None: nobody knows."""
        if self._first("is_blocked", line):
            if self._first("next_open", line):
                return float(line["now"])
            return self._instant("open_due", line)
        row = self._first("next_in_order", line)
        if row is not None and row[3]:
            return float(line["now"])
        if line["is_fair"] and self._first("unplaced_fits", line):
            return float(line["now"])
        if row is not None:
            least = least_before(row[1], is_fair=line["is_fair"])
            line = {**line, "least_urgent": min(least, line["least_urgent"])}
        return self._instant("next_due_fits", line)

    def _first(self, statement: str, line: Line) -> Row | None:
        row: Row | None = self._run(self._sql[statement], line).fetchone()
        return row

    def _instant(self, statement: str, line: Line) -> float | None:
        (at,) = self._run(self._sql[statement], line).fetchone()
        return None if at is None else float(at)


# --- sqlite keys --------------------------------------------------------------------------------
#
# Unique keys in SQLite: who has one, and until when (law 13).


class SqliteKeys:
    """The unique keys inside one transaction."""

    def __init__(
        self, run: Callable[[str, Row], Cursor], sql: Mapping[str, str], now: float
    ) -> None:
        self._run = run
        self._sql = sql
        self._now = now

    def taken(self, key: str, by: str) -> str | None:
        """The job that keeps ``by`` from this key, if any."""
        row = self._run(self._sql["key"], (key,)).fetchone()
        if row is None:
            return None
        owner, until, held = row
        return str(owner) if owner != by and (held or until > self._now) else None

    def take(self, key: str, owner: str, until: float) -> None:
        """Give a free key to a job, with a window that ends at ``until``."""
        self._run(self._sql["take_key"], (key, owner, until))

    def hold(self, key: str, owner: str) -> None:
        """Give a free key back to a job that had it before; its window goes on."""
        row = self._run(self._sql["key"], (key,)).fetchone()
        self.take(key, owner, row[1] if row is not None and row[0] == owner else self._now)

    def give_back(self, key: str, owner: str) -> None:
        """The job's life needs the key no longer; its window may."""
        if self._run(self._sql["loosen_key"], (key, owner)).rowcount:
            self._run(self._sql["drop_key"], (key, self._now))


# --- sqlite places ------------------------------------------------------------------------------
#
# Places in the fair queues of an SQLite store (law 8).


class SqlitePlaces:
    """The fair queues inside one transaction: whoever writes is the one placer of every queue."""

    def __init__(
        self,
        run: Callable[..., Cursor],
        run_many: Callable[[str, Iterable[Row]], Cursor],
        sql: Mapping[str, str],
    ) -> None:
        self._run = run
        self._run_many = run_many
        self._sql = sql

    def place(self, settings: Mapping[str, QueueSettings]) -> int:
        """Give every unplaced job of a fair queue its place, in order of arrival."""
        if not any(each.fair for each in settings.values()):
            return 0
        queues = [queue for (queue,) in self._run(self._sql["unplaced_queues"]).fetchall()]
        fair = [queue for queue in queues if queue in settings and settings[queue].fair]
        return sum(self._place(queue, settings[queue].weights) for queue in fair)

    def _place(self, queue: str, weights: Mapping[str, float]) -> int:
        lanes = dict(self._run(self._sql["lanes"], (queue,)).fetchall())
        spots: dict[tuple[int, str], float | None] = {}
        placed: list[Row] = []
        for id, priority, key in self._run(self._sql["unplaced"], (queue,)).fetchall():
            if (priority, key) not in spots:
                row = self._run(self._sql["spot"], (queue, priority, key)).fetchone()
                spots[priority, key] = None if row is None else row[0]
            place = fairness.place(lanes.get(priority, 0.0), spots[priority, key])
            spots[priority, key] = fairness.following(place, weights.get(key, 1.0))
            placed.append((place, id))
        self._run_many(self._sql["place"], placed)
        self._run_many(
            self._sql["set_spot"],
            [(queue, *spot, next_place) for spot, next_place in spots.items()],
        )
        return len(placed)

    def advance(self, claimed: Sequence[Job]) -> None:
        """Move virtual time on to the places that were claimed."""
        self._run_many(
            self._sql["advance_lane"], [(job.queue, job.priority, job.place) for job in claimed]
        )

    def level(self, queue: str) -> None:
        """The queue is no longer fair: places mean nothing, and nobody waits for one."""
        for id, _, of, _ in self._run(self._sql["held_for"], (Hold.UNPLACED,)).fetchall():
            if of == queue:
                self._run(self._sql["unhold"], (id,))
        for statement in ("level", "forget_lanes", "forget_spots"):
            self._run(self._sql[statement], (queue,))
