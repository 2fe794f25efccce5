"""``python -m benchmarks [SCENARIO ...]``: contenders in turn, medians of several rounds."""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.measures import LESS_IS_BETTER, SCENARIOS
from benchmarks.one import CONTENDERS

RESULTS = Path(__file__).parent / "results" / "sqlite.json"


def main() -> None:
    """Measure, print a table, and write the figures to ``benchmarks/results/``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"huey {version('huey')}; medians of {options.rounds} rounds, contenders in turn\n"
    )
    print(f"{'scenario':<18}" + "".join(f"{name:>26}" for name in CONTENDERS) + f"{'ratio':>8}")
    results = {}
    for scenario in options.scenarios or SCENARIOS:
        figures: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(options.rounds):
            for name in CONTENDERS:
                figures[name].append(_measure(name, scenario))
        results[scenario] = figures
        print(_row(scenario, figures), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2))


def _measure(name: str, scenario: str) -> float:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.one", name, scenario],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(run.stdout.splitlines()[-1])


def _row(scenario: str, figures: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(values) for name, values in figures.items()}
    cells = [
        f"{medians[name]:>12,.1f} ({min(values):,.0f}-{max(values):,.0f})"
        for name, values in figures.items()
    ]
    ratio = medians["penstock"] / medians["huey"]
    if scenario in LESS_IS_BETTER:
        ratio = 1 / ratio
    return f"{scenario:<18}" + "".join(f"{cell:>26}" for cell in cells) + f"{ratio:>7.1f}x"


if __name__ == "__main__":
    main()
