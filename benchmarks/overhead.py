"""``python -m benchmarks.overhead``: what a job costs besides its handler, for each kind of task.

One worker process on the memory engine, no-op tasks: what is measured is the worker itself, not a
store. The jobs are there before the clock starts, and a first batch warms up threads and children.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from penstock import Penstock

RESULTS = Path(__file__).parent / "results" / "overhead.json"
JOBS = {"async": 50_000, "thread": 20_000, "process": 10_000}
GOALS = {"async": 50_000, "thread": 15_000, "process": 2_000}
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


def measure(kind: str) -> float:
    """Jobs per second of one kind, in this process."""
    task, count = app.tasks[kind], JOBS[kind]
    worker = app.worker_thread(children=2).start()
    for job in task.enqueue_many([(number,) for number in range(WARM_UP)]):
        job.result()
    app.pause("default")
    task.enqueue_many([(number,) for number in range(count)])
    started = time.perf_counter()
    app.resume("default")
    worker.stop_when_empty()
    elapsed = time.perf_counter() - started
    counts = {each.state.value: each.jobs for each in app.counts()}
    assert counts == {"succeeded": count + WARM_UP}, counts
    return count / elapsed


def main() -> None:
    """Measure each kind in a fresh process, several times in turn; print and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(JOBS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        speed = measure(options.kinds[0])
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps([speed, used // 1024]))
        return
    kinds = options.kinds or list(JOBS)
    rounds: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind in kinds:
            rounds[kind].append(_once(kind))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, memory engine, one worker ")
    print(f"process, children=2; medians of {options.rounds} rounds, kinds in turn\n")
    print(f"{'kind':<10}{'jobs/s':>10}{'(min-max)':>20}{'µs per job':>12}{'goal':>10}{'MiB':>7}")
    for kind, found in rounds.items():
        rates, memory = [rate for rate, _ in found], max(each for _, each in found)
        median = statistics.median(rates)
        spread = f"({min(rates):,.0f}-{max(rates):,.0f})"
        row = f"{kind:<10}{median:>10,.0f}{spread:>20}{1e6 / median:>12.1f}{GOALS[kind]:>10,}"
        print(f"{row}{memory:>7.0f}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rounds, indent=2))


def _once(kind: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.overhead", "--once", kind]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rate, memory = json.loads(run.stdout.splitlines()[-1])
    return [float(rate), float(memory)]


if __name__ == "__main__":
    main()
