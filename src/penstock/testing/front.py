"""The handle that an app has in a sandbox: it keeps what was enqueued, and waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.core.job import Draft, Job, State
from penstock.engines.engine import Engine
from penstock.engines.records import Control, Receipt
from penstock.testing.faulty import Faulty
from penstock.testing.stepper import NAME
from penstock.testing.troubles import NobodyRuns


@dataclass(frozen=True, slots=True)
class Stored:
    """A job as it was enqueued."""

    draft: Draft
    at: float
    """The instant by the sandbox's clock."""


@dataclass(eq=False, slots=True)
class Watch:
    """What the handles of one sandbox share."""

    failed: Callable[[str], None]
    """Told of each job whose failure the test was told by its handle."""
    cancelled: Callable[[str], None]
    """Told of each running job that was asked to end."""
    stored: list[Stored] = field(default_factory=list)
    queues: dict[str, None] = field(default_factory=dict)
    """The queues that have had a job, in order."""
    has_company: bool = False
    """Others run while somebody waits."""


class Front(Faulty):
    """One such handle; faults are scripted for all of them at once."""

    def __init__(self, inner: Engine, watch: Watch, like: Faulty | None) -> None:
        super().__init__(inner, like)
        self._watch = watch

    async def _enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        receipts = await super()._enqueue(drafts)
        now = self.clock.now()
        for draft, receipt in zip(drafts, receipts, strict=True):
            if receipt.created:
                self._watch.queues[draft.queue] = None
                self._watch.stored.append(Stored(draft, now))
        return receipts

    async def results(self, ids: Sequence[str], timeout: float) -> dict[str, Job | None]:
        company = self._watch.has_company or await self._has_workers()
        ended = await super().results(ids, timeout if company else 0.0)
        for id, job in ended.items():
            if job is not None and job.state is State.FAILED:
                self._watch.failed(id)
        if not ended and not company:
            for job in await self.inner.get(ids):
                if job is not None:
                    raise NobodyRuns(job.id, job.state)
        return ended

    async def _has_workers(self) -> bool:
        """Somebody has started a worker of their own on this store."""
        return any(not each.id.startswith(NAME) for each in await self.inner.workers())

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        controls = await super().cancel(ids, reason)
        for control in controls:
            if control.changed and control.state is State.RUNNING:
                self._watch.cancelled(control.id)
        return controls
