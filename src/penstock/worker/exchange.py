"""How one exchange is made, and what has to come before the next one when it goes wrong.

If the reply to an exchange is lost, nothing is known: its outcomes may be settled, and jobs may be
ours that we never saw. So nothing is claimed before this is cleared up (law 3): the outcomes are
sent again, which is harmless, and the store is asked what we have. What we did not know of runs;
what is no longer ours is stopped.

If this goes wrong here

| here                               | then                                                        |
|------------------------------------|-------------------------------------------------------------|
| an exchange's reply is lost        | outcomes once more with want 0, then ``held``; then go on   |
| the same again while clearing up   | clear up again: every step may be repeated                  |
| the lease is lost                  | all is dropped; a new id, a new ``join``                    |
| an outcome cannot be stored        | the batch is halved until it stands alone; then the job     |
|                                    | fails, with that as the reason                              |
| a row is locked (``LATER``)        | its outcome is kept for the next exchange                   |
| the process dies                   | its beat stands still; the leader rescues                   |
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.clock import Clock
from penstock.core.callbacks import Callback
from penstock.core.job import Outcome, OutcomeKind, Verdict
from penstock.core.spec import Spec
from penstock.engines import changes
from penstock.engines.batcher import halved
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Exchange, Report, WorkerInfo
from penstock.errors import ItemRefused
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.error_record import storable
from penstock.worker.lease import Lease
from penstock.worker.log import WorkerLog
from penstock.worker.settings import WorkerSettings
from penstock.worker.status import Parent

UNSTORABLE: Final = "result could not be stored"


class Exchanger:
    """The worker's exchanges with the store, under the id that it has now.

    ``parent`` is told of each id under which it has joined, and of what was settled.
    """

    def __init__(
        self,
        engine: Engine,
        lease: Lease,
        dispatcher: Dispatcher,
        *,
        specs: Mapping[str, Spec],
        settings: WorkerSettings,
        clock: Clock,
        log: WorkerLog,
        parent: Parent,
    ) -> None:
        self._engine = engine
        self._lease = lease
        self._dispatcher = dispatcher
        self._inflight = dispatcher.inflight
        self._specs = specs
        self._settings = settings
        self._clock = clock
        self._log = log
        self._parent = parent
        self._must_join = True
        self._is_uncertain = False

    @property
    def is_certain(self) -> bool:
        """The store has given this worker nothing that it does not know of."""
        return not self._is_uncertain

    async def clear_up(self) -> None:
        """Do what has to come before the next exchange; with nothing to do it does not wait."""
        if self._must_join:
            await self._join()
        if self._is_uncertain:
            await self._recover()

    def lose(self, worker: str) -> None:
        """The store does not know ``worker`` any more. Idempotent."""
        if worker != self._lease.worker:
            return
        self._log.warning("lease lost", worker=worker, dropped=self._dispatcher.forget())
        self._lease.rename()
        self._must_join = True
        self._is_uncertain = False

    async def send(self, ask: Ask) -> Exchange | None:
        """Make one exchange and hand out what comes; None: there was no reply to use.

        On failure: any ``EngineError``; call ``clear_up`` before the next one.
        """
        self._dispatcher.stats.exchanges += 1
        asked_at = self._clock.monotonic()
        self._is_uncertain = True
        try:
            reply = await self._engine.exchange(ask)
        except ItemRefused:
            self._is_uncertain = False
            await self._halve(ask)
            return None
        if ask.worker != self._lease.worker:
            return None  # the lease was lost meanwhile: what it says is for a worker that was
        self._is_uncertain = False
        self._log.available()
        self._dispatcher.time.told(reply.now)
        self._judged(ask, reply)
        kinds = self._dispatcher.take(reply.jobs)
        now = self._clock.monotonic()
        prefetch = self._dispatcher.planner.prefetch
        prefetch.exchanged(now, now - asked_at, kinds)
        if ask.want:
            prefetch.is_keyed = reply.is_keyed
        return reply

    def _judged(self, ask: Ask, reply: Exchange) -> None:
        self._inflight.stored(ask.reports)
        if self._inflight.reported(ask.begun):
            self._dispatcher.pump()
        if stale := self._inflight.answered(ask.outcomes, reply.verdicts):
            self._log.warning("outcomes stale", worker=ask.worker, count=stale)
        self._parent.settled(ask.outcomes, reply.verdicts, len(reply.abandoned))
        for job, reason in reply.abandoned.items():
            self._log.given_up(job, reason)
        self._dispatcher.cancel(reply.cancels)

    # --- before the next one -------------------------------------------------------------------

    async def _join(self) -> None:
        asked_at = self._clock.monotonic()
        info = worker_info(self._lease.worker, self._specs, self._settings)
        await self._engine.join(info)
        if info.id != self._lease.worker:
            return
        self._must_join = False
        self._lease.renew(info.id, asked_at)
        queues = ",".join(info.queues)
        self._log.info("worker joined", worker=info.id, queues=queues, tasks=len(info.tasks))
        if not info.tasks:
            self._log.no_tasks(info.id)
        self._parent.joined(info.id)
        # What a failure leaves of this is for a repair.
        await changes.lift_known(self._engine, info.tasks)

    async def _recover(self) -> None:
        worker, most = self._lease.worker, self._engine.traits.max_batch
        outcomes = self._inflight.outgoing(most)
        ask = Ask(
            worker=worker,
            outcomes=outcomes,
            begun=self._inflight.begun(),
            reports=self._inflight.reports(most, outcomes),
            told=self._inflight.told,
        )
        if ask.outcomes:
            try:
                self._judged(ask, await self._engine.exchange(ask))
            except ItemRefused:
                await self._halve(ask)
        held = await self._engine.held(worker)
        if worker != self._lease.worker:
            return
        difference = self._inflight.compare(held)
        self._dispatcher.drop(difference.gone)
        self._dispatcher.take(difference.unknown)
        self._is_uncertain = False
        adopted, dropped = len(difference.unknown), len(difference.gone)
        self._log.info("lost reply", worker=worker, adopted=adopted, dropped=dropped)

    # --- what cannot be stored -----------------------------------------------------------------

    async def _halve(self, ask: Ask) -> None:
        """Settle what can be, piece by piece; let the jobs of the rest fail."""

        async def settle(outcomes: Sequence[Outcome]) -> Sequence[Verdict]:
            piece = Ask(worker=ask.worker, outcomes=tuple(outcomes), begun=ask.begun, told=ask.told)
            reply = await self._engine.exchange(piece)
            self._judged(piece, reply)
            return reply.verdicts

        async def report(reports: Sequence[Report]) -> Sequence[None]:
            piece = Ask(worker=ask.worker, reports=tuple(reports), begun=ask.begun, told=ask.told)
            self._judged(piece, await self._engine.exchange(piece))
            return [None] * len(reports)

        await halved(report, ask.reports)
        self._inflight.drop_reports(ask.reports)  # what is not stored now cannot be
        answers = await halved(settle, ask.outcomes)
        for outcome, answer in zip(ask.outcomes, answers, strict=True):
            if isinstance(answer, ItemRefused):
                self._log.error("outcome refused", job=outcome.job, why=str(answer))
                self._inflight.replace(outcome, _plainer(outcome, answer))


def worker_info(id: str, specs: Mapping[str, Spec], settings: WorkerSettings) -> WorkerInfo:
    """What a worker tells of itself when it joins."""
    rooms = {
        "async": settings.concurrency,
        "sync": settings.threads,
        "process": settings.children,
    }
    return WorkerInfo(
        id=id,
        queues=settings.queues,
        tasks=tuple(specs),
        host=socket.gethostname(),
        pid=os.getpid(),
        slots=sum(rooms.values()),
        rooms=rooms,
        kinds={name: spec.kind for name, spec in specs.items()},
        reserve=settings.reserve,
        callbacks=failure_callbacks(specs),
        queue_slots=settings.queue_slots,
        lease=settings.lease,
    )


def failure_callbacks(specs: Mapping[str, Spec]) -> dict[str, Callback]:
    """What a process that does not know these tasks needs for the callbacks of their failures."""
    return {
        name: found
        for name, spec in specs.items()
        if spec.callbacks is not None and (found := spec.callbacks.on_failure) is not None
    }


def _plainer(outcome: Outcome, refusal: ItemRefused) -> Outcome | None:
    """What to say instead of something that cannot be stored; None: there is nothing plainer."""
    failed = Outcome(job=outcome.job, claim=outcome.claim, kind=OutcomeKind.FAILED)
    if outcome == failed:
        return None
    if outcome.kind is OutcomeKind.FAILED and (outcome.reason or "").startswith(UNSTORABLE):
        return failed
    return replace(failed, reason=f"{UNSTORABLE}: {storable(refusal.why, 500)}")
