"""Every scenario still runs and brings the figures it declares; how good they are is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # the benchmarks are no part of the package

from benchmarks import report  # noqa: E402
from benchmarks.scenario import Figure, Goal, Scale  # noqa: E402
from benchmarks.scenarios import NAMES, loaded  # noqa: E402

LONG = frozenset({"delayed", "idle", "steady"})
"""They watch time pass."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NAMES]
)
def test_a_scenario_brings_its_figures(name: str) -> None:
    scale = ["--scale", "0.001"]
    command = [sys.executable, "-m", "benchmarks.one", name, "penstock", *scale]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)

    assert found.returncode == 0, found.stderr
    figures = json.loads(found.stdout.splitlines()[-1])
    for figure in loaded(name).figures:
        assert figures[figure.name] >= 0, (figure.name, figures)


def test_a_run_prints_a_table_and_keeps_every_round(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    only = ("--only", "enqueue_single,import_time")
    found = run(*only, "--rounds", "2", "--scale", "0.001", "--output", str(output))

    assert found.returncode == 0, found.stderr
    rows = [line.split()[:2] for line in found.stdout.splitlines()]
    assert ["enqueue_single", "rate"] in rows
    assert ["import_time", "time"] in rows
    kept = json.loads(output.read_text())
    assert kept["machine"]["cores"] > 0
    assert kept["versions"]["sqlite"]
    (rate,) = kept["scenarios"]["enqueue_single"]["figures"]
    assert {name: len(each["rounds"]) for name, each in rate["contenders"].items()} == {
        "penstock": 2,
        "huey": 2,
    }


def test_the_list_names_every_scenario_and_what_it_is_about() -> None:
    lines = run("--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    assert [line.split(maxsplit=1)[1] for line in lines] == [loaded(name).about for name in NAMES]


def test_every_scenario_has_a_file_and_every_file_is_a_scenario() -> None:
    files = {path.stem for path in (ROOT / "benchmarks" / "scenarios").glob("*.py")}
    assert files - {"__init__"} == set(NAMES)


def test_the_guide_tells_of_every_scenario() -> None:
    guide = (ROOT / "benchmarks" / "README.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in guide] == []


def test_an_unknown_scenario_is_told() -> None:
    found = run("--only", "nonsense")
    assert found.returncode == 2
    assert "there is no scenario 'nonsense'; choose from enqueue_single, " in found.stderr


# --- what the rounds come to ---------------------------------------------------------------------

RATE = Figure("rate", "jobs/s", Goal(times=2.0))
DELAY = Figure("p99", "ms", Goal(most=20.0), less_is_better=True)


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "ratio", "is_met"),
    [
        (RATE, [10.0, 30.0, 20.0], [5.0, 10.0, 11.0], 2.0, True),
        (RATE, [10.0, 19.0, 20.0], [5.0, 10.0, 11.0], 1.9, False),
        (DELAY, [10.0], [40.0], 4.0, True),
        (DELAY, [21.0], [42.0], 2.0, False),
        (Figure("share", "", Goal(least=0.8)), [0.8], [], None, True),
        (Figure("share", "", Goal(least=0.8)), [0.7], [], None, False),
        (RATE, [10.0], [], None, False),
        (Figure("rate", "jobs/s"), [10.0], [5.0], 2.0, None),
    ],
)
def test_a_goal_is_held_against_the_medians(figure, ours, theirs, ratio, is_met) -> None:
    line = report.Line("it", figure, {"penstock": ours, "huey": theirs})
    assert line.ratio == ratio
    assert line.is_met is is_met


def test_a_row_shows_median_spread_ratio_goal_and_whether_it_is_met() -> None:
    line = report.Line("drain", RATE, {"penstock": [2100.0, 2000.0, 2400.0], "huey": [1000.0]})
    cells = report.row(line, ("penstock", "huey")).split()
    assert " ".join(cells) == "drain rate jobs/s 2,100 (2,000–2,400) 1,000 2.1x ≥ 2x yes"


def test_a_small_scale_leaves_enough_to_measure() -> None:
    assert Scale(0.5).jobs(1000) == 500
    assert Scale(0.001).jobs(1000) == 20
    assert Scale(0.001).jobs(5) == 5
    assert Scale(0.001).seconds(120.0) == 1.0
