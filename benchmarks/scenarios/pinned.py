"""Enqueue and drain together while a transaction elsewhere keeps PostgreSQL from cleaning up.

The transaction is opened after a minute and stays open for five: meanwhile no row that dies can be
removed, in any table. Its last minute is compared with the one before it began.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.server_stats import server_stats
from benchmarks.throughput import Throughput
from benchmarks.worker_process import running_worker

FREE = 60.0
PINNED = 300.0
MINUTES = 5
BULK = 1_000
ROOM = 5_000


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second before and in the last minute, and the share that is left."""
    with running_worker(contender) as other:
        flow = Throughput(contender, other, room=ROOM, bulk=BULK)

        def note() -> dict[str, int]:
            return {"dead": server_stats(contender).dead}

        try:
            flow.windows(scale.seconds(FREE / 6, least=0.2), 1, dict)  # warms up
            free = flow.windows(scale.seconds(FREE), MINUTES, note)
            with _pinned(contender):
                pinned = flow.windows(scale.seconds(PINNED), MINUTES * MINUTES, note)
        finally:
            flow.close()
    before = statistics.mean(each["rate"] for each in free)
    after = statistics.mean(each["rate"] for each in pinned[-MINUTES:])
    return {
        "before": before,
        "after": after,
        "share": after / before,
        "dead": pinned[-1]["dead"],
        "windows": [*free, *pinned],
    }


@contextmanager
def _pinned(contender: Contender) -> Iterator[None]:
    with psycopg.connect(contender.location.url(contender.name)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.rollback()


SCENARIO = Scenario(
    about="enqueue and drain with a transaction pinned open for 5 minutes",
    figures=(
        Figure("before", "jobs/s"),
        Figure("after", "jobs/s"),
        Figure("share", "of 1", (Goal(least=0.7),)),
        Figure("dead", "rows", less_is_better=True),
    ),
    run=measure,
    engines=("postgres",),
    contenders=("penstock", "pgqueuer"),
    rounds=1,
)
