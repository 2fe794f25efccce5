"""``python -m benchmarks``: all scenarios, contenders in turn, a fresh process each time.

What is measured is in ``benchmarks/README.md``, with how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contenders import ENGINES
from benchmarks.machine import load, machine, versions
from benchmarks.scenario import Figures
from benchmarks.scenarios import NAMES, loaded

RESULTS = Path(__file__).parent / "results"
QUICK = 0.25
"""The share of each measurement that ``--quick`` makes."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for."""

    engine: str
    contenders: tuple[str, ...]
    rounds: int
    scale: float
    bytecode: str
    """Where compiled modules are kept, so that no measurement compiles."""

    def measure(self, scenario: str, contender: str, scale: float | None = None) -> Figures:
        """Make one measurement in a fresh process."""
        amount = str(self.scale if scale is None else scale)
        place = ("--engine", self.engine, "--scale", amount)
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.one", scenario, contender, *place],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**environment, "PYTHONPYCACHEPREFIX": self.bytecode},
        )
        figures: Figures = json.loads(run.stdout.splitlines()[-1])
        return figures


def main() -> int:
    """Measure, print the table, and keep the figures; 1: a measurement failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--list", action="store_true", help="name the scenarios, and stop")
    parser.add_argument("--only", metavar="NAMES", help="scenarios to run, with commas between")
    parser.add_argument("--without", metavar="NAMES", default="", help="scenarios to leave out")
    parser.add_argument("--rounds", type=int, help="how often each is measured (default 3)")
    parser.add_argument("--quick", action="store_true", help="a quarter of everything, one round")
    parser.add_argument("--scale", type=float, help="any other share of everything")
    parser.add_argument("--engine", choices=ENGINES, default="sqlite")
    parser.add_argument("--output", type=Path, help="where the figures go")
    given = parser.parse_args()
    if given.list:
        for name in NAMES:
            print(f"{name:<17}{loaded(name).about}")
        return 0
    names = _chosen(parser, given.only, given.without)
    output = given.output or RESULTS / f"{given.engine}{'' if names == NAMES else '-part'}.json"
    with tempfile.TemporaryDirectory(prefix="penstock-bytecode-") as bytecode:
        run = Run(
            engine=given.engine,
            contenders=tuple(ENGINES[given.engine]),
            rounds=given.rounds or (1 if given.quick else 3),
            scale=given.scale or (QUICK if given.quick else 1.0),
            bytecode=bytecode,
        )
        found = _measured(run, names)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=2) + "\n")
    print(f"\nfigures of every round: {output}")
    return 1 if any("error" in each for each in found["scenarios"].values()) else 0


def _chosen(parser: argparse.ArgumentParser, only: str | None, without: str) -> tuple[str, ...]:
    chosen = NAMES if only is None else tuple(only.split(","))
    left_out = tuple(name for name in without.split(",") if name)
    for name in (*chosen, *left_out):
        if name not in NAMES:
            parser.error(f"there is no scenario {name!r}; choose from {', '.join(NAMES)}")
    return tuple(name for name in chosen if name not in left_out)


def _measured(run: Run, names: Sequence[str]) -> dict[str, Any]:
    about: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "versions": versions(),
        "scale": run.scale,
    }
    print(", ".join(f"{name} {each}" for name, each in about["versions"].items()))
    print(", ".join(f"{name} {each}" for name, each in about["machine"].items()))
    print(f"median (least–greatest) of {run.rounds} rounds at scale {run.scale:g}\n")
    print(report.header(run.contenders), flush=True)
    for contender in run.contenders:
        run.measure("drain_async", contender, scale=0.001)  # compiles what is compiled
    return {**about, "scenarios": {name: _scenario(run, name) for name in names}}


def _scenario(run: Run, name: str) -> dict[str, Any]:
    scenario = loaded(name)
    contenders = [each for each in run.contenders if each in scenario.contenders]
    rounds: dict[str, list[Figures]] = {each: [] for each in contenders}
    before = load()
    try:
        for number in range(min(run.rounds, scenario.rounds or run.rounds)):
            for contender in _in_turn(contenders, number):
                rounds[contender].append(run.measure(name, contender))
    except subprocess.CalledProcessError as error:
        print(f"{name:<17}failed: {' '.join(error.cmd[1:])}", flush=True)
        return {"about": scenario.about, "error": str(error)}
    lines = report.lines(name, scenario, rounds)
    for line in lines:
        print(report.row(line, run.contenders), flush=True)
    return {
        "about": scenario.about,
        "load": {"before": before, "after": load()},
        "figures": [line.data() for line in lines],
        "rounds": rounds,
    }


def _in_turn(contenders: Sequence[str], number: int) -> Iterable[str]:
    """Who goes first changes from round to round: a machine grows warm, or busy."""
    return contenders if number % 2 == 0 else list(reversed(contenders))


if __name__ == "__main__":
    sys.exit(main())
