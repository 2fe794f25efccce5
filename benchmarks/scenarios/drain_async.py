"""Run waiting jobs that do nothing, as coroutines, in one worker process.

The clock runs from the start of the worker to the last settled job: joining, claiming and leaving
are in it. A queue without coroutines runs them as it does, in one thread.
"""

from __future__ import annotations

from benchmarks.contenders import PYTHON_PEERS
from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario

JOBS = {"memory": 20_000, "sqlite": 20_000, "postgres": 60_000}


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second."""
    count = scale.jobs(int(JOBS[contender.engine] * contender.pace))
    contender.enqueue_many(count)
    contender.location.settle(contender.name)
    elapsed = contender.drain(count)
    assert contender.left() == 0, f"{contender.left()} jobs are left"
    return {"rate": count / elapsed}


SCENARIO = Scenario(
    about="drain idle async tasks",
    figures=(
        Figure(
            "rate",
            "jobs/s",
            (
                Goal(times=6.0, engine="sqlite"),
                Goal(times=2.5, engine="postgres", than=PYTHON_PEERS),
                Goal(times=0.85, engine="postgres", than=("graphile",)),
            ),
        ),
    ),
    run=measure,
    engines=("memory", "sqlite", "postgres"),
)
