"""Enqueue by the thousand and drain together for two minutes: does it go on as it began?"""

from __future__ import annotations

import statistics

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.server_stats import server_stats
from benchmarks.throughput import Throughput
from benchmarks.worker_process import running_worker

SECONDS = 120.0
WINDOWS = 12
BULK = 1_000
ROOM = 5_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second, the share of the first third that is left in the last, and what it costs."""
    with running_worker(contender) as other:
        flow = Throughput(contender, other, room=ROOM, bulk=BULK)
        try:
            flow.windows(scale.seconds(SECONDS / WINDOWS, least=0.2), 1, dict)  # warms up
            before, done = server_stats(contender), flow.done
            windows = flow.windows(
                scale.seconds(SECONDS, least=2.4),
                WINDOWS,
                lambda: {"memory": other.memory(), "dead": server_stats(contender).dead},
            )
            after, done = server_stats(contender), flow.done - done
        finally:
            flow.close()
    third = WINDOWS // 3
    rates = [each["rate"] for each in windows]
    return {
        "rate": statistics.mean(rates),
        "flat": statistics.mean(rates[-third:]) / statistics.mean(rates[:third]),
        "wal": (after.wal - before.wal) / max(1, done),
        "dead": max(each["dead"] for each in windows),
        "memory": windows[-1]["memory"],
        "windows": windows,
    }


SCENARIO = Scenario(
    about="enqueue by 1,000 and drain together for 2 minutes",
    figures=(
        Figure("rate", "jobs/s"),
        Figure("flat", "of 1", (Goal(least=0.9),)),
        Figure("wal", "B/job", less_is_better=True),
        Figure("dead", "rows", less_is_better=True),
        Figure("memory", "MiB", less_is_better=True),
    ),
    run=measure,
    engines=("postgres",),
    contenders=("penstock", "pgqueuer", "graphile"),
    rounds=1,
)
