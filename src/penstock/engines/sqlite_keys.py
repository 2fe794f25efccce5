"""Unique keys in SQLite: who has one, and until when (law 13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sqlite3 import Cursor

from penstock.engines.sqlite_rows import Row


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
