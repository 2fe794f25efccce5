"""PGQueuer with asyncpg and batches of 1,000, its fastest; it logs what it has done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

from benchmarks.contenders.looped import Looped
from benchmarks.worker_process import report_start

BATCH = 1_000


class PgqueuerPostgres(Looped):
    """The contender."""

    name = "pgqueuer"
    statement = "from pgqueuer import PgQueuer"

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=8, reset=_nothing)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))
        if not await self._queries.has_table("pgqueuer"):
            await self._queries.install()

    async def shut(self) -> None:
        await self._pool.close()

    async def aenqueue(self, number: int) -> None:
        await self._queries.enqueue("idle", b'{"number": 1}')

    async def send(self, task: str, count: int) -> None:
        await self._queries.enqueue([task] * count, [b'{"number": 1}'] * count, [0] * count)

    def drain(self, count: int) -> float:
        return self.run(self._drain_by_mode())

    async def _drain_by_mode(self) -> float:
        start = time.perf_counter()
        await self._work(QueueExecutionMode.drain)
        return time.perf_counter() - start

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        work = asyncio.create_task(self._work(QueueExecutionMode.continuous))
        try:
            yield
        finally:
            work.cancel()
            await asyncio.wait([work])

    async def _work(self, mode: QueueExecutionMode) -> None:
        # It closes the connection that it is given.
        peer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @peer.entrypoint("idle")
        async def idle(job: Job) -> None: ...

        @peer.entrypoint("stamp")
        async def stamp(job: Job) -> None:
            report_start()

        await peer.run(batch_size=BATCH, mode=mode)

    async def count_left(self) -> int:
        return int(await self._pool.fetchval("SELECT count(*) FROM pgqueuer"))


async def _nothing(connection: Any) -> None:
    """It leaves nothing behind on a connection; not to ask saves a round trip."""
