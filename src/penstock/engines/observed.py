"""An engine around any engine: calls end in time, passing faults are repeated, events tell of it.

A verb is repeated after ``EngineUnavailable`` only where that is safe, for the first try may have
been committed and only its reply lost:

| verb                                   | repeated? why                                          |
|----------------------------------------|--------------------------------------------------------|
| open, migrate                          | yes: they end in the same place; without a time limit  |
| close                                  | no: it is over either way                              |
| checkup                                | no: that it fails is what it is asked for              |
| schema, now, held, look, queues,       | yes: they only read                                    |
| leader, cell, get, find, count,        |                                                        |
| counts, loads, glance, workers, hands, |                                                        |
| line, version                          |                                                        |
| wait, listen, results                  | yes, for the time that is left; they may sleep so long |
| enqueue                                | yes: the same id is the same job; see ``ours``        |
| join, leave, progress, set_queue,      | yes: the second call changes nothing                   |
| resign                                 |                                                        |
| beat                                   | yes: one beat more shows the same                      |
| exchange, want = 0                     | yes: an outcome repeated by its owner is *done*        |
| exchange, want > 0                     | no: it would claim again; ask ``held`` first (law 3)   |
| cancel                                 | yes: what the lost try changed is then not "changed"   |
| promote, rescue, prune, mend           | yes: they do what is left; what the lost try did is    |
|                                        | not in the numbers                                     |
| lead                                   | yes: it renews the term that the lost try took         |
| retry                                  | no: a job that failed again since would get another go |
| purge                                  | no: twice ``limit`` might go                           |
| set_cell                               | no: after one's own lost write it says "too late"      |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

from penstock.core.finding import Finding
from penstock.core.job import Draft, Job, Verdict
from penstock.engines.engine import Answer, Engine
from penstock.engines.narrator import Narrator
from penstock.engines.records import (
    Ask,
    Cell,
    Control,
    Count,
    Exchange,
    Filter,
    Glance,
    Hand,
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
from penstock.engines.retrying import Patience
from penstock.errors import (
    EngineClosed,
    EngineReentered,
    EngineTimeout,
    EngineUnavailable,
    LeaseLost,
)
from penstock.events import Bus, Enqueued

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Observed(Engine):
    """The inner engine's promises, with a time limit, patience and a voice.

    Each try may take ``timeout`` seconds, and the sleeping verbs (``wait``, ``listen``,
    ``results``) as much longer as they were asked to sleep; then it ends in ``EngineTimeout``.
    A repeated verb is tried ``tries`` times in all, ``enqueue`` also as often as it takes to
    ``outlast`` so many seconds; the waits between double from about ``backoff`` up to
    ``max_backoff`` seconds, each shortened by up to half at random.
    """

    def __init__(
        self,
        inner: Engine,
        bus: Bus,
        *,
        timeout: float = 10.0,
        tries: int = 5,
        backoff: float = 0.1,
        max_backoff: float = 2.0,
        outlast: float = 0.0,
    ) -> None:
        self.inner = inner
        self.bus = bus
        self.traits = inner.traits
        self.clock = inner.clock
        self._timeout = timeout
        self._outlast = outlast
        self._tell = Narrator(bus, inner.clock)
        inner.polls = self._tell.polling
        self._patience = Patience(
            inner.traits.name,
            inner.clock,
            self._tell.faulted,
            timeout=timeout,
            tries=tries,
            backoff=backoff,
            max_backoff=max_backoff,
        )

    async def _once(
        self,
        verb: str,
        call: Callable[Arguments, Awaitable[Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call a verb that must not be repeated."""
        return await self._run(verb, partial(call, *args, **kwargs), self._timeout, again=False)

    async def _safely(
        self,
        verb: str,
        call: Callable[Arguments, Awaitable[Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call a verb that may be repeated."""
        return await self._run(verb, partial(call, *args, **kwargs), self._timeout, again=True)

    async def _asleep(
        self, verb: str, call: Callable[[float], Awaitable[Result]], timeout: float
    ) -> Result:
        """Call a verb that may sleep for ``timeout`` seconds, over all its tries."""
        deadline = self.clock.monotonic() + timeout

        async def rest() -> Result:
            return await call(max(0.0, deadline - self.clock.monotonic()))

        return await self._run(verb, rest, timeout + self._timeout, again=True)

    async def _run(
        self,
        verb: str,
        call: Callable[[], Awaitable[Result]],
        limit: float | None,
        *,
        again: bool,
        outlast: float = 0.0,
    ) -> Result:
        try:
            return await self._patience.run(verb, call, limit, again=again, outlast=outlast)
        except LeaseLost as error:
            self._tell.lost(error.worker, verb)
            raise

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        self._patience.begin()
        await self._run("open", self.inner.open, None, again=True)

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            await self._patience.end()

    async def migrate(self) -> int:
        return await self._run("migrate", self.inner.migrate, None, again=True)

    async def schema(self) -> Schema:
        return await self._safely("schema", self.inner.schema)

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        return await self.inner.checkup(thorough=thorough)

    async def now(self) -> float:
        return await self._safely("now", self.inner.now)

    # --- in ------------------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        tried = 0

        async def store() -> list[Receipt]:
            nonlocal tried
            tried += 1
            return await self.inner.enqueue(drafts)

        receipts = await self._run(
            "enqueue", store, self._timeout, again=True, outlast=self._outlast
        )
        if tried > 1:
            receipts = ours(drafts, receipts)
        self._tell.enqueued(drafts, receipts)
        return receipts

    def pack(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        return self.inner.pack(drafts)

    def enqueue_now(self, drafts: Sequence[Draft], timeout: float | None) -> list[Receipt] | None:
        """As the inner engine, where nobody listens; after a fault ``enqueue`` has patience."""
        if self.bus.wants(Enqueued):
            return None
        try:
            return self.inner.enqueue_now(drafts, timeout)
        except (EngineTimeout, EngineReentered, EngineClosed):
            raise
        except EngineUnavailable:
            return None

    def enqueue_soon(self, draft: Draft, answer: Answer) -> Callable[[], None] | None:
        """The same, for those who do not wait."""
        if self.bus.wants(Enqueued):
            return None

        def patiently(receipt: Receipt | None, error: Exception | None) -> None:
            answer(receipt, None if isinstance(error, EngineUnavailable) else error)

        return self.inner.enqueue_soon(draft, patiently)

    # --- work ----------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo) -> None:
        await self._safely("join", self.inner.join, worker)
        self._tell.joined(worker)

    async def leave(self, worker: str) -> None:
        await self._safely("leave", self.inner.leave, worker)
        self._tell.left(worker)

    async def beat(self, worker: str) -> None:
        await self._safely("beat", self.inner.beat, worker)

    async def exchange(self, ask: Ask) -> Exchange:
        call = self._once if ask.want > 0 else self._safely
        answer = await call("exchange", self.inner.exchange, ask)
        self._tell.exchanged(ask, answer)
        return answer

    async def held(self, worker: str) -> list[Job]:
        jobs = await self._safely("held", self.inner.held, worker)
        self._tell.held(jobs)
        return jobs

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        verdicts = await self._safely("progress", self.inner.progress, worker, reports)
        self._tell.reported(worker, reports, verdicts)
        return verdicts

    async def look(self, ask: Ask) -> float | None:
        return await self._safely("look", self.inner.look, ask)

    async def wait(self, ask: Ask, timeout: float) -> None:
        await self._asleep("wait", partial(self.inner.wait, ask), timeout)

    # --- control -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        controls = await self._safely("cancel", self.inner.cancel, ids, reason)
        self._tell.cancelled(controls, reason)
        return controls

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        controls = await self._once("retry", self.inner.retry, ids)
        self._tell.revived(controls)
        return controls

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._once("purge", self.inner.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._safely("set_queue", self.inner.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._safely("queues", self.inner.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return await self._safely("promote", self.inner.promote, limit)

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        jobs = await self._safely("rescue", self.inner.rescue, dead, limit)
        self._tell.rescued(jobs)
        return jobs

    async def prune(self, keep: float, limit: int) -> Pruned:
        return await self._safely("prune", self.inner.prune, keep, limit)

    async def mend(self, *, rehearse: bool = False) -> Mended:
        return await self._safely("mend", self.inner.mend, rehearse=rehearse)

    async def tidy(self) -> float:
        return await self._once("tidy", self.inner.tidy)

    # --- lead ----------------------------------------------------------------------------------

    async def lead(self, candidate: str, ttl: float) -> Term | None:
        term = await self._safely("lead", self.inner.lead, candidate, ttl)
        self._tell.led(term)
        return term

    async def resign(self, holder: str, epoch: int) -> None:
        await self._safely("resign", self.inner.resign, holder, epoch)

    async def leader(self) -> Term | None:
        return await self._safely("leader", self.inner.leader)

    # --- small values --------------------------------------------------------------------------

    async def cell(self, name: str) -> Cell:
        return await self._safely("cell", self.inner.cell, name)

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        return await self._once("set_cell", self.inner.set_cell, name, value, version)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._safely("get", self.inner.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._safely("find", self.inner.find, which, cursor, limit)

    async def count(self, which: Filter) -> int:
        return await self._safely("count", self.inner.count, which)

    async def counts(self) -> list[Count]:
        return await self._safely("counts", self.inner.counts)

    async def loads(self, queues: Sequence[str]) -> Mapping[str, int]:
        return await self._safely("loads", self.inner.loads, queues)

    async def glance(self, window: float, limit: int) -> Glance:
        return await self._safely("glance", self.inner.glance, window, limit)

    async def workers(self) -> list[WorkerInfo]:
        return await self._safely("workers", self.inner.workers)

    async def hands(self) -> list[Hand]:
        return await self._safely("hands", self.inner.hands)

    async def line(self, id: str) -> Standing:
        return await self._safely("line", self.inner.line, id)

    async def results(self, ids: Sequence[str], timeout: float) -> dict[str, Job | None]:
        return await self._asleep("results", partial(self.inner.results, ids), timeout)

    async def version(self) -> int:
        return await self._safely("version", self.inner.version)

    async def listen(self, seen: int, timeout: float) -> int:
        return await self._asleep("listen", partial(self.inner.listen, seen), timeout)


def ours(drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> list[Receipt]:
    """The receipts of a repeated try, where a job that an earlier try stored counts as created.

    An id that was made for its draft is known to nobody else, so only an earlier try can have
    stored it. Of an id that a person chose this is not known: it stays "there already".
    """
    seen: set[str] = set()
    told = []
    for draft, receipt in zip(drafts, receipts, strict=True):
        isours = receipt.because == "id" and draft.remember == 0 and draft.id not in seen
        told.append(Receipt(receipt.id, created=True) if isours else receipt)
        seen.add(draft.id)
    return told
