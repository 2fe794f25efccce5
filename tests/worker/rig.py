"""What tests of the worker are made of: a store that can break, tasks, and workers on a fake clock.

Every worker has several handles. The first it connects is the one of its exchange loop; the others
belong to other threads. Faults are given to all of them, or to ``main``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from penstock.context import Context
from penstock.core.ids import new_id
from penstock.core.job import Draft, Job, Outcome, State
from penstock.core.retry import make_policy
from penstock.core.signature import Signature
from penstock.core.spec import Spec
from penstock.engines import changes
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.records import Ask, News, Sighting, WorkerInfo
from penstock.errors import EngineUnavailable
from penstock.events import Bus
from penstock.hosting import upkeep
from penstock.testing import FakeClock, Faulty
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker

Answer = TypeVar("Answer")

patience = 20.0
"""Real seconds after which something that should come at once counts as never coming."""


async def soon(awaited: Awaitable[Answer]) -> Answer:
    """Return what comes at once; fail instead of hanging if it does not."""
    try:
        async with asyncio.timeout(patience):
            return await awaited
    except TimeoutError:
        raise AssertionError("it did not come") from None


def spec(function: Callable[..., Any], name: str = "", **fields: Any) -> Spec:
    """A task without an app."""
    name = name or function.__name__
    retries = fields.pop("retries", 3)
    return Spec(
        name=name,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        signature=Signature.of(function, name, inject=Context),
        policy=make_policy(retries),
        **fields,
    )


def specs(*functions: Callable[..., Any] | Spec, **fields: Any) -> dict[str, Spec]:
    """Tasks by name."""
    found = [each if isinstance(each, Spec) else spec(each, **fields) for each in functions]
    return {each.name: each for each in found}


class Handle(Faulty):
    """A handle that is down when its rig says so, whichever thread it belongs to."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(MemoryEngine(rig.store, rig.clock))
        self._rig = rig
        self.asks: list[Ask] = []
        self.is_open = False

    async def exchange(self, ask: Ask) -> Any:
        self.asks.append(ask)
        return await super().exchange(ask)

    async def open(self) -> None:
        await super().open()
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        await super().close()


class Rig:
    """One store, one clock, any number of workers, and a handle for the test itself."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.store = MemoryStore()
        self.handles: list[Handle] = []
        self.engine = MemoryEngine(self.store, clock)
        self._is_down = False

    def connect(self) -> Handle:
        """A new handle, as a worker asks for it."""
        handle = Handle(self)
        if self._is_down:
            handle.down()
        self.handles.append(handle)
        return handle

    @property
    def main(self) -> Handle:
        """The handle of the first worker's exchange loop."""
        return self.handles[0]

    def down(self) -> None:
        """Take the store away from everybody but the test."""
        self._is_down = True
        for handle in self.handles:
            handle.down()

    def up(self) -> None:
        """Give it back."""
        self._is_down = False
        for handle in self.handles:
            handle.up()

    # --- jobs ----------------------------------------------------------------------------------

    async def put(self, task: str, payload: bytes = b"{}", **fields: Any) -> str:
        """Enqueue one job; return its id."""
        draft = Draft(id=fields.pop("id", None) or new_id(), task=task, payload=payload, **fields)
        (receipt,) = await self.engine.enqueue([draft])
        return receipt.id

    async def put_all(self, task: str, count: int) -> list[str]:
        """Enqueue so many jobs at once; return their ids."""
        drafts = [Draft(id=new_id(), task=task, payload=b"{}") for _ in range(count)]
        return [receipt.id for receipt in await self.engine.enqueue(drafts)]

    async def job(self, id: str) -> Job:
        """A job as it is now."""
        (job,) = await self.engine.get([id])
        assert job is not None
        return job

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the store looks as it should; any change of the store is a reason to look."""

        async def wait() -> None:
            while True:
                seen = await self.engine.version(News.CHANGED)
                if await condition():
                    return
                event = asyncio.Event()
                self.store.listen(event, News.CHANGED, seen)
                await event.wait()

        await soon(wait())

    async def ended(self, *ids: str) -> list[Job]:
        """Wait until these jobs have ended."""

        async def all_ended() -> bool:
            return all(job is None or job.state.is_final for job in await self.engine.get(ids))

        await self.until(all_ended)
        return [await self.job(id) for id in ids]

    async def in_state(self, id: str, state: State) -> Job:
        """Wait until a job is in a state."""
        return await self.when(id, lambda job: job.state is state)

    async def when(self, id: str, fits: Callable[[Job], bool]) -> Job:
        """Wait until a job is as it should be."""

        async def is_so() -> bool:
            return fits(await self.job(id))

        await self.until(is_so)
        return await self.job(id)

    # --- workers -------------------------------------------------------------------------------

    def worker(self, tasks: Mapping[str, Spec], **settings: Any) -> Worker:
        """A worker that stands for no election unless told."""
        settings.setdefault("leads", False)
        chosen = WorkerSettings(**settings)
        duties = upkeep(chosen, self.clock, Bus())
        return Worker(self.connect, tasks, chosen, clock=self.clock, upkeep=duties)

    def claim_ahead(self, worker: Worker, jobs: int = 1) -> None:
        """Let a worker ask now for so many jobs more than it has slots."""
        worker._dispatcher.planner.prefetch.ahead = lambda kind: jobs  # type: ignore[method-assign]
        worker._claim_loop._is_called = True
        worker._wake.set()

    @asynccontextmanager
    async def working(self, tasks: Mapping[str, Spec], **settings: Any) -> AsyncIterator[Worker]:
        """A worker that has joined; at the end it is stopped at once."""
        worker = self.worker(tasks, **settings)
        async with asyncio.TaskGroup() as group:
            run = group.create_task(worker.run())
            try:
                await soon(worker.ready.wait())
                yield worker
            finally:
                if not run.done():
                    worker.stop(0)
                await self.over(run)

    async def meanwhile(self, awaited: Awaitable[Answer], sleepers: int = 3) -> Answer:
        """Await something, and let time pass whenever everybody sleeps: the exchange loop, the
        beats and the watchdog, unless told otherwise.
        """
        task = asyncio.ensure_future(awaited)
        while not task.done():
            nap = asyncio.ensure_future(self.clock.asleep(sleepers))
            await soon(asyncio.wait([task, nap], return_when=asyncio.FIRST_COMPLETED))
            nap.cancel()
            if not task.done():
                self.clock.advance(0.25)
                await self.clock.settle()
        return task.result()

    async def pass_time(self, seconds: float, sleepers: int = 3) -> None:
        """Let time pass in small steps, each when everybody sleeps."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            await soon(self.clock.asleep(sleepers))
            self.clock.advance(0.5)
            await self.clock.settle()
        await soon(self.clock.asleep(sleepers))

    async def over(self, run: asyncio.Task[None]) -> None:
        """Wait until a run has ended, letting the time pass that it needs."""
        await self.meanwhile(asyncio.wait([run]), sleepers=1)

    async def bury(self, worker: str) -> list[Job]:
        """Let the store believe that a worker is dead."""
        beats = {info.id: info.beat for info in await self.engine.workers()}
        return await changes.rescue(self.engine, [Sighting(worker, beats[worker])], 1000)

    async def crash(self, *ids: str) -> None:
        """Let a worker die with all ready jobs, these, in its inflight, started."""
        worker = f"victim-{new_id()}"
        await self.engine.join(WorkerInfo(id=worker))
        ask = Ask(worker=worker, queues=("default",), want=len(ids), slots=len(ids))
        claimed = (await self.engine.exchange(ask)).jobs
        assert {job.id for job in claimed} == set(ids)
        await self.bury(worker)


def sent(handle: Handle) -> list[Outcome]:
    """Every outcome that went out by a handle, repetitions included."""
    return [outcome for ask in handle.asks for outcome in ask.outcomes]


def unavailable(why: str = "the test says so") -> EngineUnavailable:
    """The store cannot be reached."""
    return EngineUnavailable("memory", why)
