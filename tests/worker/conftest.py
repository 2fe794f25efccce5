"""The fixtures of the worker's tests."""

from __future__ import annotations

import threading

import pytest

from worker.process_pool_bench import Bench
from worker.rig import Rig, patience


@pytest.fixture
async def rig(clock):
    """A store and a clock; at the end no handle is open and no thread of ours is left."""
    rig = Rig(clock)
    await rig.engine.open()
    yield rig
    await rig.engine.close()
    assert [handle for handle in rig.handles if handle.is_open] == []
    for thread in threading.enumerate():
        if thread.name.startswith("penstock-"):
            thread.join(patience)
            assert not thread.is_alive(), f"{thread.name} was left behind"


@pytest.fixture
async def benches():
    """Makes pools of child processes, and sees that nothing of them is left at the end."""
    made: list[Bench] = []

    def make(size: int = 1, max_jobs: int | None = None) -> Bench:
        made.append(Bench(size, max_jobs))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
async def bench(benches):
    """A pool of one child."""
    return benches()
