"""Penstock with history and results, as it comes; the same on every engine."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from typing import Any

from benchmarks.contenders.contender import Contender, Kind
from benchmarks.locations import Location
from benchmarks.worker_process import report_start
from penstock import Penstock


class PenstockContender(Contender):
    """The contender. All its jobs are in one line."""

    name = "penstock"
    statement = "from penstock import Penstock"

    def __init__(self, location: Location, kind: Kind) -> None:
        super().__init__(location, kind)
        self.app = Penstock(location.url("penstock"))

        @self.app.task(name="async")
        async def async_idle(number: int) -> None: ...

        @self.app.task(name="sync")
        def sync_idle(number: int) -> None: ...

        @self.app.task(name="stamp")
        async def stamp(number: int) -> None:
            report_start()

        self._idle: Any = async_idle if kind == "async" else sync_idle
        self._stamp = stamp
        # Making a worker imports what it needs: no measurement shall pay for that.
        self.app.worker_thread()

    def enqueue(self, number: int) -> None:
        self._idle.enqueue(number)

    def session(self) -> AbstractAsyncContextManager[object]:
        return self.app

    async def aenqueue(self, number: int) -> None:
        await self._idle.aenqueue(number)

    def enqueue_many(self, count: int) -> None:
        self._idle.enqueue_many([(number,) for number in range(count)])

    def drain(self, count: int) -> float:
        start = time.perf_counter()
        self.app.run_worker(until_empty=True)
        return time.perf_counter() - start

    def enqueue_stamp(self, delay: float = 0.0) -> None:
        self._stamp.using(delay=delay).enqueue(0)

    def enqueue_stamps(self, count: int) -> None:
        self._stamp.enqueue_many([(number,) for number in range(count)])

    def serve(self) -> None:
        self.app.run_worker()

    def left(self) -> int:
        return sum(each.jobs for each in self.app.counts() if not each.state.is_final)

    def close(self) -> None:
        self.app.close()
