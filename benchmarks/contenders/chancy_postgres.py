"""Chancy with a hundred jobs at once on its asyncio executor; it keeps what it has done."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chancy import Chancy, Queue, Worker, job

from benchmarks.contenders.looped import BULK, Looped
from benchmarks.worker_process import report_start

logging.getLogger("chancy").setLevel(logging.ERROR)


@job(queue="default")
async def idle(number: int) -> None:
    """Nothing."""


@job(queue="default")
async def stamp(number: int) -> None:
    """Answer when it starts."""
    report_start()


TASKS = {"idle": idle, "stamp": stamp}


class ChancyPostgres(Looped):
    """The contender."""

    name = "chancy"
    statement = "from chancy import Chancy, Worker, job"
    pace = 0.2

    async def open(self) -> None:
        self._app = Chancy(self.url, log=logging.getLogger("chancy"))
        await self._app.pool.open()
        await self._app.migrate()
        await self._app.declare(
            Queue("default", concurrency=100, executor=Chancy.Executor.Async, eager_polling=True)
        )

    async def shut(self) -> None:
        await self._app.pool.close()

    async def aenqueue(self, number: int) -> None:
        await self._app.push(idle.job.with_kwargs(number=number))

    async def send(self, task: str, count: int) -> None:
        new = TASKS[task].job.with_kwargs
        jobs = [new(number=each) for each in range(count)]
        async for _ in self._app.push_many(jobs, batch_size=BULK):
            pass

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with Worker(self._app, register_signal_handlers=False):
            yield

    async def count_left(self) -> int:
        async with self._app.pool.connection() as connection:
            query = (
                "SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')"
            )
            found = await (await connection.execute(query)).fetchone()
        return int(found[0])
