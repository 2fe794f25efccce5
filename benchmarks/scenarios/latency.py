"""From the call of enqueue to the start of the job, in another process that was asleep."""

from __future__ import annotations

import time

from benchmarks.contenders.contender import Contender
from benchmarks.elsewhere import rest, working_elsewhere
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.stopwatch import percentile

JOBS = 200


def measure(contender: Contender, scale: Scale) -> Figures:
    """Milliseconds: half of all jobs, and 99 of 100, start within this time."""
    waits = []
    with working_elsewhere(contender) as other:
        for _ in range(scale.jobs(JOBS)):
            called_at = time.time()
            contender.enqueue_stamp()
            waits.append((other.started_at() - called_at) * 1000)
            rest()
    return {"p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99), "all": waits}


SCENARIO = Scenario(
    about="idle latency across processes",
    figures=(
        Figure(
            "p50",
            "ms",
            (Goal(most=5.0, engine="sqlite"), Goal(most=3.0, engine="postgres")),
            less_is_better=True,
        ),
        Figure(
            "p99",
            "ms",
            (Goal(most=20.0, engine="sqlite"), Goal(most=10.0, engine="postgres")),
            less_is_better=True,
        ),
    ),
    run=measure,
)
