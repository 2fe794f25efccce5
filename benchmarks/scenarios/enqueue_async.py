"""Enqueue single jobs from eight coroutines at once; each call returns when its job is stored.

A queue without a call for async code is called as it is, and blocks the loop meanwhile.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario

JOBS = 4_000
CALLERS = 8


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second of all coroutines together."""
    return {"rate": asyncio.run(_measure(contender, scale.jobs(JOBS) // CALLERS))}


async def _measure(contender: Contender, share: int) -> float:
    await contender.aenqueue(0)

    async def call() -> None:
        for number in range(share):
            await contender.aenqueue(number)

    start = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return share * CALLERS / (time.perf_counter() - start)


SCENARIO = Scenario(
    about="enqueue, 8 coroutines at once",
    figures=(Figure("rate", "jobs/s", Goal(times=2.0)),),
    run=measure,
)
