"""What the life of a job costs: enqueued with many others, run, and kept or removed.

Processor time says most where other work goes on: it changes least.
"""

from __future__ import annotations

import os
import time

from benchmarks.contenders.contender import Contender
from benchmarks.cpu_time import cpu_seconds, server_pid
from benchmarks.scenario import Figure, Figures, Scale, Scenario
from benchmarks.server_stats import server_stats

JOBS = 20_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Per job: microseconds of the enqueuer, the worker and the server, bytes of write-ahead log,
    rows that had to die, and bytes that stay.
    """
    count = scale.jobs(int(JOBS * contender.pace))
    contender.enqueue(0)
    contender.drain(1)
    contender.location.settle(contender.name)
    before, (own, server) = server_stats(contender), _cpu_seconds()
    contender.enqueue_many(count)
    enqueued, stored = _cpu_seconds()
    contender.drain(count)
    drained, served = _cpu_seconds()
    time.sleep(1.5)  # counters of rows come late
    after = server_stats(contender)
    return {
        "enqueue": (enqueued - own) / count * 1e6,
        "drain": (drained - enqueued) / count * 1e6,
        "server": (served - server) / count * 1e6,
        "wal": (after.wal - before.wal) / count,
        "killed": (after.killed - before.killed) / count,
        "size": (after.size - before.size) / count,
        "server to enqueue": (stored - server) / count * 1e6,
        "server to drain": (served - stored) / count * 1e6,
    }


def _cpu_seconds() -> tuple[float, float]:
    return cpu_seconds(os.getpid()), cpu_seconds(server_pid())


SCENARIO = Scenario(
    about="processor time, log, dead rows and space per job",
    figures=(
        Figure("enqueue", "µs/job", less_is_better=True),
        Figure("drain", "µs/job", less_is_better=True),
        Figure("server", "µs/job", less_is_better=True),
        Figure("wal", "B/job", less_is_better=True),
        Figure("killed", "rows/job", less_is_better=True),
        Figure("size", "B/job", less_is_better=True),
    ),
    run=measure,
    engines=("postgres",),
)
