"""What the life of a job costs the server: enqueued with many others, run, and kept or removed."""

from __future__ import annotations

import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Scale, Scenario
from benchmarks.toll import toll

JOBS = 20_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Bytes of write-ahead log, rows that had to die, and bytes that stay, per job."""
    count = scale.jobs(int(JOBS * contender.pace))
    contender.enqueue(0)
    contender.drain(1)
    before = toll(contender)
    contender.enqueue_many(count)
    contender.drain(count)
    time.sleep(1.5)  # counters of rows come late
    after = toll(contender)
    return {
        "wal": (after.wal - before.wal) / count,
        "killed": (after.killed - before.killed) / count,
        "size": (after.size - before.size) / count,
    }


SCENARIO = Scenario(
    about="log, dead rows and space per job",
    figures=(
        Figure("wal", "B/job", less_is_better=True),
        Figure("killed", "rows/job", less_is_better=True),
        Figure("size", "B/job", less_is_better=True),
    ),
    run=measure,
    engines=("postgres",),
    rounds=1,
)
