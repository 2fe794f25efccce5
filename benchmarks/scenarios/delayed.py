"""How late a delayed job starts, in another process that has nothing else to do.

The delays are spread over some seconds and most are further apart than the worker's sleep is deep.
"""

from __future__ import annotations

import random
import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.stopwatch import percentile
from benchmarks.worker_process import running_worker

JOBS = 200
SPREAD = 8.0
FIRST = 1.0
"""Seconds in which all must be stored."""


def measure(contender: Contender, scale: Scale) -> Figures:
    """Milliseconds: half of all jobs, and 99 of 100, start within this time after their own."""
    chance = random.Random(1)
    spread = scale.seconds(SPREAD)
    delays = [FIRST + chance.random() * spread for _ in range(scale.jobs(JOBS))]
    with running_worker(contender) as other:
        due = []
        for delay in delays:
            due.append(time.time() + delay)
            contender.enqueue_stamp(delay)
        started = [other.started_at() for _ in due]
    # Sorted, the nth to start is compared with the nth due: who overtook whom does not matter.
    late = [(at - to_be) * 1000 for at, to_be in zip(sorted(started), sorted(due), strict=True)]
    return {"p50": percentile(late, 0.5), "p99": percentile(late, 0.99), "all": late}


SCENARIO = Scenario(
    about="lateness of delayed jobs",
    figures=(
        Figure("p50", "ms", less_is_better=True),
        Figure("p99", "ms", (Goal(most=20.0),), less_is_better=True),
    ),
    run=measure,
    contenders=("penstock", "huey"),
)
