"""How much memory a worker process has: asleep after its first job, and after 100,000 of them."""

from __future__ import annotations

import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Scale, Scenario
from benchmarks.worker_process import running_worker

JOBS = 100_000
PATIENCE = 600.0


def measure(contender: Contender, scale: Scale) -> Figures:
    """MiB of resident memory."""
    with running_worker(contender) as other:
        idle = other.memory()
        contender.enqueue_many(scale.jobs(JOBS))
        give_up_at = time.perf_counter() + PATIENCE
        while contender.left():
            assert time.perf_counter() < give_up_at, f"{contender.left()} jobs are left"
            time.sleep(0.1)
        return {"idle": idle, "after": other.memory()}


SCENARIO = Scenario(
    about="memory of a worker, idle and after 100,000 jobs",
    figures=(
        Figure("idle", "MiB", less_is_better=True),
        Figure("after", "MiB", less_is_better=True),
    ),
    run=measure,
    contenders=("penstock", "huey", "pgqueuer", "graphile"),
    rounds=1,
)
