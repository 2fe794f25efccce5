"""Every scenario still runs and brings the figures it declares; how good they are is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from servers.postgres import quick

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # the benchmarks are no part of the package

from benchmarks.contenders import ENGINES  # noqa: E402
from benchmarks.locations import SERVER, location_for  # noqa: E402
from benchmarks.scenario import Scale  # noqa: E402
from benchmarks.scenarios import NAMES, loaded, on  # noqa: E402
from benchmarks.server import server_for  # noqa: E402

LONG = frozenset({"delayed", "idle", "steady", "flow", "latency_busy", "pinned", "cost"})
"""They watch time pass."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize(
    "engine, name",
    [
        pytest.param(engine, name, marks=pytest.mark.slow if name in LONG else ())
        for engine in ENGINES
        for name in on(engine)
    ],
)
def test_a_scenario_brings_its_figures(engine: str, name: str) -> None:
    scale = ["--engine", engine, "--scale", "0.001"]
    command = [sys.executable, "-m", "benchmarks.measure", name, "penstock", *scale]
    environment = {**os.environ, **({SERVER: quick().url()} if engine == "postgres" else {})}
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, env=environment
    )

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


@pytest.mark.parametrize("engine", ENGINES)
def test_the_list_names_every_scenario_and_what_it_is_about(engine: str) -> None:
    lines = run("--list", "--engine", engine).stdout.splitlines()
    names = on(engine)
    assert [line.split()[0] for line in lines] == list(names)
    assert [line.split(maxsplit=1)[1] for line in lines] == [loaded(name).about for name in names]


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


def test_an_unknown_contender_is_told() -> None:
    found = run("--engine", "postgres", "--contenders", "penstock,nobody")
    assert found.returncode == 2
    assert "there is no contender 'nobody'; choose from penstock, pgqueuer, " in found.stderr


def test_a_goal_speaks_of_contenders_and_figures_that_are_in_its_scenario() -> None:
    for name in NAMES:
        scenario = loaded(name)
        figures = {figure.name for figure in scenario.figures}
        for goal in (goal for figure in scenario.figures for goal in figure.goals):
            engines = scenario.engines if goal.engine is None else (goal.engine,)
            assert set(engines) <= set(scenario.engines)
            assert goal.figure is None or goal.figure in figures
            for engine in engines:
                assert all(scenario.takes(each) for each in goal.than or ())
                assert set(goal.than or ()) <= set(ENGINES[engine])


def test_the_server_of_a_run_has_the_defaults_of_postgresql(monkeypatch) -> None:
    monkeypatch.delenv(SERVER, raising=False)
    with server_for("postgres"), psycopg.connect(os.environ[SERVER]) as connection:
        changed = connection.execute(
            "SELECT name, setting, boot_val FROM pg_settings WHERE setting <> boot_val AND name IN"
            " ('fsync', 'synchronous_commit', 'full_page_writes', 'autovacuum', 'max_wal_size',"
            "  'wal_level', 'autovacuum_naptime')"
        ).fetchall()
        (buffers,) = connection.execute("SHOW shared_buffers").fetchone() or ()
    assert changed == []
    assert buffers == "128MB"
    assert SERVER not in os.environ


def test_a_location_leaves_no_database_behind(monkeypatch) -> None:
    monkeypatch.setenv(SERVER, quick().url())
    with location_for("postgres") as location:
        psycopg.connect(location.url("one")).close()
        assert location.url("one") == location.url("one")
        location.url("two")
    with quick().connect() as connection:
        names = connection.execute("SELECT datname FROM pg_database").fetchall()
    assert [name for (name,) in names if name.startswith(str(location))] == []


def test_a_small_scale_leaves_enough_to_measure() -> None:
    assert Scale(0.5).jobs(1000) == 500
    assert Scale(0.001).jobs(1000) == 20
    assert Scale(0.001).jobs(5) == 5
    assert Scale(0.001).seconds(120.0) == 1.0
