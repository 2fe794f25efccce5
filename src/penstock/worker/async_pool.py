"""The slots for async attempts: tasks that live as long as the worker and share one queue.

There is no task per job. A slot that finds a job runs it; a handler that never waits for anything
ends before another slot needs to know. Only when a handler does wait are other slots woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.clock import Clock
from penstock.core.job import Outcome
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.pool import AttemptQueue, StartGate
from penstock.worker.reserve import Reserve
from penstock.worker.runner import Runner

SLICE: Final = 0.001
"""Seconds of handlers in a row after which a slot lets the rest of the loop run: the store can be
at work on what has ended while the next handlers run.
"""


class AsyncPool:
    """``size`` slots.

    ``begun`` is told of each watched attempt that has started, ``finished`` of each that has ended,
    without an outcome if none is wanted; both on the worker's loop.
    """

    def __init__(
        self,
        size: int,
        runner: Runner,
        gate: StartGate,
        clock: Clock,
        begun: Callable[[Attempt], None],
        finished: Callable[[Attempt, Outcome | None], None],
        reserve: Mapping[int, int] | None = None,
    ) -> None:
        self.size = size
        self._runner = runner
        self._gate = gate
        self._clock = clock
        self._begun = begun
        self._finished = finished
        self._reserve = Reserve(size, reserve) if reserve else None
        self._queue = AttemptQueue()
        self._running: set[Attempt] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._is_spreading = False
        self._is_pausing = False
        self._is_closed = False

    @property
    def load(self) -> int:
        return len(self._queue) + len(self._running)

    @property
    def is_quiet(self) -> bool:
        return not self._running

    @property
    def waiting(self) -> list[Attempt]:
        return [attempt for attempt in list(self._queue) if attempt.is_waiting]

    def put(self, attempts: Sequence[Attempt]) -> None:
        self._queue.add(attempts)
        self.pump()

    def put_first(self, attempt: Attempt) -> None:
        self._queue.appendleft(attempt)
        self.pump()

    def pump(self) -> None:
        if self._idle and self._has_next():
            self._wake(1)

    def _has_next(self) -> bool:
        if not self._queue or not self._gate.admits(head := self._queue[0]):
            return False
        return self._reserve is None or self._reserve.admits(head.job.priority)

    def withdraw(self, attempt: Attempt) -> bool:
        if not attempt.seize():
            return False
        self.discard(attempt)
        return True

    def discard(self, attempt: Attempt) -> None:
        self._queue.withdraw(attempt)

    def interrupt(self, attempt: Attempt) -> None:
        """Cancel the handler, unless it cleans up."""
        if attempt.task is not None and not attempt.is_cleaning:
            attempt.task.cancel()

    def insist(self, attempt: Attempt) -> None:
        """Cancel it once more, even if it cleans up."""
        if attempt.task is not None:
            attempt.task.cancel()

    def close(self) -> None:
        """Let every slot end, whatever it runs. Call it before the slots are cancelled."""
        self._is_closed = True
        for attempt in self._running:
            attempt.end(Ending.LOST)
            attempt.is_abandoned = True

    async def serve(self) -> None:
        """Be one slot."""
        slot = asyncio.current_task()
        assert slot is not None
        since = self._clock.monotonic()
        while not self._is_closed:
            try:
                if not self._has_next():
                    await self._rest()
                    since = self._clock.monotonic()
                    continue
                attempt = self._queue.popleft()
                if attempt.seize():
                    # Nothing here waits except the handler, so a cancellation meant for the
                    # handler cannot hit anything else.
                    self._begin(attempt, slot)
                    try:
                        outcome = await self._runner.run(attempt)
                    finally:
                        self._end(attempt)
                    self._finished(attempt, outcome)
                if (now := self._clock.monotonic()) - since > SLICE:
                    since = now
                    await self._pause()
            except asyncio.CancelledError:
                # A handler that cancelled its own task leaves that to the slot's next await.
                if self._is_closed:
                    raise
            finally:
                while slot.cancelling() and not self._is_closed:
                    slot.uncancel()

    def _begin(self, attempt: Attempt, slot: asyncio.Task[None]) -> None:
        attempt.task = slot
        attempt.started_at = self._clock.monotonic()
        self._running.add(attempt)
        if self._reserve is not None:
            self._reserve.count(attempt.job.priority, 1)
        if attempt.spec.is_watched:
            self._begun(attempt)
        if self._queue and self._idle and not self._is_spreading:
            self._is_spreading = True
            # Runs when this handler first waits, or not at all before the queue is empty.
            slot.get_loop().call_soon(self._spread)

    def _end(self, attempt: Attempt) -> None:
        attempt.task = None
        self._running.discard(attempt)
        if self._reserve is not None:
            self._reserve.count(attempt.job.priority, -1)

    async def _pause(self) -> None:
        self._is_pausing = True
        try:
            await asyncio.sleep(0)
        finally:
            self._is_pausing = False

    def _spread(self) -> None:
        if self._is_pausing:
            # The slot has not met a handler that waits: it goes on alone.
            asyncio.get_running_loop().call_soon(self._spread)
            return
        self._is_spreading = False
        self._wake(len(self._queue))

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def _rest(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter
