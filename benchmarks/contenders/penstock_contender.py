"""Penstock with history and results, as it comes; the same on every engine."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.contenders.contender import Contender, Kind
from benchmarks.elsewhere import answer
from benchmarks.places import Place
from penstock import Penstock
from penstock.hosting import WorkerThread as _WorkerThread  # noqa: F401
from penstock.worker.worker import Worker as _Worker  # noqa: F401


class PenstockContender(Contender):
    """The contender. All its jobs are in one line."""

    name = "penstock"
    statement = "from penstock import Penstock"

    def __init__(self, place: Place, kind: Kind) -> None:
        super().__init__(place, kind)
        self.app = Penstock(place.url("penstock"))

        @self.app.task(name="async")
        async def async_idle(number: int) -> None: ...

        @self.app.task(name="sync")
        def sync_idle(number: int) -> None: ...

        @self.app.task(name="stamp")
        async def stamp(number: int) -> None:
            answer()

        self._idle: Any = async_idle if kind == "async" else sync_idle
        self._stamp = stamp

    def enqueue(self, number: int) -> None:
        self._idle.enqueue(number)

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
