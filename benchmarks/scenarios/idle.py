"""What a worker with nothing to do costs: the share of one core that it computes while asleep."""

from __future__ import annotations

import time

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.worker_process import running_worker

SECONDS = 15.0


def measure(contender: Contender, scale: Scale) -> Figures:
    """Percent of one core."""
    with running_worker(contender) as other:
        time.sleep(1.0)  # what follows a start is not idleness
        before, began_at = other.cpu(), time.perf_counter()
        time.sleep(scale.seconds(SECONDS))
        used, passed = other.cpu() - before, time.perf_counter() - began_at
    return {"cpu": used / passed * 100}


SCENARIO = Scenario(
    about="processor time of an idle worker",
    figures=(Figure("cpu", "%", (Goal(most=1.0),), less_is_better=True),),
    run=measure,
    contenders=("penstock", "huey", "pgqueuer", "graphile"),
    rounds=1,
)
