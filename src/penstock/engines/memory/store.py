"""The jobs of the memory engine and the steps that change them: the readable reference.

Every public method is one atomic step: it runs under the store's lock and reads the time once.
What may happen to a job is decided in ``core.life``; here is what needs the whole store: tickets,
lines, unique keys, the ledger, leases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Draft, Hold, Job, Outcome, State, Verdict, choose
from penstock.engines.memory.reads import MemoryViews, due_at, earliest
from penstock.engines.records import (
    PROMOTE_BATCH,
    Ask,
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
    WorkerInfo,
    entry_before,
    reasons,
)
from penstock.engines.validation import check_drafts, check_given, check_outcomes, check_reports

NAME = "memory"


class MemoryJobs(MemoryViews):
    """One store and every way to change it. Not safe for threads: see ``memory``."""

    # --- in ------------------------------------------------------------------------------------

    def enqueue(self, drafts: Sequence[Draft], now: float) -> list[Receipt]:
        """See the contract."""
        drafts = tuple(drafts)
        check_drafts(NAME, drafts)
        check_given(NAME, drafts)
        return [self._enqueue(draft, now) for draft in drafts]

    def _enqueue(self, draft: Draft, now: float) -> Receipt:
        is_in_ledger = draft.remember > 0 and self.ledger.get(draft.id, 0.0) > now
        if draft.id in self.jobs or is_in_ledger:
            return Receipt(draft.id, False, "id")
        if draft.unique is not None:
            owner = self.keys.taken(draft.unique, draft.id, now)
            if owner is not None:
                return Receipt(owner, False, "unique")
            self.keys.take(draft.unique, draft.id, now + draft.unique_for)
        if draft.remember > 0:
            self.ledger[draft.id] = now + draft.remember
        self._entries += 1
        self.entered[draft.id] = self._entries
        job = lifecycle.born(draft, now)
        self._put(self._ticketed(job))
        return Receipt(draft.id, True)

    # --- work ----------------------------------------------------------------------------------

    def join(self, worker: WorkerInfo, now: float) -> None:
        """See the contract."""
        known = self.workers.get(worker.id)
        self.workers[worker.id] = replace(
            worker,
            beat=known.beat if known else 0,
            joined_at=known.joined_at if known else now,
        )
        self.changes += 1
        self._unhold_known(frozenset(worker.tasks))

    def leave(self, worker: str) -> None:
        """See the contract."""
        if self.workers.pop(worker, None):
            self.changes += 1

    def beat(self, worker: str) -> None:
        """See the contract."""
        info = self._leased(worker)
        self.workers[worker] = replace(info, beat=info.beat + 1)

    def exchange(self, ask: Ask, now: float) -> Exchange:
        """See the contract."""
        self._leased(ask.worker)
        check_outcomes(NAME, ask.outcomes)
        check_given(NAME, ask)
        for id, attempt in ask.begun:
            job = self.jobs.get(id)
            if job and _inside_fence(job, attempt, ask.worker) and not job.started:
                self._put(replace(job, started=True))
        overruled: dict[str, Job] = {}
        verdicts = tuple(
            self._settle(outcome, ask.worker, now, overruled) for outcome in ask.outcomes
        )
        self._promote(PROMOTE_BATCH, now)
        self.place()
        return Exchange(
            jobs=tuple(self._claim(ask, now)),
            verdicts=verdicts,
            cancels=tuple(self._cancels(ask)),
            overruled=reasons(overruled, State.CANCELLED),
            abandoned=reasons(overruled, State.FAILED),
            due_in=self._due_in(ask.queues, now),
            now=now,
        )

    def _settle(
        self, outcome: Outcome, worker: str, now: float, overruled: dict[str, Job]
    ) -> Verdict:
        job = self.jobs.get(outcome.job)
        if job is None:
            return Verdict.STALE
        if not _inside_fence(job, outcome.attempt, worker):
            is_ended_by_owner = job.state is not State.RUNNING and (
                (job.attempt, job.worker) == (outcome.attempt, worker)
            )
            is_signed = self._signed.get(job.id) == (outcome.attempt, worker)
            if is_ended_by_owner and lifecycle.overruled(outcome, job):
                overruled[job.id] = job
            return Verdict.DONE if is_ended_by_owner or is_signed else Verdict.STALE
        after = lifecycle.settled(job, outcome, now)
        if after.hold is Hold.UNKNOWN_TASK and self._is_known(after.task):
            after = replace(after, hold=None, hold_cause=None, hold_until=None)
        after = self._wait_or_end(job, after, now)
        if lifecycle.overruled(outcome, after):
            overruled[job.id] = after
        if not after.state.is_final:
            self._signed[job.id] = (outcome.attempt, worker)
        return Verdict.DONE

    def _wait_or_end(self, job: Job, after: Job, now: float) -> Job:
        """Store a running job's next state, with the unique key it needs or gives back."""
        if not after.state.is_final and job.unique is not None:
            owner = self.keys.taken(job.unique, job.id, now)
            if owner is not None:
                was = replace(after, state=State.RUNNING)
                after = lifecycle.superseded(was, owner, now)
        if job.unique is not None:
            if after.state.is_final:
                self.keys.give_back(job.unique, job.id, now)
            else:
                self.keys.hold(job.unique, job.id, now)
        self._put(after)
        return after

    def _claim(self, ask: Ask, now: float) -> Iterator[Job]:
        if ask.want <= 0:
            return
        lines = [
            self._line(ask, queue, min(ask.want, room), now)
            for queue in dict.fromkeys(ask.queues)
            if (room := self._room(queue)) > 0
        ]
        for position, job in enumerate(choose(lines, ask.want, ask.slots)):
            after = lifecycle.claimed(job, ask.worker, now, starts=position < ask.slots)
            if self._is_fair(job.queue):
                self._places.advance(job)
            if job.unique is not None and job.unique_until == "start":
                self.keys.give_back(job.unique, job.id, now)
            self._put(after)
            yield after

    def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        """See the contract."""
        check_reports(NAME, reports)
        if worker not in self.workers:
            return [Verdict.STALE] * len(reports)
        return [self._progress(worker, report) for report in reports]

    def _progress(self, worker: str, report: Report) -> Verdict:
        job = self.jobs.get(report.job)
        if job is None or not _inside_fence(job, report.attempt, worker):
            return Verdict.STALE
        self._put(replace(job, progress=report.fraction, note=report.note))
        return Verdict.DONE

    # --- control -------------------------------------------------------------------------------

    def cancel(self, ids: Sequence[str], reason: str, now: float) -> list[Control]:
        """See the contract."""
        return [self._cancel(id, reason, now) for id in ids]

    def _cancel(self, id: str, reason: str, now: float) -> Control:
        job = self.jobs.get(id)
        if job is None or job.state.is_final or job.cancel_reason is not None:
            return Control(id, False, job.state if job else None)
        after = lifecycle.cancelled(job, reason, now)
        if after.state.is_final:
            self.keys.give_back(job.unique, job.id, now)
        self._put(after)
        return Control(id, True, after.state)

    def retry(self, ids: Sequence[str], now: float) -> list[Control]:
        """See the contract."""
        return [self._retry(id, now) for id in ids]

    def _retry(self, id: str, now: float) -> Control:
        job = self.jobs.get(id)
        if job is None or job.state not in (State.FAILED, State.CANCELLED):
            return Control(id, False, job.state if job else None)
        if job.unique is not None:
            owner = self.keys.taken(job.unique, id, now)
            if owner is not None:
                return Control(id, False, job.state, owner)
            self.keys.hold(job.unique, id, now)
        after = self._ticketed(lifecycle.revived(job))
        self._put(after)
        return Control(id, True, after.state)

    def purge(self, which: Filter, limit: int, cursor: str | None, now: float) -> Purged:
        """See the contract."""
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
        """See the contract."""
        was_fair = self._is_fair(queue)
        self.settings[queue] = settings
        self.changes += 1
        if was_fair and not settings.fair:
            for job in [job for job in self.jobs.values() if job.queue == queue]:
                if not job.state.is_final:
                    self._put(replace(_unheld(job, Hold.UNPLACED), place=0.0))
            self._places.forget(queue)

    # --- upkeep --------------------------------------------------------------------------------

    def promote(self, limit: int, now: float) -> Promoted:
        """See the contract."""
        done = self._promote(limit, now)
        due_in = self._due_in(tuple(self._due), now)
        first = self._expiring.first()
        if first is not None and first.expires_at is not None:
            due_in = earliest(due_in, max(0.0, first.expires_at - now))
        return replace(done, due_in=due_in)

    def _promote(self, limit: int, now: float) -> Promoted:
        limit = max(0, limit)
        expired = 0
        while expired < limit and (job := self._expiring.first()) is not None:
            if job.expires_at is None or job.expires_at > now:
                break
            self.keys.give_back(job.unique, job.id, now)
            self._put(lifecycle.expired(job, now))
            expired += 1
        due: list[Job] = []
        for line in self._due.values():
            due += line.leading(limit, lambda job: due_at(job) <= now)
        due.sort(key=lambda job: (due_at(job), job.seq))
        for job in due[:limit]:
            after = lifecycle.promoted(job)
            self._put(self._ticketed(after) if job.state is State.SCHEDULED else after)
        return Promoted(ready=len(due[:limit]), expired=expired)

    def rescue(self, dead: Sequence[Sighting], limit: int, now: float) -> list[Job]:
        """See the contract."""
        for sighting in dead:
            info = self.workers.get(sighting.worker)
            if info is not None and info.beat == sighting.beat:
                del self.workers[sighting.worker]
                self.changes += 1
        orphans = [
            self.jobs[id]
            for worker, ids in self._held_by.items()
            if worker not in self.workers
            for id in ids
        ]
        orphans.sort(key=lambda job: job.order)
        limit = max(0, limit)
        return [self._wait_or_end(job, lifecycle.rescued(job, now), now) for job in orphans[:limit]]

    def prune(self, keep: float, limit: int, now: float) -> Pruned:
        """See the contract."""
        limit = max(0, limit)
        old = [
            job
            for job in self.jobs.values()
            if job.finished_at is not None and job.finished_at < now - keep
        ]
        old.sort(key=lambda job: (job.finished_at, self.entered[job.id]))
        for job in old[:limit]:
            self._drop(job)
        ids = [id for id, until in self.ledger.items() if until <= now][:limit]
        for id in ids:
            del self.ledger[id]
        keys = self.keys.prune(limit, now)
        self._places.prune()
        return Pruned(jobs=len(old[:limit]), ids=len(ids), keys=keys)

    def mend(self, now: float, *, rehearse: bool = False) -> Mended:
        """See the contract."""
        unplaced = sum(len(ids) for queue, ids in self._unplaced.items() if self._is_fair(queue))
        idle = [job for job in self.jobs.values() if job.hold and not self._has_cause(job)]
        loose = [(key, id) for key, id in self.keys.held() if not self._needs_key(id, key)]
        if not rehearse:
            self.place()
            for job in idle:
                self._put(replace(job, hold=None, hold_cause=None, hold_until=None))
            for key, owner in loose:
                self.keys.give_back(key, owner, now)
        return Mended(placed=unplaced, unheld=len(idle), keys=len(loose))

    def place(self) -> int:
        """Give every unplaced job of a fair queue its place, in order of arrival."""
        placed = 0
        for queue, ids in list(self._unplaced.items()):
            if self._is_fair(queue):
                weights = self.settings[queue].weights
                for job in sorted((self.jobs[id] for id in ids), key=lambda job: job.seq):
                    place = self._places.give(job, weights.get(job.key or "", 1.0))
                    self._put(replace(_unheld(job, Hold.UNPLACED), place=place))
                    placed += 1
        return placed

    # --- what all steps share ------------------------------------------------------------------

    def _ticketed(self, job: Job) -> Job:
        """A new ticket; in a fair queue a ready job still needs its place."""
        self._tickets += 1
        job = replace(job, seq=self._tickets, place=0.0)
        if job.state is State.READY and self._is_fair(job.queue):
            return replace(job, hold=Hold.UNPLACED, hold_cause=job.queue)
        return job

    def _put(self, job: Job) -> None:
        """Store a job and stand it in the lines it belongs to. The only way in."""
        self.changes += 1
        old = self.jobs.get(job.id)
        if old is not None:
            self._unlist(old)
        self.jobs[job.id] = job
        if job.state is State.RUNNING:
            self._running[job.queue].add(job.id)
            self._held_by[job.worker or ""].add(job.id)
        elif job.hold is Hold.UNPLACED:
            self._unplaced[job.queue][job.id] = None
        if job.state.is_waiting:
            self._lines[job.queue].add(job)
            self._due[job.queue].add(job)
            self._expiring.add(job)
            if job.claimed_at is not None:
                self._open[job.queue].add(job.id)

    def _unlist(self, job: Job) -> None:
        if job.state is State.RUNNING:
            self._running[job.queue].discard(job.id)
            self._held_by[job.worker or ""].discard(job.id)
            return
        if job.hold is Hold.UNPLACED:
            self._unplaced[job.queue].pop(job.id, None)
        if job.claimed_at is not None:
            self._open[job.queue].discard(job.id)

    def _drop(self, job: Job) -> None:
        self.changes += 1
        self._unlist(job)
        del self.jobs[job.id]
        del self.entered[job.id]
        self._signed.pop(job.id, None)

    def _unhold_known(self, tasks: frozenset[str]) -> None:
        for job in [job for job in self.jobs.values() if job.hold is Hold.UNKNOWN_TASK]:
            if job.task in tasks:
                self._put(_unheld(job, Hold.UNKNOWN_TASK))


def _unheld(job: Job, hold: Hold) -> Job:
    if job.hold is not hold:
        return job
    return replace(job, hold=None, hold_cause=None, hold_until=None)


def _inside_fence(job: Job, attempt: int, worker: str) -> bool:
    return job.state is State.RUNNING and job.attempt == attempt and job.worker == worker
