"""A pool of real child processes, and what came out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from penstock.clock import SystemClock
from penstock.core.job import Outcome
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.pool import StartGate
from penstock.worker.process_pool import ProcessPool
from penstock.worker.runner import Runner
from penstock.worker.status import StoreTime
from worker.test_pools import make_job
from worker.victims import Declared

PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""


class Bench:
    """Starts attempts, stops them as a dispatcher would, and keeps their outcomes."""

    def __init__(self, size: int, max_jobs: int | None = None) -> None:
        clock = SystemClock()
        self.gate = StartGate(clock)
        self.gate.trusted_until = clock.monotonic() + 3600
        self.results: list[tuple[Attempt, Outcome | None]] = []
        self.began: list[Attempt] = []
        self.pool = ProcessPool(
            size,
            Runner(clock.now, lambda: "worker"),
            self.gate,
            clock,
            self.began.append,
            lambda attempt, outcome: self.results.append((attempt, outcome)),
            worker=lambda: "worker",
            time=StoreTime(clock),
            max_jobs=max_jobs,
        )
        self._numbers = 0

    @property
    def children(self) -> list[int]:
        """The processes that have an attempt now."""
        seats = list(self.pool._seats)
        return [seat.child.pid for seat in seats if seat.attempt and seat.child]

    def attempt(self, task: Declared, **fields: Any) -> Attempt:
        """An attempt of a task."""
        self._numbers += 1
        job = make_job(f"job-{self._numbers}", **{"task": task.spec.name, **fields})
        return Attempt(job, task.spec, self._numbers, 0.0)

    def start(self, task: Declared, **fields: Any) -> Attempt:
        """Put one attempt into the pool."""
        attempt = self.attempt(task, **fields)
        self.pool.put([attempt])
        return attempt

    def stop(self, attempt: Attempt, ending: Ending) -> None:
        """Let an attempt end."""
        attempt.end(ending)
        self.pool.interrupt(attempt)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110  (a child or a thread makes it true)
                await asyncio.sleep(0.001)

    async def begun(self, attempt: Attempt) -> None:
        """Wait until the handler of a watched attempt is called."""
        await self.until(lambda: attempt in self.began)

    async def ended(self, attempt: Attempt) -> Outcome | None:
        """Wait until an attempt has ended: exactly once."""
        await self.until(lambda: any(each is attempt for each, _ in self.results))
        ((_, outcome),) = [each for each in self.results if each[0] is attempt]
        return outcome

    async def outcome(self, attempt: Attempt) -> Outcome:
        """The outcome of an attempt that has one."""
        outcome = await self.ended(attempt)
        assert outcome is not None
        return outcome

    async def run(self, task: Declared, **fields: Any) -> Outcome:
        """Run one attempt to its end."""
        return await self.outcome(self.start(task, **fields))

    async def run_all(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Run many."""
        self.pool.put(attempts)
        return [await self.outcome(attempt) for attempt in attempts]

    def close(self) -> None:
        """Close the pool; no thread of it is left."""
        self.pool.close()
        for thread in self.pool._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
