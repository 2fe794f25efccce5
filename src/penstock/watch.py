"""The watcher: one call to the store asks for every job that somebody in this process awaits.

Whoever joins is looked for at once: the call that sleeps is cut short and made again with the new
id. A look that does not sleep is never cut short, so those who join cannot starve those who wait.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.core.job import Job
from penstock.engines.engine import Engine
from penstock.errors import EngineClosed, EngineUnavailable

NAP: Final = 60.0
PATIENCE: Final = 30.0
"""How long the store may be away before those who wait are told."""
_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)

Waiter = asyncio.Future[Job | None]


class Watcher:
    """Tells callers on one loop when their jobs have ended."""

    def __init__(self, engine: Engine, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._tasks = tasks
        self._waiting: dict[str, set[Waiter]] = {}
        self._joined = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._nap: asyncio.Task[dict[str, Job | None]] | None = None
        self._is_closed = False

    async def ended(self, id: str) -> Job | None:
        """Wait until the job has ended, and return it; None if the store does not know it.

        On failure: ``EngineUnavailable`` once the store has been away for ``PATIENCE`` seconds.
        """
        if self._is_closed:
            raise EngineClosed(self._engine.traits.name)
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, set()).add(waiter)
        self._joined.set()
        if self._nap is not None:
            self._nap.cancel()
        if self._watching is None:
            self._watching = self._tasks.create_task(self._watch(), name="penstock watcher")
        try:
            return await waiter
        finally:
            self._leave(id, waiter)

    def close(self) -> None:
        """Tell everyone who waits that no answer will come."""
        self._is_closed = True
        self._fail(EngineClosed(self._engine.traits.name))
        if self._watching is not None:
            self._watching.cancel()

    def _leave(self, id: str, waiter: Waiter) -> None:
        waiters = self._waiting.get(id, set())
        waiters.discard(waiter)
        if not waiters:
            self._waiting.pop(id, None)
        if not self._waiting and self._nap is not None:
            self._nap.cancel()

    async def _watch(self) -> None:
        """Look until nobody waits."""
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
        """Ask for all awaited jobs: at once if somebody joined, else until one has ended."""
        if self._joined.is_set():
            self._joined.clear()
            return await self._engine.results(tuple(self._waiting), 0.0)
        self._nap = asyncio.create_task(self._engine.results(tuple(self._waiting), NAP))
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
