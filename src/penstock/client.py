"""One engine handle, its Batcher and its result watcher: what all callers on one loop share.

The façade has one on its own loop; ``async with app:`` gives the caller's loop another. A client
belongs to one loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from penstock.core.job import Draft, Job
from penstock.engines.batcher import Batcher
from penstock.engines.engine import Engine
from penstock.engines.records import Receipt
from penstock.engines.waiting import wait_for_results
from penstock.errors import (
    EngineClosed,
    EngineTimeout,
    EngineUnavailable,
    ItemContested,
    JobGone,
    ResultTimeout,
)

PAUSE: Final = 0.2
"""Seconds before something is tried again: jobs of which one is contested, or to open the store."""
NAP: Final = 60.0
"""Seconds that one call for results may sleep."""
PATIENCE: Final = 30.0
"""Seconds that the store may be away before callers that wait for results get the error."""
_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)


class Client:
    """One handle on the store, opened by its first use."""

    def __init__(self, connect: Callable[[], Engine], wait: float = 0.0) -> None:
        """``wait`` is how long to try to open a store that is away."""
        self._connect = connect
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
        """Open the handle, once for all callers that ask meanwhile.

        On failure: all of them get the error; the next caller tries again.
        """
        if self._engine is not None:
            return
        if self._is_closed:
            raise EngineClosed("the store")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="penstock open")
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        try:
            # One caller's cancellation must not take the handle from the others.
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._is_closed and opening.cancelled() and caller and not caller.cancelling():
                raise EngineClosed("the store") from None
            raise

    async def _open(self) -> None:
        engine = self._connect()
        deadline = engine.clock.monotonic() + self._wait
        while True:
            try:
                await engine.open()
                break
            except EngineUnavailable:
                if engine.clock.monotonic() >= deadline:
                    raise
            await engine.clock.sleep(PAUSE)
        self._batcher: Batcher[Draft, Receipt] = Batcher(
            engine.enqueue,
            max_items=engine.traits.max_batch,
            weigh=lambda draft: len(draft.payload),
            marks=_marks,
            name=engine.traits.name,
            clock=engine.clock,
        )
        self._results = ResultWatcher(engine)
        self._engine = engine

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()

    async def close(self) -> None:
        """Send what was handed over, fail the calls that wait for results, close the handle."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            # A handle that is half open has things to put away first.
            await asyncio.wait((self._opening,))
        engine, self._engine = self._engine, None
        if engine is not None:
            await self._results.close()
            await self._batcher.close()
            await engine.close()

    async def enqueue(self, draft: Draft) -> Receipt:
        """Store one job, in one commit with what other callers hand over meanwhile."""
        return await self._batcher.put(draft)

    async def enqueue_batch(
        self, drafts: Sequence[Draft], timeout: float, spent: float = 0.0
    ) -> list[Receipt]:
        """Store jobs in one commit within ``timeout`` seconds, some of which may be ``spent``.

        On failure: ``ItemContested`` if an open transaction has an id or a unique key of theirs
        for all that time; else ``EngineTimeout``.
        """
        engine, refusal = self.engine, None
        limit = asyncio.timeout(timeout - spent)
        try:
            async with limit:
                while True:
                    try:
                        return await engine.enqueue(drafts)
                    except ItemContested as error:
                        refusal = error
                    await engine.clock.sleep(PAUSE)
        except TimeoutError as error:
            if not limit.expired():
                raise
            if refusal is not None:
                raise refusal from refusal.__cause__
            why = f"{len(drafts)} jobs took longer than {timeout:g} s"
            raise EngineTimeout(engine.traits.name, why) from error

    async def ended(
        self, ids: Collection[str], left: float | None, timeout: float | None
    ) -> dict[str, Job | None]:
        """Wait until at least one of these jobs has ended, or is not there (None); return all that
        have.

        On failure: ``ResultTimeout`` if none has when ``left`` seconds of ``timeout`` are over.
        """
        limit = asyncio.timeout(left)
        try:
            async with limit:
                return await self._results.first_ended(ids)
        except TimeoutError:
            if left is None or timeout is None or not limit.expired():
                raise
        jobs = dict(zip(ids, await self.engine.get(tuple(ids)), strict=True))
        ended = {id: job for id, job in jobs.items() if job is None or job.state.is_final}
        for job in jobs.values():
            if job is not None and not ended:
                raise ResultTimeout(job.id, job.state, timeout)
        return ended

    async def result(self, id: str, timeout: float | None) -> Job:
        """Return the job when it has ended.

        On failure: ``ResultTimeout``, ``JobGone``.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                job = await self._results.ended(id)
        except TimeoutError:
            if timeout is None or not limit.expired():
                raise
            (job,) = await self.engine.get([id])
            if job is not None and not job.state.is_final:
                raise ResultTimeout(id, job.state, timeout) from None
        if job is None:
            raise JobGone(id)
        return job


def _marks(draft: Draft) -> Iterator[tuple[str, str]]:
    """What no two jobs can have."""
    yield "id", draft.id
    if (key := draft.unique_key) is not None:
        yield "unique", key


Waiter = asyncio.Future[Job | None]


class ResultWatcher:
    """Tells callers on one loop when their jobs have ended, with one store call for all of them.

    A caller that joins is looked for at once: the call that sleeps is cut short and made again
    with the new id. A look that does not sleep is never cut short, so callers that join cannot
    starve those that wait.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[str, set[Waiter]] = {}
        self._joined = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._nap: asyncio.Task[dict[str, Job | None]] | None = None
        self._is_closed = False

    async def ended(self, id: str) -> Job | None:
        """Wait until the job has ended, and return it; None if the store does not know it.

        On failure: ``EngineUnavailable`` once the store has been away for ``PATIENCE`` seconds.
        """
        (waiter,) = self._join((id,)).values()
        try:
            return await waiter
        finally:
            self._leave(id, waiter)

    async def first_ended(self, ids: Collection[str]) -> dict[str, Job | None]:
        """The same for several jobs: wait until one has ended, and return all that have."""
        waiters = self._join(ids)
        try:
            await asyncio.wait(waiters.values(), return_when=asyncio.FIRST_COMPLETED)
            failed = [each.exception() for each in waiters.values() if each.done()]
            for error in failed:
                if error is not None:
                    raise error
            return {id: waiter.result() for id, waiter in waiters.items() if waiter.done()}
        finally:
            for id, waiter in waiters.items():
                self._leave(id, waiter)

    async def close(self) -> None:
        """Tell every caller that waits that no answer will come."""
        self._is_closed = True
        self._fail(EngineClosed(self._engine.traits.name))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))

    def _join(self, ids: Collection[str]) -> dict[str, Waiter]:
        """Have these jobs looked for, now and until the waiters leave."""
        if self._is_closed:
            raise EngineClosed(self._engine.traits.name)
        loop = asyncio.get_running_loop()
        waiters: dict[str, Waiter] = {id: loop.create_future() for id in ids}
        for id, waiter in waiters.items():
            self._waiting.setdefault(id, set()).add(waiter)
        self._joined.set()
        if self._nap is not None:
            self._nap.cancel()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="penstock results")
        return waiters

    def _leave(self, id: str, waiter: Waiter) -> None:
        waiters = self._waiting.get(id, set())
        waiters.discard(waiter)
        if not waiters:
            self._waiting.pop(id, None)
        if not self._waiting and self._nap is not None:
            self._nap.cancel()

    async def _watch(self) -> None:
        """Look until no caller waits."""
        failures, away_since = 0, 0.0
        try:
            while self._waiting:
                try:
                    ended = await self._look()
                except EngineUnavailable as error:
                    now = self._engine.clock.monotonic()
                    away_since = away_since if failures else now
                    if now - away_since >= PATIENCE:
                        self._fail(error)
                    await self._pause(failures)
                    failures += 1
                    continue
                except Exception as error:
                    self._fail(error)
                    continue
                failures = 0
                for id, job in ended.items():
                    self._answer(id, job)
        finally:
            self._watching = None

    async def _look(self) -> dict[str, Job | None]:
        """Ask for all awaited jobs: at once if a caller joined, else until one has ended."""
        if self._joined.is_set():
            self._joined.clear()
            return await wait_for_results(self._engine, tuple(self._waiting), 0.0)
        self._nap = asyncio.create_task(wait_for_results(self._engine, tuple(self._waiting), NAP))
        try:
            return await self._nap
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is None or me.cancelling():
                raise
            return {}
        finally:
            self._nap = None

    async def _pause(self, failures: int) -> None:
        await self._engine.clock.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        self._joined.set()

    def _answer(self, id: str, job: Job | None) -> None:
        for waiter in self._waiting.pop(id, ()):
            if not waiter.done():
                waiter.set_result(job)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
