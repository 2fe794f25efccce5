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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import peers, report
from benchmarks.contenders import ENGINES
from benchmarks.machine import load, machine
from benchmarks.scenario import Figures
from benchmarks.scenarios import loaded, on
from benchmarks.server import server_for

RESULTS = Path(__file__).parent / "results"
QUICK = 0.25
"""The share of each measurement that ``--quick`` makes."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for."""

    engine: str
    contenders: tuple[str, ...]
    python: str
    """The interpreter whose environment has the contenders."""
    rounds: int
    scale: float
    bytecode: str
    """Where compiled modules are kept, so that no measurement compiles."""

    def measure(self, scenario: str, contender: str, scale: float | None = None) -> Figures:
        """Make one measurement in a fresh process."""
        amount = str(self.scale if scale is None else scale)
        place = ("--engine", self.engine, "--scale", amount)
        figures: Figures = self._answer("benchmarks.measure", scenario, contender, *place)
        return figures

    def versions(self) -> dict[str, str]:
        """Of the contenders and what they run on."""
        versions: dict[str, str] = self._answer("benchmarks.versions", self.engine)
        return versions

    def _answer(self, module: str, *arguments: str) -> Any:
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        run = subprocess.run(
            [self.python, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**environment, "PYTHONPYCACHEPREFIX": self.bytecode},
        )
        return json.loads(run.stdout.splitlines()[-1])


def main() -> int:
    """Measure, print the table, and keep the figures; 1: a measurement failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--engine", choices=ENGINES, default="sqlite", help="(default: sqlite)")
    parser.add_argument("--list", action="store_true", help="name the scenarios, and stop")
    parser.add_argument("--only", metavar="NAMES", help="scenarios to run, with commas between")
    parser.add_argument("--without", metavar="NAMES", default="", help="scenarios to leave out")
    parser.add_argument("--contenders", metavar="NAMES", help="who takes part (default: all)")
    parser.add_argument("--rounds", type=int, help="how often each is measured (default 3)")
    parser.add_argument("--quick", action="store_true", help="a quarter of everything, one round")
    parser.add_argument("--scale", type=float, help="any other share of everything")
    parser.add_argument("--output", type=Path, help="where the figures go")
    given = parser.parse_args()
    names = on(given.engine)
    if given.list:
        for name in names:
            print(f"{name:<17}{loaded(name).about}")
        return 0
    chosen = _chosen(parser, names, given.only, given.without)
    everybody = tuple(ENGINES[given.engine])
    contenders = _chosen(parser, everybody, given.contenders, "", what="contender")
    is_whole = (chosen, contenders) == (names, everybody)
    output = given.output or RESULTS / f"{given.engine}{'' if is_whole else '-part'}.json"
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bytecode-") as bytecode,
        server_for(given.engine),
    ):
        run = Run(
            engine=given.engine,
            contenders=contenders,
            python=_python(given.engine),
            rounds=given.rounds or (1 if given.quick else 3),
            scale=given.scale or (QUICK if given.quick else 1.0),
            bytecode=bytecode,
        )
        found = _measured(run, chosen)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=2) + "\n")
    print(f"\nfigures of every round: {output}")
    return 1 if any(each["errors"] for each in found["scenarios"].values()) else 0


def _chosen(
    parser: argparse.ArgumentParser,
    names: tuple[str, ...],
    only: str | None,
    without: str,
    what: str = "scenario",
) -> tuple[str, ...]:
    chosen = names if only is None else tuple(only.split(","))
    left_out = tuple(name for name in without.split(",") if name)
    for name in (*chosen, *left_out):
        if name not in names:
            parser.error(f"there is no {what} {name!r}; choose from {', '.join(names)}")
    return tuple(name for name in chosen if name not in left_out)


def _python(engine: str) -> str:
    """The interpreter that has the contenders of an engine; theirs is made if need be."""
    if engine != "postgres":
        return sys.executable
    if modules := peers.modules():
        os.environ[peers.MODULES] = str(modules)
    return str(peers.environment())


def _measured(run: Run, names: Sequence[str]) -> dict[str, Any]:
    about: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "versions": run.versions(),
        "scale": run.scale,
    }
    present = tuple(name for name in run.contenders if name in about["versions"])
    for name in run.contenders:
        if name not in present:
            print(f"{name} cannot be run on this machine, and is left out")
    run = replace(run, contenders=present)
    print(", ".join(f"{name} {each}" for name, each in about["versions"].items()))
    print(", ".join(f"{name} {each}" for name, each in about["machine"].items()))
    print(f"median (least–greatest) of {run.rounds} rounds at scale {run.scale:g}\n")
    print(report.header(run.contenders), flush=True)
    for contender in run.contenders:
        run.measure("drain_async", contender, scale=0.001)  # compiles what is compiled
    return {**about, "scenarios": {name: _scenario(run, name) for name in names}}


def _scenario(run: Run, name: str) -> dict[str, Any]:
    """Who fails once takes no further part in the scenario."""
    scenario = loaded(name)
    contenders = [each for each in run.contenders if scenario.takes(each)]
    rounds: dict[str, list[Figures]] = {each: [] for each in contenders}
    errors: dict[str, str] = {}
    before = load()
    for number in range(min(run.rounds, scenario.rounds or run.rounds)):
        for contender in _in_turn(contenders, number):
            if contender in errors:
                continue
            try:
                rounds[contender].append(run.measure(name, contender))
            except subprocess.CalledProcessError as error:
                print(f"{name:<17}failed: {' '.join(error.cmd[1:])}", flush=True)
                errors[contender] = str(error)
    lines = report.lines(name, scenario, run.engine, rounds)
    for line in lines:
        for row in report.rows(line, run.contenders):
            print(row, flush=True)
    return {
        "about": scenario.about,
        "load": {"before": before, "after": load()},
        "figures": [line.data() for line in lines],
        "rounds": rounds,
        "errors": errors,
    }


def _in_turn(contenders: Sequence[str], number: int) -> Iterable[str]:
    """Who goes first changes from round to round: a machine grows warm, or busy."""
    return contenders if number % 2 == 0 else list(reversed(contenders))


if __name__ == "__main__":
    sys.exit(main())
