"""An application with workers on a PostgreSQL store, and what its handlers did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from penstock import Penstock, State
from penstock.errors import EngineUnavailable
from penstock.events import Faulted

PATIENCE = 60.0
"""Real seconds after which something counts as never coming; nothing waits for them to pass."""


class Works:
    """An application with workers on a store, and what its handlers did."""

    def __init__(self, url: str) -> None:
        self.app = Penstock(url)
        self.ran: Counter[int] = Counter()
        self.faults: list[Faulted] = []
        self.begun = False
        """The task ``held`` waits to be let go."""
        self._gone_on = asyncio.Event()
        self.app.on(Faulted)(self.faults.append)

        @self.app.task(name="work")
        async def work(number: int) -> None:
            self.ran[number] += 1

        @self.app.task(name="held")
        async def held() -> None:
            self.begun = True
            await self._gone_on.wait()

        self.work, self.held = work, held

    async def enqueued(self, count: int) -> None:
        """Enqueue numbered jobs, each as often as it takes; a repeated id is stored once."""
        await asyncio.gather(*(self._stored(number) for number in range(count)))

    async def _stored(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self.work.using(id=f"work-{number}").aenqueue(number)
                    return
                except EngineUnavailable:
                    await asyncio.sleep(0.01)

    def let_go(self) -> None:
        """Let the task ``held`` end; from the loop that its worker runs on."""
        self._gone_on.set()

    @asynccontextmanager
    async def workers(self, count: int, **options: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for _ in range(count):
                await stack.enter_async_context(self.app.worker(concurrency=5, **options))
            yield

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - the sign comes from handlers
                await asyncio.sleep(0.005)

    async def until_ended(self, count: int) -> None:
        """Wait until so many jobs have succeeded, each of them once."""
        async with asyncio.timeout(PATIENCE):
            while not await self._have_ended(count):  # noqa: ASYNC110 - of others, elsewhere
                await asyncio.sleep(0.02)
        assert set(self.ran) == set(range(count))

    async def _have_ended(self, count: int) -> bool:
        try:
            found = await self.app.acounts()
        except EngineUnavailable:
            return False
        return sum(each.jobs for each in found if each.state is State.SUCCEEDED) == count
