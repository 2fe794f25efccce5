"""Publishes, as events, what the answers of an engine's verbs say has happened.

It remembers what was claimed through its handle until it is settled, so that an outcome, which
names only a job and an attempt, can be told with its task, queue and duration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock.clock import Clock
from penstock.core.job import Change, Draft, ErrorRecord, Job, Outcome, OutcomeKind, State, Verdict
from penstock.engines.records import (
    Ask,
    Exchange,
    Receipt,
    Rewrite,
    Rewritten,
    WorkerInfo,
)
from penstock.errors import EngineUnavailable
from penstock.events import (
    AttemptEnded,
    Bus,
    Cancelled,
    Claimed,
    Crashed,
    Enqueued,
    Event,
    Expired,
    Failed,
    Faulted,
    JobEvent,
    LeaseWasLost,
    Listening,
    Polling,
    Released,
    Rescued,
    Retried,
    Revived,
    Snoozed,
    Stale,
    Succeeded,
    WorkerJoined,
    WorkerLeft,
)

CLAIMS_KEPT: Final = 10_000
"""What another handle settles is never seen here: the oldest claims are forgotten."""

ENDINGS: Final[Mapping[OutcomeKind, type[AttemptEnded]]] = MappingProxyType(
    {
        OutcomeKind.SUCCEEDED: Succeeded,
        OutcomeKind.FAILED: Failed,
        OutcomeKind.RETRY: Retried,
        OutcomeKind.SNOOZE: Snoozed,
        OutcomeKind.CANCELLED: Cancelled,
        OutcomeKind.RELEASED: Released,
        OutcomeKind.EXPIRED: Expired,
        OutcomeKind.CRASHED: Crashed,
    }
)


class _Claim(NamedTuple):
    """What is remembered of a claimed job."""

    worker: str | None
    task: str | None
    queue: str | None
    correlation_id: str | None
    attempt: int | None
    seen_at: float | None


_UNKNOWN: Final = _Claim(None, None, None, None, None, None)


class Publisher:
    """One handle's view of what happens. Builds no event that has no subscriber."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._claims: dict[tuple[str, int], _Claim] = {}

    def _publish(self, kind: type[Event], /, **fields: Any) -> None:
        if self._bus.wants(kind):
            self._bus.publish(kind(at=self._clock.now(), **fields))

    # --- jobs ----------------------------------------------------------------------------------

    def enqueued(self, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
        """Some drafts became jobs."""
        if not self._bus.wants(Enqueued):
            return
        for draft, receipt in zip(drafts, receipts, strict=False):
            if receipt.created:
                self._publish(
                    Enqueued,
                    job=receipt.id,
                    task=draft.task,
                    queue=draft.queue,
                    correlation_id=draft.correlation_id,
                    priority=draft.priority,
                    key=draft.key,
                    enqueued_by=draft.enqueued_by,
                )

    def exchanged(self, ask: Ask, answer: Exchange) -> None:
        """Outcomes were settled or refused, then jobs claimed."""
        if not self._bus.wants(JobEvent):
            return
        for outcome, verdict in zip(ask.outcomes, answer.verdicts, strict=False):
            if verdict is not Verdict.LATER:
                claim = self._claims.pop((outcome.job, outcome.claim), _UNKNOWN)
                if verdict is Verdict.DONE:
                    self._settled(ask.worker, outcome, claim, answer)
                else:
                    self._refused(ask.worker, outcome, claim)
        if answer.followers:
            self._followed([each for outcome in ask.outcomes for each in outcome.then], answer)
        for job in answer.jobs:
            self._claimed(job)

    def held(self, jobs: Sequence[Job]) -> None:
        """A worker was told what it has: some of it by a reply that was lost."""
        if self._bus.wants(JobEvent):
            for job in jobs:
                if (job.id, job.claim) not in self._claims:
                    self._claimed(job)

    def rewritten(self, rewrites: Sequence[Rewrite], answers: Sequence[Rewritten]) -> None:
        """People or the leader have changed jobs."""
        if not self._bus.wants(JobEvent):
            return
        for rewrite, answer in zip(rewrites, answers, strict=False):
            if answer.verdict is Verdict.DONE and answer.job is not None:
                self._changed(rewrite.change, answer.job)
                self._followed(rewrite.then, answer)

    def _followed(self, drafts: Sequence[Draft], answer: Exchange | Rewritten) -> None:
        """Some of these became jobs with the end of another one."""
        receipts = {each.id: each for each in answer.followers}
        known = [each for each in drafts if each.id in receipts]
        self.enqueued(known, [receipts[each.id] for each in known])

    def _changed(self, change: Change, job: Job) -> None:
        about = {
            "job": job.id,
            "task": job.task,
            "queue": job.queue,
            "correlation_id": job.correlation_id,
        }
        match change:
            case Change.RESCUE:
                self._rescued(job, about)
            case Change.REVIVE:
                self._publish(Revived, **about)
            case Change.CANCEL if job.state is State.CANCELLED:  # what runs is told of when it ends
                self._publish(Cancelled, **about, reason=job.reason)

    def _rescued(self, job: Job, about: Mapping[str, Any]) -> None:
        """The job was taken from a dead worker, and may have ended by it."""
        self._claims.pop((job.id, job.claim), None)
        last = job.errors[-1] if job.errors else None
        is_crash = last is not None and (last.kind, last.attempt) == ("crash", job.attempt)
        crash = last if is_crash else None  # else it was rescued before its start
        worker = None if crash is None else crash.worker
        about = {**about, "attempt": job.attempt, "worker": worker}
        self._publish(Rescued, **about, crashes=job.crashes, state=job.state)
        ending = {State.FAILED: Failed, State.CANCELLED: Cancelled}.get(job.state)
        if ending is not None:
            self._publish(ending, **about, reason=job.reason, error=_sentence(crash))

    def _claimed(self, job: Job) -> None:
        self._claims[job.id, job.claim] = _Claim(
            job.worker,
            job.task,
            job.queue,
            job.correlation_id,
            job.attempt,
            self._clock.monotonic(),
        )
        if len(self._claims) > CLAIMS_KEPT:
            del self._claims[next(iter(self._claims))]
        due_at = max(job.enqueued_at, job.run_at or 0.0)
        self._publish(
            Claimed,
            job=job.id,
            task=job.task,
            queue=job.queue,
            correlation_id=job.correlation_id,
            attempt=job.attempt,
            claim=job.claim,
            worker=job.worker or "",
            waited=max(0.0, (job.claimed_at or due_at) - due_at),
            starts=job.started,
        )

    def _settled(self, worker: str, outcome: Outcome, claim: _Claim, answer: Exchange) -> None:
        """Tell what became of the attempt: what its worker said, unless that was overruled."""
        ending, overruled = ENDINGS[outcome.kind], None
        if outcome.job in answer.overruled:
            ending, overruled = Cancelled, answer.overruled[outcome.job]
        elif outcome.job in answer.abandoned:
            ending, overruled = Failed, answer.abandoned[outcome.job]
        self._publish(
            ending,
            job=outcome.job,
            task=claim.task,
            queue=claim.queue,
            correlation_id=claim.correlation_id,
            attempt=claim.attempt,
            claim=outcome.claim,
            worker=worker,
            duration=None if claim.seen_at is None else self._clock.monotonic() - claim.seen_at,
            reason=outcome.reason if overruled is None else overruled,
            error=_sentence(outcome.error),
            delay=outcome.delay if overruled is None else 0.0,
            hold=outcome.hold if overruled is None else None,
        )

    def _refused(self, worker: str, outcome: Outcome, claim: _Claim) -> None:
        self._publish(
            Stale,
            job=outcome.job,
            task=claim.task,
            queue=claim.queue,
            correlation_id=claim.correlation_id,
            claim=outcome.claim,
            worker=worker,
            outcome=outcome.kind,
        )

    # --- processes and the store ---------------------------------------------------------------

    def joined(self, worker: WorkerInfo) -> None:
        """A worker has its lease."""
        self._publish(
            WorkerJoined,
            worker=worker.id,
            queues=worker.queues,
            tasks=worker.tasks,
            host=worker.host,
            pid=worker.pid,
            slots=worker.slots,
        )

    def left(self, worker: str) -> None:
        """A worker gave its lease back."""
        self._forget(worker)
        self._publish(WorkerLeft, worker=worker)

    def lost(self, worker: str, verb: str) -> None:
        """A worker was told that it has no lease."""
        self._forget(worker)
        self._publish(LeaseWasLost, worker=worker, verb=verb)

    def faulted(self, verb: str, error: EngineUnavailable, tried: int, delay: float | None) -> None:
        """A call failed because the store was not to be reached."""
        kind = type(error).__name__
        self._publish(Faulted, verb=verb, error=str(error), kind=kind, tried=tried, delay=delay)

    def polling(self, why: str | None) -> None:
        """This process polls for what others commit; None: it is told of it again."""
        if why is None:
            self._publish(Listening)
        else:
            self._publish(Polling, why=why)

    def _forget(self, worker: str) -> None:
        """This handle will not see its claims settled."""
        for key in [key for key, claim in self._claims.items() if claim.worker == worker]:
            del self._claims[key]


def _sentence(error: ErrorRecord | None) -> str | None:
    return None if error is None else f"{error.kind}: {error.message}"
