"""Attempts that run in this process while nothing else does.

A job that was in a crash runs its next attempt in a child process. A task that no child can import
(declared in ``__main__`` or inside a function) runs here instead, but alone: it waits until nothing
else runs, and nothing else starts until it has ended. If it kills the process, only its own crashes
are counted: the store knows before it starts, while the death of a worker is no fault of what it
has in children. If something else runs for long, the dispatcher takes it back for a while: one such
job must not keep all others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.worker.inflight import Attempt
from penstock.worker.pool import AttemptQueue, Pool, StartGate


class LonePool:
    """One attempt after the other, each handed to the pool of its kind while ``others`` are quiet.

    ``announce`` lets the store know that an attempt is about to start.
    """

    def __init__(
        self,
        gate: StartGate,
        others: Sequence[Pool],
        pool_of: Callable[[Attempt], Pool],
        announce: Callable[[Attempt], None],
    ) -> None:
        self.size = 1
        self._gate = gate
        self._others = others
        self._pool_of = pool_of
        self._announce = announce
        self._queue = AttemptQueue()
        self._current: Attempt | None = None
        self._changed = asyncio.Event()

    @property
    def load(self) -> int:
        return len(self._queue) + (self._current is not None)

    @property
    def is_quiet(self) -> bool:
        """What runs alone is in the pool of its kind."""
        return True

    @property
    def waiting(self) -> list[Attempt]:
        first = [] if self._current is None else [self._current]
        return [each for each in (*first, *self._queue) if each.pool is self and each.is_waiting]

    def put(self, attempts: Sequence[Attempt]) -> None:
        self._queue.add(attempts)
        self.pump()

    def put_first(self, attempt: Attempt) -> None:
        self._queue.appendleft(attempt)
        self.pump()

    def pump(self) -> None:
        """Something has changed: the gate, the queue, or what runs elsewhere."""
        self._changed.set()

    def withdraw(self, attempt: Attempt) -> bool:
        if not attempt.seize():
            return False
        self.discard(attempt)
        return True

    def discard(self, attempt: Attempt) -> None:
        self._queue.withdraw(attempt)
        self.pump()

    def interrupt(self, attempt: Attempt) -> None:
        """Nothing runs here."""

    def insist(self, attempt: Attempt) -> None:
        """Nothing runs here."""

    def close(self) -> None:
        """What waits here is withdrawn by the dispatcher."""

    async def serve(self) -> None:
        """Run attempts alone until cancelled."""
        while True:
            while not self._queue or not self._gate.admits(self._queue[0]):
                await self._change()
            self._gate.alone = self._current = self._queue.popleft()
            try:
                await self._run(self._current)
            finally:
                self._gate.alone = self._current = None
                for pool in self._others:
                    pool.pump()

    async def _run(self, attempt: Attempt) -> None:
        while not attempt.is_over and not all(pool.is_quiet for pool in self._others):
            await self._change()
        if not attempt.is_over:
            self._announce(attempt)
        while not attempt.is_over and not attempt.is_reported:
            await self._change()
        if not attempt.is_over:
            attempt.pool = self._pool_of(attempt)
            attempt.pool.put_first(attempt)
        while not attempt.is_over:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
