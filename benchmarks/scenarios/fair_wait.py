"""How long the single jobs of 25 tenants wait behind the 100,000 of another, in a fair queue.

Half of them come when the worker has just begun, half when it is busy with the many, one after the
other. Counted from the return of each enqueue: the jobs that start before that one, and the
seconds; the greatest of all.
"""

from __future__ import annotations

import threading
import time
from string import ascii_uppercase

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from penstock import Penstock

JOBS = 100_000
BUSY = 1_000
"""Jobs that have started when a worker is busy."""
SINGLE = ascii_uppercase[1:]
"""The other tenants."""
SLOTS = 100
AHEAD = 50
"""Jobs that a worker claims beyond its slots where a fair queue is served."""


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs and seconds before the single job of the tenant that waits longest."""
    count = scale.jobs(JOBS)
    starts, busy_at = 0, min(BUSY, count // 2)
    is_busy, is_over = threading.Event(), threading.Event()
    started: dict[str, tuple[int, float]] = {}
    app = Penstock(contender.location.url("tenants"))

    @app.task(name="work")
    async def work(tenant: str) -> None:
        nonlocal starts
        if tenant != "A":
            started[tenant] = starts, time.perf_counter()
            if len(started) == len(SINGLE):
                is_over.set()
        starts += 1
        if starts == busy_at:
            is_busy.set()

    app.set_queue("default", fair=True)
    work.using(key="A").enqueue_many([("A",)] * count)
    contender.location.settle("tenants")
    enqueued: dict[str, tuple[int, float]] = {}
    half = len(SINGLE) // 2
    with app.worker_thread(concurrency=SLOTS):
        for number, tenant in enumerate(SINGLE):
            if number == half:
                assert is_busy.wait(600), f"{starts} of {busy_at} jobs in ten minutes"
            work.using(key=tenant).enqueue(tenant)
            enqueued[tenant] = starts, time.perf_counter()
        assert is_over.wait(600), f"{len(started)} of {len(SINGLE)} tenants in ten minutes"
    app.close()
    jobs = [max(0, started[tenant][0] - enqueued[tenant][0]) for tenant in SINGLE]
    waits = [max(0.0, started[tenant][1] - enqueued[tenant][1]) for tenant in SINGLE]
    return {"jobs": max(jobs), "seconds": max(waits), "all": [jobs, waits]}


SCENARIO = Scenario(
    about="wait of single jobs behind another tenant's 100,000",
    figures=(
        Figure("jobs", "jobs", (Goal(most=SLOTS + AHEAD),), less_is_better=True),
        Figure("seconds", "s", (Goal(most=2.0),), less_is_better=True),
    ),
    run=measure,
    engines=("memory", "sqlite", "postgres"),
    contenders=("penstock",),
)
