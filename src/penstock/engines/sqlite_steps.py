"""What the steps of the SQLite engine share, inside one write transaction."""

from __future__ import annotations

import sqlite3
from functools import cached_property

from msgspec.structs import replace

from penstock.core import life
from penstock.core.job import Hold, Job, State
from penstock.engines.records import (
    Promoted,
    QueueSettings,
)
from penstock.engines.sqlite_keys import SqliteKeys
from penstock.engines.sqlite_places import SqlitePlaces
from penstock.engines.sqlite_rows import (
    to_jobs,
    to_save,
)
from penstock.engines.sqlite_views import SqliteViews, is_fair


class SqliteSteps(SqliteViews):
    """One store inside a write transaction: nobody else writes before it ends."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        super().__init__(connection, now)
        self._connection = connection

    @cached_property
    def _keys(self) -> SqliteKeys:
        return SqliteKeys(self._run, self._sql, self.now)

    @cached_property
    def _places(self) -> SqlitePlaces:
        return SqlitePlaces(self._run, self._run_many, self._sql)

    def _tickets(self, count: int) -> int:
        """Take ``count`` tickets; return the first."""
        if count == 0:
            return 0
        (last,) = self._run(self._sql["tickets"], (count,)).fetchone()
        return int(last) - count + 1

    def _save(self, job: Job) -> None:
        self._run(self._sql["save"], to_save(job))

    def _wait_or_end(self, job: Job, after: Job) -> Job:
        """Store a running job's next state, with the unique key it needs or gives back."""
        if job.unique is not None and not after.state.is_final:
            owner = self._keys.taken(job.unique, job.id)
            if owner is not None:
                after = life.superseded(replace(after, state=State.RUNNING), owner, self.now)
        if job.unique is not None:
            if after.state.is_final:
                self._keys.give_back(job.unique, job.id)
            else:
                self._keys.hold(job.unique, job.id)
        self._save(after)
        return after

    def _promote(self, limit: int, settings: dict[str, QueueSettings]) -> Promoted:
        limit = max(0, limit)
        old = to_jobs(self._run(self._sql["expired"], (self.now, limit)).fetchall())
        for job in old:
            if job.unique is not None:
                self._keys.give_back(job.unique, job.id)
            self._save(life.expired(job, self.now))
        window = {"now": self.now, "limit": limit}
        due = self._run(self._sql["due"], window).fetchall()
        due += self._run(self._sql["hold_over"], window).fetchall()
        due = sorted(due, key=lambda row: (row[2], row[3]))[:limit]
        scheduled = [row for row in due if row[4] == State.SCHEDULED]
        seq = self._tickets(len(scheduled))
        for offset, (id, queue, *_) in enumerate(scheduled):
            hold = (Hold.UNPLACED, queue) if is_fair(settings, queue) else (None, None)
            self._run(self._sql["promote"], (seq + offset, *hold, id))
        for id, _, _, _, state in due:
            if state != State.SCHEDULED:
                self._run(self._sql["unhold"], (id,))
        return Promoted(ready=len(due), expired=len(old))
