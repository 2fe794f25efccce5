"""The state of the memory engine and the steps that change it: the readable reference.

A method with the name of a verb is that verb, and the contract says what it promises. It is one
atomic step: it runs under the store's lock, and time does not pass in it. What may happen to a job
is decided in ``core.lifecycle``; here is what needs the whole store: tickets, unique keys, the
ledger, leases.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Draft, Hold, Job, Outcome, State, Verdict, choose
from penstock.engines.memory.key_lines import LineKey
from penstock.engines.memory.lines import UniqueKeys
from penstock.engines.memory.queues import MemoryQueues, due_at, earliest
from penstock.engines.records import (
    Ask,
    Cell,
    Exchange,
    Filter,
    News,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Repaired,
    Report,
    Rewrite,
    Rewritten,
    Sighting,
    WorkerInfo,
    cell_at,
    entry_before,
    over_at,
    reasons,
)
from penstock.engines.validation import check_drafts, check_given, check_outcomes, check_reports
from penstock.errors import LeaseLost

NAME = "memory"

StoredCell = tuple[bytes | None, int, float | None, float | None]
"""Value, version, until when, and for how long it was given. A version is a ticket: it never starts
again."""
NO_CELL: Final[StoredCell] = (None, 0, None, None)


class MemoryStore:
    """All that the handles on one store share."""

    def __init__(self, queues: MemoryQueues | None = None) -> None:
        self.queues = queues or MemoryQueues()
        self.jobs = self.queues.jobs
        self.settings = self.queues.settings
        self.workers: dict[str, WorkerInfo] = {}
        self.ledger: dict[str, tuple[float, str]] = {}
        """Ids that must not be used twice: until when, and for a job of which task."""
        self.keys = UniqueKeys()
        self.entered: dict[str, int] = {}
        """In which order jobs came in, by id."""
        self.cells: dict[str, StoredCell] = {}
        self.lock = threading.Lock()
        self.changes = 0
        self.cell_writes = 0
        self.versions: Counter[News] = Counter()
        self._signed: dict[str, tuple[int, str]] = {}
        self._tickets = 0
        self._entries = 0
        self._listeners: dict[asyncio.Event, tuple[News, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def step(self) -> Iterator[MemoryStore]:
        """One atomic step; if it changed anything, calls that listen are woken after it."""
        with self.lock:
            before = self.changes, self.cell_writes
            yield self
            if self.changes != before[0]:
                self._tell(News)
            elif self.cell_writes != before[1]:
                self._tell((News.CHANGED,))

    def _tell(self, kinds: Iterable[News]) -> None:
        """Wake the calls that listen to one of these kinds."""
        told = frozenset(kinds)
        self.versions.update(told)
        for event, (kind, loop) in list(self._listeners.items()):
            if kind in told:
                del self._listeners[event]
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    def listen(self, event: asyncio.Event, kind: News, seen: int) -> None:
        """Let ``event`` be set by the next change of this kind after version ``seen``."""
        with self.lock:
            if self.versions[kind] != seen:
                event.set()
            else:
                self._listeners[event] = (kind, asyncio.get_running_loop())

    def forget(self, event: asyncio.Event) -> None:
        """Stop waking ``event``."""
        with self.lock:
            self._listeners.pop(event, None)

    # --- in ------------------------------------------------------------------------------------

    def enqueue(self, drafts: Sequence[Draft], now: float) -> list[Receipt]:
        drafts = tuple(drafts)
        check_drafts(NAME, drafts)
        check_given(NAME, drafts)
        return [self._enqueue(draft, now) for draft in drafts]

    def _enqueue(self, draft: Draft, now: float) -> Receipt:
        is_in_ledger = draft.remember > 0 and self._is_remembered(draft.id, now)
        if draft.id in self.jobs or is_in_ledger:
            return Receipt(draft.id, False, "id")
        if draft.unique is not None:
            owner = self.keys.taken(draft.unique, draft.id, now)
            if owner is not None:
                return Receipt(owner, False, "unique")
            self.keys.take(draft.unique, draft.id, now + draft.unique_for)
        self._enter(draft.id, draft.task, draft.remember, now)
        job = self.put(self.ticketed(lifecycle.born(draft, now)))
        return Receipt(draft.id, True, ticket=job.seq)

    def _enter(self, id: str, task: str, remember: float, now: float) -> None:
        if remember > 0:
            self.ledger[id] = (now + remember, task)
        self._entries += 1
        self.entered[id] = self._entries

    def _is_remembered(self, id: str, now: float) -> bool:
        until, _ = self.ledger.get(id, (0.0, ""))
        return until > now

    # --- work ----------------------------------------------------------------------------------

    def join(self, worker: WorkerInfo, now: float) -> None:
        known = self.workers.get(worker.id)
        self.workers[worker.id] = replace(
            worker,
            beat=known.beat if known else 0,
            joined_at=known.joined_at if known else now,
        )
        self.changes += 1

    def leave(self, worker: str) -> None:
        if self.workers.pop(worker, None):
            self.changes += 1

    def beat(self, worker: str) -> None:
        info = self.leased(worker)
        self.workers[worker] = replace(info, beat=info.beat + 1)

    def exchange(self, ask: Ask, now: float) -> Exchange:
        self.leased(ask.worker)
        check_outcomes(NAME, ask.outcomes)
        check_given(NAME, ask)
        check_reports(NAME, ask.reports)
        for id, claim in ask.begun:
            job = self.jobs.get(id)
            if job and _inside_fence(job, claim, ask.worker) and not job.started:
                self.put_quietly(replace(job, started=True))
        for report in ask.reports:
            job = self.jobs.get(report.job)
            if job and _inside_fence(job, report.claim, ask.worker):
                self.put_quietly(_reported(job, report))
        overruled: dict[str, Job] = {}
        verdicts = tuple(
            self._settle(outcome, ask.worker, now, overruled) for outcome in ask.outcomes
        )
        self._promote(ask.promote, now)
        return Exchange(
            jobs=tuple(self._claim(ask, now)),
            verdicts=verdicts,
            cancels=tuple(self.cancels(ask)),
            overruled=reasons(overruled, State.CANCELLED),
            abandoned=reasons(overruled, State.FAILED),
            due_in=self._due_in(ask, now),
            is_keyed=ask.want > 0 and any(map(self.queues.shares, ask.queues)),
            now=now,
        )

    def _settle(
        self, outcome: Outcome, worker: str, now: float, overruled: dict[str, Job]
    ) -> Verdict:
        job = self.jobs.get(outcome.job)
        if job is None:
            return Verdict.STALE
        if not _inside_fence(job, outcome.claim, worker):
            is_ended_by_owner = job.state is not State.RUNNING and (
                (job.claim, job.worker) == (outcome.claim, worker)
            )
            is_signed = self._signed.get(job.id) == (outcome.claim, worker)
            if is_ended_by_owner and lifecycle.overruled(outcome, job):
                overruled[job.id] = job
            return Verdict.DONE if is_ended_by_owner or is_signed else Verdict.STALE
        after = lifecycle.settled(job, outcome, now)
        if after.hold is Hold.UNKNOWN_TASK and self._is_known(after.task):
            after = replace(after, hold=None, hold_cause=None, hold_until=None)
        after = self._wait_or_end(after, now)
        if lifecycle.overruled(outcome, after):
            overruled[job.id] = after
        if not after.state.is_final:
            self._signed[job.id] = (outcome.claim, worker)
        return Verdict.DONE

    def _wait_or_end(self, after: Job, now: float) -> Job:
        """Store a running job's next state, with the unique key it needs or gives back."""
        owner = self._take_or_give_back(after, now)
        if owner is not None:
            after = lifecycle.superseded(after, owner, now)
        return self.put(after)

    def _claim(self, ask: Ask, now: float) -> Iterator[Job]:
        if ask.want <= 0:
            return
        queues = dict.fromkeys(ask.queues)
        self._read_notes(queues)
        lines = [
            self.queues.first(ask, queue, min(ask.want, room), now)
            for queue in queues
            if (room := self.queues.room(queue)) > 0
        ]
        for position, job in enumerate(choose(lines, ask.want, ask.slots)):
            after = lifecycle.claimed(job, ask.worker, now, starts=position < ask.slots)
            if (shares := self.queues.shares(job.queue)) is not None:
                self.queues.key_lines[job.queue].move_on(job, shares)
            if job.unique is not None and job.unique_until == "start":
                self.keys.give_back(job.unique, job.id, now)
            yield self.put(after)
        self._read_notes(queues)

    def _read_notes(self, queues: Iterable[str]) -> None:
        """See which key lines of the queues that have some are active."""
        for queue in queues:
            if (shares := self.queues.shares(queue)) is not None:
                self.queues.key_lines[queue].read_notes(shares)

    def _due_in(self, ask: Ask, now: float) -> float | None:
        """When to come back: at once, if a claim has not looked at all key lines yet."""
        keyed = (queue for queue in ask.queues if self.queues.shares(queue) is not None)
        if ask.want > 0 and any(self.queues.key_lines[queue].has_notes for queue in keyed):
            return 0.0
        return self.queues.due_in(ask.queues, now)

    # --- control -------------------------------------------------------------------------------

    def rewrite(self, rewrites: Sequence[Rewrite], now: float) -> list[Rewritten]:
        check_given(NAME, [each.job for each in rewrites])
        return [self._rewrite(each, now) for each in rewrites]

    def _rewrite(self, rewrite: Rewrite, now: float) -> Rewritten:
        job = rewrite.job
        found = self.jobs.get(job.id)
        if rewrite.revision is None:
            is_known = found is not None or self._is_remembered(job.id, now)
        else:
            is_known = found is None or found.revision != rewrite.revision
        if is_known:
            return Rewritten(Verdict.STALE, found)
        owner = self._take_or_give_back(job, now)
        if owner is not None:
            return Rewritten(Verdict.STALE, found, owner)
        if rewrite.revision is None:
            self._enter(job.id, job.task, rewrite.remember, now)
        takes_ticket = rewrite.revision is None or job.seq == lifecycle.NEW_TICKET
        return Rewritten(Verdict.DONE, self.put(self.ticketed(job) if takes_ticket else job))

    def _take_or_give_back(self, after: Job, now: float) -> str | None:
        """See to the unique key of a job's next state; the job that has it instead, if one does."""
        if after.unique is None:
            return None
        if not lifecycle.needs_key(after):
            self.keys.give_back(after.unique, after.id, now)
            return None
        owner = self.keys.taken(after.unique, after.id, now)
        if owner is None:
            self.keys.hold(after.unique, after.id, now)
        return owner

    def purge(self, which: Filter, limit: int, cursor: str | None, now: float) -> Purged:
        before = entry_before(cursor)
        if limit <= 0:
            return Purged(cursor=cursor)
        fitting = [job for job in self.matching(which) if job.state is not State.RUNNING]
        left = [job for job in fitting if self.entered[job.id] < before]
        doomed = left[::-1][:limit]
        rest = str(self.entered[doomed[-1].id]) if len(left) > limit else None
        for job in doomed:
            self.keys.give_back(job.unique, job.id, now)
            self._drop(job)
        return Purged(jobs=len(doomed), cursor=rest)

    def set_queue(self, queue: str, settings: QueueSettings) -> None:
        self.settings[queue] = settings
        self.changes += 1
        self.queues.key_lines[queue].note_all()

    # --- upkeep --------------------------------------------------------------------------------

    def promote(self, limit: int, now: float) -> Promoted:
        done = self._promote(limit, now)
        due_in = self.queues.due_in(tuple(self.queues.due), now)
        first = self.queues.expiring.first()
        expires_in = None if first is None or first.expires_at is None else first.expires_at - now
        waits = [wait for wait in (due_in, expires_in) if wait is not None]
        return replace(done, due_in=earliest(waits))

    def _promote(self, limit: int, now: float) -> Promoted:
        limit = max(0, limit)
        expired = 0
        while expired < limit and (job := self.queues.expiring.first()) is not None:
            if job.expires_at is None or job.expires_at > now:
                break
            self.keys.give_back(job.unique, job.id, now)
            self.put(lifecycle.expired(job, now))
            expired += 1
        due: list[Job] = []
        for line in self.queues.due.values():
            due += line.leading(limit, lambda job: due_at(job) <= now)
        due.sort(key=lambda job: (due_at(job), job.seq))
        for job in due[:limit]:
            self.put(self.ticketed(lifecycle.promoted(job)))
        return Promoted(ready=len(due[:limit]), expired=expired)

    def end_leases(self, dead: Sequence[Sighting]) -> list[str]:
        ended = []
        for sighting in dead:
            info = self.workers.get(sighting.worker)
            if info is not None and info.beat == sighting.beat:
                del self.workers[sighting.worker]
                ended.append(sighting.worker)
                self.changes += 1
        return ended

    def prune(self, limit: int, now: float) -> Pruned:
        limit = max(0, limit)
        old = [job for job in self.jobs.values() if lifecycle.forget_at(job) < now]
        old.sort(key=lambda job: (lifecycle.forget_at(job), self.entered[job.id]))
        for job in old[:limit]:
            self._drop(job)
        ids = [id for id, (until, _) in self.ledger.items() if until <= now][:limit]
        for id in ids:
            del self.ledger[id]
        keys = self.keys.prune(limit, now)
        for lines in self.queues.key_lines.values():
            lines.prune(limit)
        self._prune_cells(limit, now)
        return Pruned(jobs=len(old[:limit]), ids=len(ids), keys=keys)

    def repair(
        self, limit: int, cursor: str | None, now: float, *, rehearse: bool = False
    ) -> Repaired:
        held = sorted(self.keys.held())
        page = [each for each in held if cursor is None or each[0] > cursor][: max(0, limit)]
        loose = [(key, id) for key, id in page if not self._needs_key(id, key)]
        lost = self._lost_lines() if cursor is None else []
        if not rehearse:
            for key, owner in loose:
                self.keys.give_back(key, owner, now)
            for queue, name in lost:
                self.queues.key_lines[queue].note(name)
        is_last = not page or page[-1] == held[-1]
        return Repaired(lines=len(lost), keys=len(loose), cursor=None if is_last else page[-1][0])

    def _lost_lines(self) -> list[tuple[str, LineKey]]:
        shares = {queue: self.queues.shares(queue) for queue in self.queues.key_lines}
        return [
            (queue, name)
            for queue, each in shares.items()
            if each is not None
            for name in self.queues.key_lines[queue].lost(each.room)
        ]

    # --- small values --------------------------------------------------------------------------

    def set_cell(
        self, name: str, value: bytes | None, version: int, ttl: float | None, now: float
    ) -> Cell | None:
        _, found, *_ = self.cells.get(name, NO_CELL)
        if found != version:
            return None
        self.cell_writes += 1
        self._tickets += 1
        self.cells[name] = (value, self._tickets, *over_at(now, ttl))
        return cell_at(now, *self.cells[name])

    def _prune_cells(self, limit: int, now: float) -> None:
        over = [name for name, stored in self.cells.items() if cell_at(now, *stored).value is None]
        for name in over[:limit]:
            del self.cells[name]

    # --- what all steps share ------------------------------------------------------------------

    def ticketed(self, job: Job) -> Job:
        """The job with the next ticket."""
        self._tickets += 1
        return replace(job, seq=self._tickets)

    def put(self, job: Job) -> Job:
        """Store a job under the next revision; every change of a job but its start and progress
        comes through here.
        """
        found = self.jobs.get(job.id)
        job = replace(job, revision=0 if found is None else found.revision + 1)
        self.put_quietly(job)
        return job

    def put_quietly(self, job: Job) -> None:
        """Store a job under the revision that it has."""
        self.changes += 1
        self.queues.put(job)

    def _drop(self, job: Job) -> None:
        self.changes += 1
        self.queues.drop(job)
        del self.entered[job.id]
        self._signed.pop(job.id, None)

    def matching(self, which: Filter) -> Iterator[Job]:
        """Every job that fits, in the order of entry."""
        return (job for job in self.jobs.values() if which.fits(job))

    def leased(self, worker: str) -> WorkerInfo:
        """A worker that has a lease; ``LeaseLost`` if it has none."""
        try:
            return self.workers[worker]
        except KeyError:
            raise LeaseLost(worker) from None

    def cancels(self, ask: Ask) -> list[str]:
        """Jobs of this worker whose cancellation it was not told of."""
        held = self.queues.held_by.get(ask.worker, ())
        asked = (id for id in held if self.jobs[id].cancel_reason is not None)
        return sorted(id for id in asked if id not in ask.told)

    def _is_known(self, task: str) -> bool:
        return any(task in worker.tasks for worker in self.workers.values())

    def _needs_key(self, id: str, key: str) -> bool:
        job = self.jobs.get(id)
        return job is not None and job.unique == key and lifecycle.needs_key(job)


def _reported(job: Job, report: Report) -> Job:
    return lifecycle.reported(job, report.fraction, report.note, report.checkpoint)


def _inside_fence(job: Job, claim: int, worker: str) -> bool:
    return job.state is State.RUNNING and job.claim == claim and job.worker == worker
