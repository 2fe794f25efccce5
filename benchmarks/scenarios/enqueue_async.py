"""Enqueue single jobs from eight coroutines at once, and from one.

Each call returns when its job is stored. Penstock is called inside ``async with app:``, as a web
application does it. A queue without a call for async code is called as it is, and blocks the loop
meanwhile.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.contenders import PYTHON_PEERS
from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario

JOBS = 4_000
CALLERS = 8


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second of all coroutines together, and of one alone."""
    return contender.run(_measure(contender, scale.jobs(JOBS)))


async def _measure(contender: Contender, count: int) -> Figures:
    async with contender.session():
        await contender.aenqueue(0)
        single = await _rate(contender, 1, count // 2)
        return {"rate": await _rate(contender, CALLERS, count), "single": single}


async def _rate(contender: Contender, callers: int, count: int) -> float:
    share = count // callers

    async def call() -> None:
        for number in range(share):
            await contender.aenqueue(number)

    start = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return share * callers / (time.perf_counter() - start)


SCENARIO = Scenario(
    about="enqueue, 8 coroutines at once",
    figures=(
        Figure(
            "rate",
            "jobs/s",
            (Goal(times=3.0, engine="postgres", than=PYTHON_PEERS, figure="single"),),
        ),
        Figure("single", "jobs/s", (Goal(times=1.0, engine="postgres", than=PYTHON_PEERS),)),
    ),
    run=measure,
    contenders=("penstock", "huey", *PYTHON_PEERS),
)
