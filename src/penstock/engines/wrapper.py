"""An engine around another engine: every verb goes through one method.

What is special about such an engine (faults, events, repeats) is written in ``_call`` or in a verb
that is overridden; everything else stays as it is here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from penstock.core.job import Draft, Job
from penstock.engines.engine import Engine
from penstock.engines.records import (
    Ask,
    Cell,
    CellPage,
    Count,
    Exchange,
    Filter,
    News,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Repaired,
    Rewrite,
    Rewritten,
    Running,
    Schema,
    Sighting,
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

    async def migrate(self, *, check: bool = False) -> Schema:
        return await self._call("migrate", self.inner.migrate, check=check)

    # --- in ------------------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return await self._call("enqueue", self.inner.enqueue, drafts)

    # --- work ----------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo) -> None:
        await self._call("join", self.inner.join, worker)

    async def leave(self, worker: str) -> None:
        await self._call("leave", self.inner.leave, worker)

    async def beat(self, worker: str) -> bytes | None:
        return await self._call("beat", self.inner.beat, worker)

    async def exchange(self, ask: Ask) -> Exchange:
        return await self._call("exchange", self.inner.exchange, ask)

    async def held(self, worker: str) -> list[Job]:
        return await self._call("held", self.inner.held, worker)

    # --- control -------------------------------------------------------------------------------

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        return await self._call("rewrite", self.inner.rewrite, rewrites)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._call("purge", self.inner.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._call("set_queue", self.inner.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._call("queues", self.inner.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return await self._call("promote", self.inner.promote, limit)

    async def end_leases(self, dead: Sequence[Sighting]) -> list[str]:
        return await self._call("end_leases", self.inner.end_leases, dead)

    async def prune(self, limit: int) -> Pruned:
        return await self._call("prune", self.inner.prune, limit)

    async def repair(
        self, limit: int, cursor: str | None = None, *, rehearse: bool = False
    ) -> Repaired:
        return await self._call("repair", self.inner.repair, limit, cursor, rehearse=rehearse)

    # --- small values --------------------------------------------------------------------------

    async def cell(self, name: str) -> Cell:
        return await self._call("cell", self.inner.cell, name)

    async def set_cell(
        self, name: str, value: bytes | None, version: int, ttl: float | None = None
    ) -> Cell | None:
        return await self._call("set_cell", self.inner.set_cell, name, value, version, ttl)

    async def cells(self, prefix: str, cursor: str | None, limit: int) -> CellPage:
        return await self._call("cells", self.inner.cells, prefix, cursor, limit)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._call("get", self.inner.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._call("find", self.inner.find, which, cursor, limit)

    async def counts(self, which: Filter) -> list[Count]:
        return await self._call("counts", self.inner.counts, which)

    async def running(self) -> list[Running]:
        return await self._call("running", self.inner.running)

    async def workers(self) -> list[WorkerInfo]:
        return await self._call("workers", self.inner.workers)

    # --- wake ----------------------------------------------------------------------------------

    async def version(self, kind: News) -> int:
        return await self._call("version", self.inner.version, kind)

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        return await self._call("listen", self.inner.listen, kind, seen, timeout)
