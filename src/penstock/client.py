"""What all callers of one process share: one engine handle, its batcher and its watcher.

It lives on the façade's loop and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.core.job import Draft, Job
from penstock.engines.batcher import Batcher
from penstock.engines.engine import Engine
from penstock.engines.records import Receipt
from penstock.errors import (
    EngineClosed,
    EngineTimeout,
    EngineUnavailable,
    ItemContested,
    JobGone,
    ResultTimeout,
)
from penstock.watch import Watcher

PAUSE: Final = 0.2
"""Seconds before something is tried again: jobs of which one is contested, or to open the store."""


class Client:
    """One handle on the store, opened by its first use."""

    def __init__(
        self, connect: Callable[[], Engine], tasks: asyncio.TaskGroup, wait: float = 0.0
    ) -> None:
        """``wait`` is how long to try to open a store that is away."""
        self._connect = connect
        self._tasks = tasks
        self._wait = wait
        self._engine: Engine | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def engine(self) -> Engine:
        """The open handle."""
        if self._engine is None:
            raise EngineClosed("the store")
        return self._engine

    @property
    def opened(self) -> Engine | None:
        """The handle if it is open; any thread may ask."""
        return self._engine

    async def open(self) -> None:
        """Open the handle, once for everyone who asks meanwhile.

        On failure: all of them get the error; whoever asks next tries again.
        """
        if self._engine is not None:
            return
        if self._is_closed:
            raise EngineClosed("the store")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="penstock open")
            self._opening.add_done_callback(self._opened)
        # One caller's cancellation must not take the handle from the others.
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        engine = self._connect()
        await self._opened_at_last(engine)
        self._batcher: Batcher[Draft, Receipt] = Batcher(
            engine.enqueue,
            max_items=engine.traits.max_batch,
            weigh=lambda draft: len(draft.payload),
            marks=_marks,
            name=engine.traits.name,
            clock=engine.clock,
        )
        self._watcher = Watcher(engine, self._tasks)
        self._engine = engine

    async def _opened_at_last(self, engine: Engine) -> None:
        deadline = engine.clock.monotonic() + self._wait
        while True:
            try:
                return await engine.open()
            except EngineUnavailable:
                if engine.clock.monotonic() >= deadline:
                    raise
            await engine.clock.sleep(PAUSE)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()

    async def close(self) -> None:
        """Send what was handed over, tell those who wait for results, let the handle go."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            # A handle that is half open has things to put away first.
            await asyncio.wait((self._opening,))
        engine, self._engine = self._engine, None
        if engine is not None:
            self._watcher.close()
            await self._batcher.close()
            await engine.close()

    async def enqueue(self, draft: Draft) -> Receipt:
        """Store one job, in one commit with whatever else arrives meanwhile."""
        return await self._batcher.put(draft)

    async def enqueue_all(
        self, drafts: Sequence[Draft], timeout: float, spent: float = 0.0
    ) -> list[Receipt]:
        """Store many jobs, as many in a commit as the store takes, each within ``timeout``; of the
        first one's, some seconds may be ``spent`` already.

        Atomic per commit. On failure: ``ItemContested`` if an open transaction has an id or a
        unique key of theirs for all that time; a note on the error says how many are stored.
        """
        engine = self.engine
        receipts: list[Receipt] = []
        step = engine.traits.max_batch
        some = drafts[:step]
        for start in range(0, len(drafts), step):
            limit = asyncio.timeout(timeout - spent)
            spent = 0.0
            refusals: list[ItemContested] = []
            sending = asyncio.create_task(_patiently(engine, some, refusals))
            try:
                async with limit:
                    await asyncio.sleep(0)
                    # It is on its way: there is time for the next ones.
                    some = engine.pack(drafts[start + step : start + 2 * step])
                    receipts += await sending
            except BaseException as caught:
                sending.cancel()
                if not isinstance(caught, Exception):
                    raise
                error = caught
                if limit.expired() and refusals:
                    error = refusals[-1]
                elif limit.expired():
                    count = min(step, len(drafts) - start)
                    why = f"{count} jobs took longer than {timeout:g} s"
                    error = EngineTimeout(engine.traits.name, why)
                error.add_note(stored_before(start, len(drafts)))
                raise error from error.__cause__
        return receipts

    async def result(self, id: str, timeout: float | None) -> Job:
        """Return the job when it has ended.

        On failure: ``ResultTimeout``, ``JobGone``.
        """
        try:
            async with asyncio.timeout(timeout):
                job = await self._watcher.ended(id)
        except TimeoutError:
            (job,) = await self.engine.get([id])
            if timeout is not None and job is not None and not job.state.is_final:
                raise ResultTimeout(id, job.state, timeout) from None
        if job is None:
            raise JobGone(id)
        return job


def stored_before(count: int, total: int) -> str:
    """What is noted on an error that ends an ``enqueue_many``."""
    return f"{count} of {total} jobs were stored before this"


async def _patiently(
    engine: Engine, drafts: Sequence[Draft], refusals: list[ItemContested]
) -> list[Receipt]:
    """Store jobs as soon as no open transaction keeps one of them from it; its callers wait."""
    while True:
        try:
            return await engine.enqueue(drafts)
        except ItemContested as refusal:
            refusals.append(refusal)
        await engine.clock.sleep(PAUSE)


def _marks(draft: Draft) -> Iterator[tuple[str, str]]:
    """What no two jobs can have."""
    yield "id", draft.id
    if draft.unique is not None:
        yield "unique", draft.unique
