"""An engine around any engine: calls end in time, passing faults are repeated, events tell of it.

A verb is repeated after ``EngineUnavailable`` only where that is safe, for the first try may have
been committed and only its reply lost. It is safe for all verbs that only read, and for these:

| verb                                   | why                                                    |
|----------------------------------------|--------------------------------------------------------|
| open, migrate                          | they end in the same place                             |
| listen                                 | it sleeps for the time that is left                    |
| enqueue                                | the same id is the same job; see ``ours``              |
| join, leave, set_queue                 | the second call changes nothing                        |
| beat                                   | one beat more shows the same                           |
| exchange, want = 0                     | an outcome repeated by its owner is *done*             |
| rewrite                                | it compares revisions; what the lost try changed is    |
|                                        | then *stale*                                           |
| promote, end_leases, prune, repair     | they do what is left; what the lost try did is not in  |
|                                        | the numbers                                            |

It is not safe for ``NOT_REPEATED``, nor for an exchange that wants jobs: it would claim again, so
the worker asks ``held`` first (law 3). ``close`` is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from penstock.core.job import Draft, Job
from penstock.engines.engine import Engine, Inlet
from penstock.engines.publisher import Publisher
from penstock.engines.records import (
    Ask,
    Exchange,
    News,
    Receipt,
    Rewrite,
    Rewritten,
    WorkerInfo,
)
from penstock.engines.retrying import Retrying
from penstock.engines.wrapper import Arguments, EngineWrapper, Result
from penstock.errors import LeaseLost
from penstock.events import Bus, Enqueued

NOT_REPEATED: Final = frozenset(
    {
        "purge",  # twice ``limit`` might go
        "set_cell",  # after its own lost write it would find another version
    }
)
WITHOUT_LIMIT: Final = frozenset({"open", "migrate"})
"""A migration may take long."""


class Observed(EngineWrapper):
    """The inner engine's promises, with time limits, repeats and events.

    Each try may take ``timeout`` seconds, and ``listen`` as much longer as it was asked to sleep;
    then it ends in ``EngineTimeout``.
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
        super().__init__(inner)
        self.bus = bus
        self._timeout = timeout
        self._outlast = outlast
        self._publish = Publisher(bus, inner.clock)
        inner.polls = self._publish.polling
        self._retrying = Retrying(
            inner.traits.name,
            inner.clock,
            self._publish.faulted,
            timeout=timeout,
            tries=tries,
            backoff=backoff,
            max_backoff=max_backoff,
        )

    async def _call(
        self,
        verb: str,
        call: Callable[Arguments, Awaitable[Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        limit = None if verb in WITHOUT_LIMIT else self._timeout
        call_it = partial(call, *args, **kwargs)
        return await self._run(verb, call_it, limit, again=verb not in NOT_REPEATED)

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
            return await self._retrying.run(verb, call, limit, again=again, outlast=outlast)
        except LeaseLost as error:
            self._publish.lost(error.worker, verb)
            raise

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        self._retrying.begin()
        await super().open()

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            await self._retrying.end()

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
        self._publish.enqueued(drafts, receipts)
        return receipts

    @property
    def inlet(self) -> Inlet | None:
        """The inner engine's, unless a listener wants to hear of each job."""
        return None if self.bus.wants(Enqueued) else self.inner.inlet

    # --- wake ----------------------------------------------------------------------------------

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        """Its time limit begins after ``timeout``; a repeated call sleeps for what is left."""
        deadline = self.clock.monotonic() + timeout

        async def listen() -> int:
            left = max(0.0, deadline - self.clock.monotonic())
            return await self.inner.listen(kind, seen, left)

        return await self._run("listen", listen, timeout + self._timeout, again=True)

    # --- what is published ---------------------------------------------------------------------

    async def join(self, worker: WorkerInfo) -> None:
        await super().join(worker)
        self._publish.joined(worker)

    async def leave(self, worker: str) -> None:
        await super().leave(worker)
        self._publish.left(worker)

    async def exchange(self, ask: Ask) -> Exchange:
        call = partial(self.inner.exchange, ask)
        answer = await self._run("exchange", call, self._timeout, again=ask.want <= 0)
        self._publish.exchanged(ask, answer)
        return answer

    async def held(self, worker: str) -> list[Job]:
        jobs = await super().held(worker)
        self._publish.held(jobs)
        return jobs

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        answers = await super().rewrite(rewrites)
        self._publish.rewritten(rewrites, answers)
        return answers


def ours(drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> list[Receipt]:
    """The receipts of a repeated try, where a job that an earlier try stored counts as created.

    An id that was made for its draft is known to no other caller, so only an earlier try can have
    stored it. Of an id that a person chose this is not known: it stays "there already".
    """
    seen: set[str] = set()
    told = []
    for draft, receipt in zip(drafts, receipts, strict=True):
        is_ours = receipt.because == "id" and draft.remember == 0 and draft.id not in seen
        told.append(Receipt(receipt.id, created=True) if is_ours else receipt)
        seen.add(draft.id)
    return told
