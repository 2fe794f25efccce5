"""How long the import takes in a fresh process, with its bytecode on disk."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario

PROCESSES = 7
_IMPORT = """
import sys, time
before, start = len(sys.modules), time.perf_counter()
{statement}
print(time.perf_counter() - start, len(sys.modules) - before)
"""


def measure(contender: Contender, scale: Scale) -> Figures:
    """Milliseconds, the median of several processes, and how many modules come with it."""
    runs = [_imported(contender.statement) for _ in range(scale.jobs(PROCESSES, least=1))]
    return {"time": statistics.median(time for time, _ in runs) * 1000, "modules": runs[0][1]}


def _imported(statement: str) -> tuple[float, int]:
    command = [sys.executable, "-c", _IMPORT.format(statement=statement)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    time, modules = run.stdout.split()
    return float(time), int(modules)


SCENARIO = Scenario(
    about="import of the package",
    figures=(Figure("time", "ms", (Goal(most=150.0),), less_is_better=True),),
    run=measure,
    engines=("sqlite",),
)
