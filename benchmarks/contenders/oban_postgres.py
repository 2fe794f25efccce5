"""Oban for Python with a hundred jobs at once; it keeps what it has done."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

from oban import Oban, worker
from oban.schema import install

from benchmarks.contenders.looped import Looped
from benchmarks.worker_process import report_start

logging.getLogger("oban").setLevel(logging.ERROR)


class ObanPostgres(Looped):
    """The contender."""

    name = "oban"
    statement = "from oban import Oban, worker"
    pace = 0.2

    async def open(self) -> None:
        self._pool = await Oban.create_pool(self.url)
        if not await self._ask("SELECT count(*) FROM pg_tables WHERE tablename = 'oban_jobs'"):
            await install(self._pool)
        self._client = Oban(pool=self._pool)
        contender = self

        @worker()
        class Idle:
            async def process(self, job: object) -> None:
                contender.ran += 1

        @worker()
        class Stamp:
            async def process(self, job: object) -> None:
                report_start()

        # The decorator gives them ``new``.
        self._tasks: dict[str, Any] = {"idle": Idle, "stamp": Stamp}

    async def shut(self) -> None:
        await self._pool.close()

    async def aenqueue(self, number: int) -> None:
        await self._client.enqueue(self._tasks["idle"].new({"number": number}))

    async def send(self, task: str, count: int) -> None:
        new = self._tasks[task].new
        await self._client.enqueue_many([new({"number": each}) for each in range(count)])

    def working(self) -> AbstractAsyncContextManager[None]:
        return Oban(pool=self._pool, name="worker", queues={"default": 100})

    async def count_left(self) -> int:
        return await self._ask(
            "SELECT count(*) FROM oban_jobs WHERE state NOT IN"
            " ('completed', 'cancelled', 'discarded')"
        )

    async def _ask(self, query: str) -> int:
        async with self._pool.connection() as connection:
            found = await (await connection.execute(query)).fetchone()
        return int(found[0])
