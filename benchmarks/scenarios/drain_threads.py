"""Run waiting jobs that do nothing, on the eight threads of one worker process.

The clock runs as in ``drain_async``. On PostgreSQL the best of the Python peers runs coroutines.
"""

from __future__ import annotations

from benchmarks.scenario import Figure, Goal, Scenario
from benchmarks.scenarios.drain_async import measure

SCENARIO = Scenario(
    about="drain idle sync tasks, 8 threads",
    figures=(
        Figure(
            "rate",
            "jobs/s",
            (Goal(times=3.0, engine="sqlite"),),
        ),
    ),
    run=measure,
    kind="sync",
    contenders=("penstock", "huey", "pgqueuer"),
)
