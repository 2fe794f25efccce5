"""What a job costs besides its handler, for each kind of task.

One worker process on the memory engine, tasks that do nothing: what is measured is the worker
itself, not a store. The jobs are there before the clock starts, and a first batch warms up threads
and children.
"""

from __future__ import annotations

import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from penstock import Penstock

JOBS = {"async": 50_000, "thread": 20_000, "process": 10_000}
WARM_UP = 500

app = Penstock("memory://")


@app.task(name="async")
async def on_the_loop(number: int) -> None:
    """Nothing, on the loop."""


@app.task(name="thread")
def on_a_thread(number: int) -> None:
    """Nothing, on a thread."""


@app.task(name="process", isolation="process")
def in_a_child(number: int) -> None:
    """Nothing, in a child process."""


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second of each kind."""
    return {kind: _rate(kind, scale) for kind in JOBS}


def _rate(kind: str, scale: Scale) -> float:
    task, count = app.tasks[kind], scale.jobs(JOBS[kind])
    worker = app.worker_thread(children=2).start()
    for job in task.enqueue_many([(number,) for number in range(scale.jobs(WARM_UP))]):
        job.result()
    app.pause("default")
    task.enqueue_many([(number,) for number in range(count)])
    started = time.perf_counter()
    app.resume("default")
    worker.stop_when_empty()
    elapsed = time.perf_counter() - started
    assert not any(each.jobs for each in app.counts() if not each.state.is_final)
    return count / elapsed


SCENARIO = Scenario(
    about="overhead of the worker, memory engine",
    figures=(
        Figure("async", "jobs/s", (Goal(least=50_000),)),
        Figure("thread", "jobs/s", (Goal(least=15_000),)),
        Figure("process", "jobs/s", (Goal(least=2_000),)),
    ),
    run=measure,
    engines=("sqlite",),
    contenders=("penstock",),
)
