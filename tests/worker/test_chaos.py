"""Workers on a store that fails at random: every job ends, and no attempt is ever run twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from penstock.context import Context
from penstock.core.job import State
from penstock.engines import changes
from penstock.engines.records import Ask, Exchange
from penstock.errors import EngineTimeout, EngineUnavailable
from worker.rig import Handle, Rig, specs


class Flaky(Handle):
    """A handle whose calls fail at random, before or after they were committed."""

    def __init__(self, rig: Rig, dice: Random) -> None:
        super().__init__(rig)
        self._dice = dice

    async def _flaky(self, call):
        luck = self._dice.random()
        if luck < 0.1:
            raise EngineUnavailable("memory", "the dice say no")
        answer = await call
        await asyncio.sleep(0)
        if luck > 0.8:
            raise EngineTimeout("memory", "the dice lost the answer")
        return answer

    async def exchange(self, ask: Ask) -> Exchange:
        return await self._flaky(super().exchange(ask))

    async def held(self, worker: str):
        return await self._flaky(super().held(worker))

    async def join(self, worker) -> None:
        await self._flaky(super().join(worker))

    async def beat(self, worker: str) -> None:
        await self._flaky(super().beat(worker))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("seed", range(8))
async def test_every_job_ends_and_no_attempt_runs_twice(rig, seed):
    """What is handed out is run once. Whoever gets it next may count the same attempt: the worker
    that lost it may have begun, and not have said so yet.
    """
    dice = Random(seed)
    runs: Counter[tuple[str, int]] = Counter()

    async def quick(ctx: Context) -> None:
        runs[ctx.id, ctx.job.claim] += 1

    async def slow(ctx: Context) -> None:
        runs[ctx.id, ctx.job.claim] += 1
        for _ in range(dice.randrange(50)):
            await asyncio.sleep(0)
        if dice.random() < 0.2:
            raise ValueError("at random")

    def threaded(ctx: Context) -> None:
        runs[ctx.id, ctx.job.claim] += 1

    def connect() -> Handle:
        handle = Flaky(rig, dice)
        rig.handles.append(handle)
        return handle

    tasks = specs(quick, slow, threaded, retries=[1] * 100)
    workers = [rig.worker(tasks, concurrency=5, threads=2) for _ in range(3)]
    for worker in workers:
        worker._connect = connect
    names = ["quick", "slow", "threaded"]
    ids = [await rig.put(dice.choice(names)) for _ in range(150)]

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(worker.run()) for worker in workers]
        ended = asyncio.ensure_future(rig.ended(*ids))
        while not ended.done():
            await asyncio.wait([ended], timeout=0.002)
            rig.clock.advance(0.2)
            if dice.random() < 0.02 and (alive := await rig.engine.workers()):
                await rig.bury(dice.choice(alive).id)
            await changes.rescue(rig.engine, [], 1000)
        for handle in rig.handles:
            assert isinstance(handle, Flaky)
            handle._dice = _Lucky()
        for worker in workers:
            worker.stop(0)
        while not all(task.done() for task in running):
            await asyncio.wait(running, timeout=0.002)
            rig.clock.advance(0.2)

    jobs = await ended
    assert all(job.state.is_final for job in jobs)
    failed = [job for job in jobs if job.state is not State.SUCCEEDED]
    assert [job for job in failed if not (job.reason or "").startswith("crashed its worker")] == []
    assert max(runs.values()) == 1


class _Lucky(Random):
    def random(self) -> float:
        return 0.5
