"""A peer that lives on an event loop: its connections stay on one, which is uvloop's."""

from __future__ import annotations

import asyncio
import signal
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import uvloop

from benchmarks.contenders.contender import Answer, Contender, Kind
from benchmarks.locations import Location

BULK = 1_000
"""Jobs that go to the store at once."""


class Looped(Contender):
    """Everything is called on the peer's own loop; its jobs count as they run."""

    engine = "postgres"

    def __init__(self, location: Location, kind: Kind) -> None:
        super().__init__(location, kind)
        self.url = location.url(self.name)
        self.ran = 0
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.run(self.open())

    @abstractmethod
    async def open(self) -> None:
        """Make the schema unless it is there, and connect."""

    @abstractmethod
    async def shut(self) -> None:
        """Let all connections go."""

    @abstractmethod
    async def send(self, task: str, count: int) -> None:
        """Store ``count`` jobs of a task, "idle" or "stamp", at once."""

    @abstractmethod
    def working(self) -> AbstractAsyncContextManager[None]:
        """Be a worker meanwhile."""

    @abstractmethod
    async def count_left(self) -> int:
        """How many jobs have not ended."""

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self._runner.run(work)

    def enqueue(self, number: int) -> None:
        self.run(self.aenqueue(number))

    def enqueue_many(self, count: int) -> None:
        self.run(self._send("idle", count))

    def enqueue_stamp(self, delay: float = 0.0) -> None:
        assert not delay, "peers are not asked for delays"
        self.run(self.send("stamp", 1))

    def enqueue_stamps(self, count: int) -> None:
        self.run(self._send("stamp", count))

    def drain(self, count: int) -> float:
        return self.run(self._drain())

    def serve(self) -> None:
        self.run(self._serve())

    def left(self) -> int:
        return self.run(self.count_left())

    def close(self) -> None:
        self.run(self.shut())
        self._runner.close()

    async def _send(self, task: str, count: int) -> None:
        for sent in range(0, count, BULK):
            await self.send(task, min(BULK, count - sent))

    async def _drain(self) -> float:
        """While jobs still run, the store is not asked whether they do."""
        start = time.perf_counter()
        async with self.working():
            before = -1
            while before != self.ran or await self.count_left():
                before = self.ran
                await asyncio.sleep(0.02)
            return time.perf_counter() - start

    async def _serve(self) -> None:
        is_over = asyncio.Event()
        async with self.working():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
            await is_over.wait()


@asynccontextmanager
async def cancelled_afterwards(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let something run meanwhile."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
