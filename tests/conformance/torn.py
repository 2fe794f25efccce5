"""What engines that are torn on purpose are made of.

``torn_laws`` and ``torn_queues`` break the laws outright, ``torn_steps`` splits atomic steps in
two. A test that proves a law has to fail on the engine that breaks it; ``test_torn`` sees to that,
so that no test of a race can rot into one that always passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from conformance.stores import Store
from penstock.core.job import Job
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.testing.clock import FakeClock


async def others_act() -> None:
    """Where a step is torn: here another handle may do whatever it likes."""
    for _ in range(3):
        await asyncio.sleep(0)


class Torn(MemoryEngine):
    """A memory engine that reaches behind its own lock."""

    new_store: ClassVar[Callable[[], MemoryStore]] = MemoryStore

    def job(self, id: str) -> Job:
        return self.store.jobs[id]

    def overwrite(self, *jobs: Job) -> None:
        """Store jobs as they are given, whatever became of them meanwhile."""
        with self.store.step() as store:
            for job in jobs:
                store.put(job)


def torn_store(kind: type[Torn], clock: FakeClock) -> Store:
    """A store whose handles are all torn in the same way."""
    store = kind.new_store()
    return Store(lambda: kind(store, clock=clock), clock)
