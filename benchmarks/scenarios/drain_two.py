"""Run waiting jobs that do nothing, as coroutines, in two worker processes.

Both have imported what they need when the clock starts; it ends when the second one has nothing
left to run.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Scale, Scenario

JOBS = 100_000
PROCESSES = 2


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second of both together."""
    count = scale.jobs(JOBS)
    contender.enqueue_many(count)
    contender.location.settle(contender.name)
    about = (contender.engine, contender.name, str(contender.location), contender.kind, str(count))
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.drain_process", *about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline(), "a worker has ended"
    start = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline(), "a worker has ended"
    elapsed = time.perf_counter() - start
    for worker in workers:
        worker.communicate()
    assert contender.left() == 0, f"{contender.left()} jobs are left"
    return {"rate": count / elapsed}


SCENARIO = Scenario(
    about="drain idle async tasks, 2 processes",
    figures=(Figure("rate", "jobs/s"),),
    run=measure,
    engines=("postgres",),
    contenders=("penstock", "pgqueuer", "graphile"),
)
