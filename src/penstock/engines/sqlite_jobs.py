"""The steps of the SQLite engine: what each verb reads and writes inside its transaction.

A step runs on the engine's thread, inside one transaction that nobody else can write beside. What
may happen to a job is decided in ``core.life``; the statements are in ``sql/sqlite/steps.sql``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.core import life
from penstock.core.job import Draft, Hold, Job, Outcome, OutcomeKind, State, Verdict, choose
from penstock.engines.records import (
    PROMOTE_BATCH,
    Ask,
    Cell,
    Control,
    Exchange,
    Filter,
    Mended,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Report,
    Sighting,
    Term,
    WorkerInfo,
    entry_before,
    reasons,
)
from penstock.engines.sqlite_entry import SqliteEntry
from penstock.engines.sqlite_keys import SqliteKeys
from penstock.engines.sqlite_places import SqlitePlaces
from penstock.engines.sqlite_rows import (
    is_quick_success,
    json_text,
    to_job,
    to_jobs,
    to_ready,
    to_save,
    to_successes,
)
from penstock.engines.sqlite_views import SqliteViews, is_fair, is_ordered, where
from penstock.errors import LeaseLost

ENTRIES_KEPT: Final = 10_000
"""What ended otherwise than by a success is never asked for again."""


class Candidate(NamedTuple):
    """A job in line, as far as choosing needs it."""

    entry: int
    priority: int
    at_most_once: bool


class SqliteJobs(SqliteViews):
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

    # --- in ------------------------------------------------------------------------------------

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """See the contract."""
        entry = SqliteEntry(self._connection, self._sql, self._tickets, self.now)
        return entry.enqueue(drafts, self.settings())

    # --- work ----------------------------------------------------------------------------------

    def join(self, worker: WorkerInfo) -> None:
        """See the contract."""
        self._run(self._sql["join"], (worker.id, self.now, json_text(worker)))
        tasks = frozenset(worker.tasks)
        for id, task, *_ in self._run(self._sql["held_for"], (Hold.UNKNOWN_TASK,)).fetchall():
            if task in tasks:
                self._run(self._sql["unhold"], (id,))

    def leave(self, worker: str) -> None:
        """See the contract."""
        self._run(self._sql["leave"], (worker,))

    def beat(self, worker: str) -> None:
        """See the contract."""
        if self._run(self._sql["beat"], (worker,)).rowcount == 0:
            raise LeaseLost(worker)

    def exchange(self, ask: Ask, entries: dict[str, int]) -> Exchange:
        """See the contract. ``entries`` are those of jobs that were claimed before, as far as they
        are known; a job keeps its entry for life. Those of this claim are added.
        """
        self._check_lease(ask.worker)
        for id, attempt in ask.begun:
            self._run(self._sql["begin_attempt"], (id, attempt, ask.worker))
        overruled: dict[str, Job] = {}
        verdicts = tuple(self._settle_all(ask, overruled, entries))
        settings = self.settings()
        self._promote(PROMOTE_BATCH, settings)
        self._places.place(settings)
        jobs = self._claim(ask, settings, entries) if ask.want > 0 else []
        return Exchange(
            jobs=tuple(jobs),
            verdicts=verdicts,
            cancels=tuple(self._cancels(ask)),
            overruled=reasons(overruled, State.CANCELLED),
            abandoned=reasons(overruled, State.FAILED),
            due_in=self._due_in("next_due", [{"queue": queue} for queue in ask.queues]),
            now=self.now,
        )

    def _settle_all(
        self, ask: Ask, overruled: dict[str, Job], entries: dict[str, int]
    ) -> list[Verdict]:
        """In the order they were given; successes that follow one another in one statement."""
        verdicts: list[Verdict] = []
        for is_quick, group in groupby(ask.outcomes, is_quick_success):
            outcomes = list(group)
            if is_quick and len(outcomes) > 1 and self._succeed(outcomes, ask.worker, entries):
                verdicts += [Verdict.DONE] * len(outcomes)
            else:
                verdicts += [self._settle(each, ask.worker, overruled) for each in outcomes]
        return verdicts

    def _succeed(self, outcomes: Sequence[Outcome], worker: str, entries: dict[str, int]) -> bool:
        """Settle successes; False: not all are, and each has to be looked at. To those that are,
        that is a repetition.
        """
        done = {"outcomes": to_successes(outcomes, entries), "now": self.now, "worker": worker}
        return self._run(self._sql["succeed_all"], done).rowcount == len(outcomes)

    def _settle(self, outcome: Outcome, worker: str, overruled: dict[str, Job]) -> Verdict:
        fence = (outcome.job, outcome.attempt, worker)
        if outcome.kind is OutcomeKind.SUCCEEDED:
            fast = self._run(self._sql["succeed"], (outcome.result, self.now, *fence))
            if fast.rowcount == 1:
                return Verdict.DONE
        job = self._job(outcome.job)
        if job is None:
            return Verdict.STALE
        if not (job.state is State.RUNNING and (job.id, job.attempt, job.worker) == fence):
            is_ended_by_owner = job.state is not State.RUNNING and (
                (job.attempt, job.worker) == fence[1:]
            )
            is_signed = self._run(self._sql["signed"], (job.id,)).fetchone() == fence[1:]
            if is_ended_by_owner and life.overruled(outcome, job):
                overruled[job.id] = job
            return Verdict.DONE if is_ended_by_owner or is_signed else Verdict.STALE
        after = life.settled(job, outcome, self.now)
        if after.hold is Hold.UNKNOWN_TASK and after.task in self._known_tasks:
            after = replace(after, hold=None, hold_cause=None, hold_until=None)
        after = self._wait_or_end(job, after)
        if life.overruled(outcome, after):
            overruled[job.id] = after
        if not after.state.is_final:
            self._run(self._sql["sign"], (outcome.attempt, worker, job.id))
        return Verdict.DONE

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

    def _claim(
        self, ask: Ask, settings: dict[str, QueueSettings], entries: dict[str, int]
    ) -> list[Job]:
        rooms = {queue: self._room(queue, settings) for queue in ask.queues}
        lines = [
            self._head(ask, queue, room, settings) for queue, room in rooms.items() if room > 0
        ]
        taken = [
            (entry, life.claimed(job, ask.worker, self.now, starts=position < ask.slots))
            for position, (entry, job) in enumerate(self._choose(ask, lines, settings))
        ]
        for started in (True, False):
            marked = [entry for entry, job in taken if job.started is started]
            if marked:
                marks = {"worker": ask.worker, "started": started, "now": self.now}
                self._run(self._sql["claim"], {**marks, "entries": json_text(marked)})
        if len(entries) > ENTRIES_KEPT:
            entries.clear()
        entries.update((job.id, entry) for entry, job in taken)
        claimed = [job for _, job in taken]
        for job in claimed:
            if job.unique is not None and job.unique_until == "start":
                self._keys.give_back(job.unique, job.id)
        self._places.advance([job for job in claimed if is_fair(settings, job.queue)])
        return claimed

    def _choose(
        self, ask: Ask, lines: list[dict[str, Any]], settings: dict[str, QueueSettings]
    ) -> list[tuple[int, Job]]:
        """The most urgent jobs and their entries; read whole only when they are really taken."""
        ordered = {line["queue"] for line in lines if is_ordered(settings, line["queue"])}
        if len(lines) == 1 and not ordered:
            found = self._run(self._sql["head"], lines[0]).fetchall()
            entries = {row[1]: row[0] for row in found}
            head = choose([[to_ready(row) for row in found]], ask.want, ask.slots)
            return [(entries[job.id], job) for job in head]
        heads = [
            self._next(line) if line["queue"] in ordered else self._first(line) for line in lines
        ]
        chosen = [candidate.entry for candidate in choose(heads, ask.want, ask.slots)]
        rows = self._run(self._sql["jobs_by_entry"], (json_text(chosen),)).fetchall()
        by_entry = {row[0]: row for row in rows}
        return [(entry, to_job(by_entry[entry])) for entry in chosen]

    def _first(self, line: dict[str, Any]) -> list[Candidate]:
        return [Candidate(*row) for row in self._run(self._sql["head_of_many"], line)]

    def _next(self, line: dict[str, Any]) -> list[Candidate]:
        row = self._order.next(line)
        return [] if row is None else [Candidate(*row)]

    def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        """See the contract."""
        if not self._has_lease(worker):
            return [Verdict.STALE] * len(reports)
        return [
            Verdict.DONE
            if self._run(
                self._sql["report"],
                (report.fraction, report.note, report.job, report.attempt, worker),
            ).rowcount
            else Verdict.STALE
            for report in reports
        ]

    # --- control -------------------------------------------------------------------------------

    def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        """See the contract."""
        return [self._cancel(id, reason) for id in ids]

    def _cancel(self, id: str, reason: str) -> Control:
        job = self._job(id)
        if job is None or job.state.is_final or job.cancel_reason is not None:
            return Control(id, False, job.state if job else None)
        after = life.cancelled(job, reason, self.now)
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
        after = replace(life.revived(job), seq=self._tickets(1), place=0.0)
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

    def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        """See the contract."""
        for sighting in dead:
            self._run(self._sql["bury"], (sighting.worker, sighting.beat))
        orphans = to_jobs(self._run(self._sql["orphans"], (max(0, limit),)).fetchall())
        return [self._wait_or_end(job, life.rescued(job, self.now)) for job in orphans]

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

    # --- what the steps share ------------------------------------------------------------------

    def _tickets(self, count: int) -> int:
        """Take ``count`` tickets; return the first."""
        if count == 0:
            return 0
        (last,) = self._run(self._sql["tickets"], (count,)).fetchone()
        return int(last) - count + 1

    def _save(self, job: Job) -> None:
        self._run(self._sql["save"], to_save(job))
