"""Procrastinate with a hundred jobs at once; it keeps what it has done."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager

from procrastinate import App, PsycopgConnector

from benchmarks.contenders.looped import Looped, cancelled_afterwards
from benchmarks.worker_process import report_start

logging.getLogger("procrastinate").setLevel(logging.ERROR)


class ProcrastinatePostgres(Looped):
    """The contender."""

    name = "procrastinate"
    statement = "from procrastinate import App, PsycopgConnector"
    pace = 0.05

    async def open(self) -> None:
        self._app = App(connector=PsycopgConnector(conninfo=self.url, max_size=10))
        await self._app.open_async()
        if not await self._app.check_connection_async():
            await self._app.schema_manager.apply_schema_async()

        @self._app.task(name="idle")
        async def idle(number: int) -> None:
            self.ran += 1

        @self._app.task(name="stamp")
        async def stamp(number: int) -> None:
            report_start()

        self._tasks = {"idle": idle, "stamp": stamp}

    async def shut(self) -> None:
        await self._app.close_async()

    async def aenqueue(self, number: int) -> None:
        await self._tasks["idle"].defer_async(number=number)

    async def send(self, task: str, count: int) -> None:
        await self._tasks[task].batch_defer_async(*({"number": each} for each in range(count)))

    def working(self) -> AbstractAsyncContextManager[None]:
        work = self._app.run_worker_async(concurrency=100, install_signal_handlers=False)
        return cancelled_afterwards(work)

    async def count_left(self) -> int:
        counts = await self._app.connector.execute_query_one_async(
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return int(counts["count"])
