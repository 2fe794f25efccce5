"""An engine around another engine: every verb goes through one method.

What is special about such an engine (faults, events, repeats) is written in ``_call`` or in a verb
that is overridden; everything else stays as it is here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from penstock.core.finding import Finding
from penstock.core.job import Draft, Job, Verdict
from penstock.engines.engine import Engine
from penstock.engines.records import (
    Ask,
    Cell,
    Control,
    Count,
    Exchange,
    Filter,
    Glance,
    Hand,
    Leadership,
    Mended,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Report,
    Schema,
    Sighting,
    Standing,
    Term,
    WorkerInfo,
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class EngineWrapper(Engine):
    """Forwards every verb to the engine ``inner``.

    It has no inlet of its own, for what is stored there would go past ``_call``.
    """

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.traits = inner.traits
        self.clock = inner.clock

    @property
    def polls(self) -> Callable[[str | None], object]:
        """What the inner engine calls when it has to poll."""
        return self.inner.polls

    @polls.setter
    def polls(self, hears: Callable[[str | None], object]) -> None:
        self.inner.polls = hears

    async def _call(
        self,
        verb: str,
        call: Callable[Arguments, Awaitable[Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call ``verb``, which is ``call``, on the inner engine."""
        return await call(*args, **kwargs)

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._call("open", self.inner.open)

    async def close(self) -> None:
        await self._call("close", self.inner.close)

    async def migrate(self) -> int:
        return await self._call("migrate", self.inner.migrate)

    async def schema(self) -> Schema:
        return await self._call("schema", self.inner.schema)

    async def now(self) -> float:
        return await self._call("now", self.inner.now)

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        return await self._call("checkup", self.inner.checkup, thorough=thorough)

    # --- in ------------------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return await self._call("enqueue", self.inner.enqueue, drafts)

    # --- work ----------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo) -> None:
        await self._call("join", self.inner.join, worker)

    async def leave(self, worker: str) -> None:
        await self._call("leave", self.inner.leave, worker)

    async def beat(self, worker: str) -> None:
        await self._call("beat", self.inner.beat, worker)

    async def exchange(self, ask: Ask) -> Exchange:
        return await self._call("exchange", self.inner.exchange, ask)

    async def held(self, worker: str) -> list[Job]:
        return await self._call("held", self.inner.held, worker)

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        return await self._call("progress", self.inner.progress, worker, reports)

    async def look(self, ask: Ask) -> float | None:
        return await self._call("look", self.inner.look, ask)

    async def wait(self, ask: Ask, timeout: float) -> None:
        await self._call("wait", self.inner.wait, ask, timeout)

    # --- control -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        return await self._call("cancel", self.inner.cancel, ids, reason)

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        return await self._call("retry", self.inner.retry, ids)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._call("purge", self.inner.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._call("set_queue", self.inner.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._call("queues", self.inner.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return await self._call("promote", self.inner.promote, limit)

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        return await self._call("rescue", self.inner.rescue, dead, limit)

    async def prune(self, keep: float, limit: int) -> Pruned:
        return await self._call("prune", self.inner.prune, keep, limit)

    async def mend(self, *, rehearse: bool = False) -> Mended:
        return await self._call("mend", self.inner.mend, rehearse=rehearse)

    async def tidy(self) -> float:
        return await self._call("tidy", self.inner.tidy)

    # --- lead ----------------------------------------------------------------------------------

    async def lead(self, candidate: str, ttl: float) -> Leadership:
        return await self._call("lead", self.inner.lead, candidate, ttl)

    async def resign(self, holder: str, epoch: int) -> None:
        await self._call("resign", self.inner.resign, holder, epoch)

    async def leader(self) -> Term | None:
        return await self._call("leader", self.inner.leader)

    # --- small values --------------------------------------------------------------------------

    async def cell(self, name: str) -> Cell:
        return await self._call("cell", self.inner.cell, name)

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        return await self._call("set_cell", self.inner.set_cell, name, value, version)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._call("get", self.inner.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._call("find", self.inner.find, which, cursor, limit)

    async def count(self, which: Filter) -> int:
        return await self._call("count", self.inner.count, which)

    async def counts(self) -> list[Count]:
        return await self._call("counts", self.inner.counts)

    async def glance(self, window: float, limit: int) -> Glance:
        return await self._call("glance", self.inner.glance, window, limit)

    async def workers(self) -> list[WorkerInfo]:
        return await self._call("workers", self.inner.workers)

    async def hands(self) -> list[Hand]:
        return await self._call("hands", self.inner.hands)

    async def line(self, id: str) -> Standing:
        return await self._call("line", self.inner.line, id)

    async def results(self, ids: Sequence[str], timeout: float) -> dict[str, Job | None]:
        return await self._call("results", self.inner.results, ids, timeout)

    async def version(self) -> int:
        return await self._call("version", self.inner.version)

    async def listen(self, seen: int, timeout: float) -> int:
        return await self._call("listen", self.inner.listen, seen, timeout)
