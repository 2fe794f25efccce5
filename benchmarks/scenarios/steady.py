"""Enqueue and drain together for two minutes: does it go on as it began?

Four threads enqueue single jobs while no more than a thousand wait; see ``Throughput``.
"""

from __future__ import annotations

import statistics

from benchmarks.contenders.contender import Contender
from benchmarks.locations import Directory, Location
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.throughput import Throughput
from benchmarks.worker_process import WorkerProcess, running_worker

SECONDS = 120.0
WINDOWS = 12
CALLERS = 4
MOST_WAITING = 1_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second, the share of the first third that is left in the last, the greatest log,
    and the worker's memory at the end.
    """
    with running_worker(contender) as other:
        flow = Throughput(contender, other, room=MOST_WAITING, callers=CALLERS)
        try:
            windows = flow.windows(
                scale.seconds(SECONDS, least=2.4),
                WINDOWS,
                lambda: _sizes(contender.location, other),
            )
        finally:
            flow.close()
    third = WINDOWS // 3
    rates = [each["rate"] for each in windows]
    return {
        "rate": statistics.mean(rates),
        "flat": statistics.mean(rates[-third:]) / statistics.mean(rates[:third]),
        "log": max(each["log"] for each in windows),
        "memory": windows[-1]["memory"],
        "windows": windows,
    }


def _sizes(location: Location, other: WorkerProcess) -> dict[str, float]:
    """MiB of the log, the store and the worker."""
    assert isinstance(location, Directory)
    log = sum(path.stat().st_size for path in location.path.glob("*-wal"))
    store = sum(path.stat().st_size for path in location.path.glob("*.db"))
    return {"log": log / (1 << 20), "store": store / (1 << 20), "memory": other.memory()}


SCENARIO = Scenario(
    about="enqueue and drain together for 2 minutes",
    figures=(
        Figure("rate", "jobs/s"),
        Figure("flat", "of 1", (Goal(least=0.9),)),
        Figure("log", "MiB", less_is_better=True),
        Figure("memory", "MiB", less_is_better=True),
    ),
    run=measure,
    engines=("sqlite",),
    contenders=("penstock",),
    rounds=1,
)
