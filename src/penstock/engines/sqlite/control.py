"""The steps of the SQLite engine: what each verb reads and writes inside its transaction.

Those that jobs go through every day are in ``sqlite_work``; here are control, upkeep and lead.

A step runs on the engine's thread, inside one transaction that nobody else can write beside. What
may happen to a job is decided in ``core.life``; the statements are in ``sql/sqlite/steps.sql``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Hold, Job, State
from penstock.engines.records import (
    Cell,
    Control,
    Filter,
    Mended,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Sighting,
    Term,
    entry_before,
)
from penstock.engines.sqlite.claim import SqliteWork
from penstock.engines.sqlite.reads import is_fair, where
from penstock.engines.sqlite.rows import json_text, to_jobs


class SqliteJobs(SqliteWork):
    """One store inside a write transaction: nobody else writes before it ends."""

    # --- control -------------------------------------------------------------------------------

    def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        """See the contract."""
        return [self._cancel(id, reason) for id in ids]

    def _cancel(self, id: str, reason: str) -> Control:
        job = self._job(id)
        if job is None or job.state.is_final or job.cancel_reason is not None:
            return Control(id, False, job.state if job else None)
        after = lifecycle.cancelled(job, reason, self.now)
        if after.state.is_final and job.unique is not None:
            self._keys.give_back(job.unique, id)
        self._save(after)
        return Control(id, True, after.state)

    def retry(self, ids: Sequence[str]) -> list[Control]:
        """See the contract."""
        settings = self.settings()
        return [self._retry(id, settings) for id in ids]

    def _retry(self, id: str, settings: dict[str, QueueSettings]) -> Control:
        job = self._job(id)
        if job is None or job.state not in (State.FAILED, State.CANCELLED):
            return Control(id, False, job.state if job else None)
        if job.unique is not None:
            owner = self._keys.taken(job.unique, id)
            if owner is not None:
                return Control(id, False, job.state, owner)
            self._keys.hold(job.unique, id)
        after = replace(lifecycle.revived(job), seq=self._tickets(1), place=0.0)
        if is_fair(settings, job.queue):
            after = replace(after, hold=Hold.UNPLACED, hold_cause=job.queue)
        self._save(after)
        return Control(id, True, after.state)

    def purge(self, which: Filter, limit: int, cursor: str | None) -> Purged:
        """See the contract."""
        before = entry_before(cursor)
        if limit <= 0:
            return Purged(cursor=cursor)
        conditions = {**where(which), "before": before, "limit": limit + 1}
        rows = self._run(self._sql["purgeable"], conditions).fetchall()
        doomed = rows[:limit]
        for _, id, key in doomed:
            if key is not None:
                self._keys.give_back(key, id)
            self._run(self._sql["delete"], (id,))
        rest = str(doomed[-1][0]) if len(rows) > limit else None
        return Purged(jobs=len(doomed), cursor=rest)

    def set_queue(self, queue: str, settings: QueueSettings) -> None:
        """See the contract."""
        was_fair = is_fair(self.settings(), queue)
        self._run(self._sql["set_queue"], (queue, json_text(settings)))
        if was_fair and not settings.fair:
            self._places.level(queue)

    # --- upkeep --------------------------------------------------------------------------------

    def promote(self, limit: int) -> Promoted:
        """See the contract."""
        done = self._promote(limit, self.settings())
        return replace(done, due_in=self._due_in("next_instant", [{}]))

    def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        """See the contract."""
        for sighting in dead:
            self._run(self._sql["bury"], (sighting.worker, sighting.beat))
        orphans = to_jobs(self._run(self._sql["orphans"], (max(0, limit),)).fetchall())
        return [self._wait_or_end(job, lifecycle.rescued(job, self.now)) for job in orphans]

    def prune(self, keep: float, limit: int) -> Pruned:
        """See the contract."""
        limit = max(0, limit)
        old = self._run(self._sql["old"], (self.now - keep, limit)).fetchall()
        self._run_many(self._sql["delete"], old)
        ids = self._run(self._sql["prune_ledger"], (self.now, limit)).rowcount
        keys = self._run(self._sql["prune_keys"], (self.now, limit)).rowcount
        self._run(self._sql["prune_spots"])
        return Pruned(jobs=len(old), ids=ids, keys=keys)

    def mend(self, *, rehearse: bool = False) -> Mended:
        """See the contract."""
        self._run("SAVEPOINT mend")
        mended = self._mend()
        if rehearse:
            self._run("ROLLBACK TO mend")
        self._run("RELEASE mend")
        return mended

    def _mend(self) -> Mended:
        settings = self.settings()
        placed = self._places.place(settings)
        fair = frozenset(queue for queue, each in settings.items() if each.fair)
        unheld = 0
        for id, task, queue, hold, hold_until in self._run(self._sql["holds"]).fetchall():
            has_cause = hold_until is not None or (
                queue in fair
                if hold == Hold.UNPLACED
                else hold == Hold.UNKNOWN_TASK and task not in self._known_tasks
            )
            if not has_cause:
                self._run(self._sql["unhold"], (id,))
                unheld += 1
        loose = self._run(self._sql["loose_keys"]).fetchall()
        for key, owner in loose:
            self._keys.give_back(key, owner)
        return Mended(placed=placed, unheld=unheld, keys=len(loose))

    # --- lead and small values -----------------------------------------------------------------

    def lead(self, candidate: str, ttl: float) -> Term | None:
        """See the contract."""
        holder, epoch, until, given = self._run(self._sql["term"]).fetchone()
        if holder not in ("", candidate) and until > self.now:
            # More is left than was ever given: the clock went back.
            if until - self.now > given:
                self._run(self._sql["set_term"], (holder, epoch, self.now + given, given))
            return None
        if holder != candidate or until <= self.now:
            epoch += 1
        self._run(self._sql["set_term"], (candidate, epoch, self.now + ttl, ttl))
        return Term(holder=candidate, epoch=epoch, left=ttl)

    def resign(self, holder: str, epoch: int) -> None:
        """See the contract."""
        self._run(self._sql["resign"], (holder, epoch))

    def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        """See the contract."""
        if self.cell(name).version != version:
            return None
        self._run(self._sql["set_cell"], (name, value, version + 1))
        return Cell(value, version + 1)
