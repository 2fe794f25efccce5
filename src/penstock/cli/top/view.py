"""What a live screen shows of a store: its rows, and reading them again and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.app import Penstock
from penstock.cli.store import check_made
from penstock.clock import Clock
from penstock.core.job import Job, State
from penstock.core.redaction import redacted_text
from penstock.engines import changes, reads
from penstock.engines.engine import Engine
from penstock.engines.reads import Overview, Traffic
from penstock.engines.records import Control, QueueSettings, WorkerInfo
from penstock.explain import Explanation, explain
from penstock.handle import BY_A_PERSON
from penstock.leader.election import present_term
from penstock.stores import connect

WINDOW: Final = 10.0
"""Seconds that rates are taken over."""
LIMIT: Final = 100
"""Running jobs, and failed ones, that are read."""
USUAL_LEASE: Final = 15.0
"""Seconds, for a worker that does not say its lease."""


@dataclass(frozen=True, slots=True)
class View:
    """A store as it was seen at one moment."""

    store: str
    """Its URL without secrets."""
    seen: Overview
    window: float
    """Seconds that the rates are taken over."""
    leader: str | None = None
    stillness: Mapping[str, float | None] = field(default_factory=dict)
    """Seconds since each worker's beat was seen to grow; None: it is not known yet."""
    known: tuple[str, ...] = ()
    """Queues that were seen before, and may have nothing now."""

    @property
    def queues(self) -> list[QueueRow]:
        """Every queue that has something, or is served, or was seen before."""
        counts: Counter[tuple[str, str]] = Counter()
        for count in self.seen.counts:
            counts[count.queue, "held" if count.hold else count.state] += count.jobs
        served = (queue for worker in self.seen.workers for queue in worker.queues)
        traffic = {each.queue: each for each in self.seen.traffic}
        names = {*self.known, *self.seen.settings, *served, *traffic}
        return [
            QueueRow(
                name=name,
                settings=self.seen.settings.get(name, QueueSettings()),
                ready=counts[name, State.READY],
                scheduled=counts[name, State.SCHEDULED],
                running=counts[name, State.RUNNING],
                held=counts[name, "held"],
                failed=counts[name, State.FAILED],
                traffic=traffic.get(name, Traffic(queue=name)),
            )
            for name in sorted(names | {queue for queue, _ in counts})
        ]

    @property
    def workers(self) -> list[WorkerRow]:
        """Every worker that has a lease."""
        return [
            WorkerRow(info, self.seen.busy.get(info.id, 0), self.stillness.get(info.id))
            for info in self.seen.workers
        ]

    def rate(self, jobs: int) -> float:
        """So many within the window, per second."""
        return jobs / self.window

    @property
    def total(self) -> Traffic:
        """What came and ended, over all queues."""
        each = self.seen.traffic
        return Traffic(
            queue="",
            entered=sum(traffic.entered for traffic in each),
            succeeded=sum(traffic.succeeded for traffic in each),
            failed=sum(traffic.failed for traffic in each),
            cancelled=sum(traffic.cancelled for traffic in each),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue: how many jobs it has, and what was decided about it."""

    name: str
    settings: QueueSettings
    ready: int
    scheduled: int
    running: int
    held: int
    failed: int
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker: how much of it is taken, and whether it is seen to live."""

    info: WorkerInfo
    busy: int
    still: float | None

    @property
    def is_silent(self) -> bool:
        """Its beat stood still for its whole lease."""
        return self.still is not None and self.still > (self.info.lease or USUAL_LEASE)


def why_failed(job: Job) -> str:
    """Why a job has failed, on one line."""
    last = job.errors[-1] if job.errors else None
    text = redacted_text(job.reason or "") or (
        f"{last.kind}: {last.message}" if last else "no reason is known"
    )
    lines = text.strip().splitlines()
    return lines[0] if lines else ""


class BeatAges:
    """When each worker's beat was seen to grow, by this process's clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float, bool]] = {}

    def note(self, workers: tuple[WorkerInfo, ...], now: float) -> dict[str, float | None]:
        """Take in the beats as they are ``now``; return for how many seconds each stood still.

        None: it has not grown since it was first seen, and that was less than a lease ago.
        """
        before, self._seen = self._seen, {}
        still: dict[str, float | None] = {}
        for info in workers:
            beat, at, has_grown = before.get(info.id, (info.beat, now, False))
            if info.beat != beat:
                at, has_grown = now, True
            self._seen[info.id] = (info.beat, at, has_grown)
            still[info.id] = (
                now - at if has_grown or now - at > (info.lease or USUAL_LEASE) else None
            )
        return still


class StoreWatcher:
    """Reads a store again and again, also after it was away. ``named`` tells where the name of the
    store is from.
    """

    def __init__(self, app: Penstock, named: str, clock: Clock) -> None:
        self._app = app
        self._named = named
        self._clock = clock
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._beats = BeatAges()
        self._known: tuple[str, ...] = ()

    async def read(self) -> View:
        """Read how the store does.

        On failure: a ``PenstockError``; the next call opens the store anew.
        """
        try:
            engine = await self._opened()
            seen = await reads.overview(engine, WINDOW, LIMIT)
            term = await present_term(engine)
        except BaseException:
            await self.close()
            raise
        view = View(
            store=str(self._app.url),
            seen=seen,
            window=WINDOW,
            leader=None if term is None else term.holder,
            stillness=self._beats.note(seen.workers, self._clock.monotonic()),
            known=self._known,
        )
        self._known = tuple(sorted({*self._known, *(row.name for row in view.queues)}))
        return view

    async def close(self) -> None:
        """Close the handle."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def explain(self, id: str) -> Explanation:
        """Why a job is where it is, as far as one look tells.

        On failure: a ``PenstockError``.
        """
        return await explain(await self._opened(), id)

    async def cancel(self, id: str) -> Control:
        """Cancel a job as ``penstock jobs cancel`` does; what became of it.

        On failure: a ``PenstockError``.
        """
        return (await changes.cancel(await self._opened(), [id], BY_A_PERSON))[0]

    async def _opened(self) -> Engine:
        async with self._opening:
            if self._engine is None:
                await check_made(self._app, self._named)
                engine = connect(self._app.url.text, self._clock)
                await engine.open()
                self._engine = engine
            return self._engine
