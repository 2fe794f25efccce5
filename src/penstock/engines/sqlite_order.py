"""Ordered queues of an SQLite store: which job is next, and when there may be one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sqlite3 import Cursor
from typing import Any

from penstock.engines.records import least_before
from penstock.engines.sqlite_rows import Row

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
