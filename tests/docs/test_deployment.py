"""What the pages on deployment tell an operator to write is right."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer.main

from docs.pages import DOCS, Block, blocks
from penstock.cli.program import app
from penstock.core.units import seconds
from penstock.engines.sqlite.engine import SqliteEngine
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervisor.replica import LINGER

SYSTEMD = DOCS / "how-to/deploy-systemd.md"
CONTAINERS = DOCS / "how-to/deploy-containers.md"
BUSY = signature(SqliteEngine).parameters["busy_timeout"].default
STOPS_WITHIN = WorkerSettings().drain + WorkerSettings().grace + LINGER + BUSY
"""Seconds after which a worker with the usual settings has ended, whatever runs, and even if
another process keeps it from writing.
"""


def named(page: Path, name: str) -> Block:
    (found,) = [block for block in blocks(page) if block.file_name == name]
    return found


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """The options of a worker's command line, read by the command itself."""
    penstock, worker, *rest = words
    assert (Path(penstock).name, worker) == ("penstock", "worker")
    command: Any = typer.main.get_command(app)
    worker_command = command.get_command(None, "worker")
    options: dict[str, Any] = worker_command.make_context("worker", rest).params
    return options


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(named(SYSTEMD, "penstock-worker.service").body)
    return parser


def test_the_unit_starts_a_worker_that_understands_it(unit: configparser.ConfigParser) -> None:
    options = parsed(shlex.split(unit["Service"]["ExecStart"]))
    assert options["app"] == "shop:app"
    assert options["log_format"] == "json"
    assert unit["Service"]["Environment"].startswith("PENSTOCK_URL=sqlite:////")


def test_systemd_waits_for_longer_than_a_worker_needs_to_stop(
    unit: configparser.ConfigParser,
) -> None:
    assert float(unit["Service"]["TimeoutStopSec"]) > STOPS_WITHIN


def test_systemd_never_gives_up(unit: configparser.ConfigParser) -> None:
    """Code that does not load ends five times in ten seconds; then it would."""
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """On a machine where the shop is installed, which is made up here."""
    command = tmp_path / ".venv/bin/penstock"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / "penstock-worker.service"
    body = named(SYSTEMD, "penstock-worker.service").body.replace("/srv/shop", str(tmp_path))
    unit.write_text(body.replace("User=shop\n", "User=root\n"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    # It also loads units of this machine; what is wrong with those is not our business.
    said = [line for line in done.stderr.splitlines() if unit.name in line or str(unit) in line]
    assert said == []


def test_the_image_starts_a_worker_that_understands_it() -> None:
    (line,) = [
        line
        for line in named(CONTAINERS, "Dockerfile").body.splitlines()
        if line.startswith("CMD ")
    ]
    assert parsed(json.loads(line.removeprefix("CMD ")))["processes"] == 2


def test_compose_starts_a_worker_that_understands_it_and_waits_for_its_end() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load(named(CONTAINERS, "compose.yaml").body)["services"]
    assert parsed(services["worker"]["command"])["app"] == "shop:app"
    assert seconds(services["worker"]["stop_grace_period"]) > STOPS_WITHIN
    assert services["web"]["volumes"] == services["worker"]["volumes"]


def test_the_image_has_every_module_that_is_started_in_it() -> None:
    yaml = pytest.importorskip("yaml")
    lines = named(CONTAINERS, "Dockerfile").body.splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    services = yaml.safe_load(named(CONTAINERS, "compose.yaml").body)["services"].values()
    started = [word for each in services for word in each["command"] if re.match(r"[a-z_]+:", word)]
    assert started == ["shop_web:web", "shop:app"]
    for module in started:
        assert any(fnmatch(f"{module.partition(':')[0]}.py", pattern) for pattern in copied), module


@pytest.mark.parametrize("page", [SYSTEMD, CONTAINERS], ids=lambda page: page.stem)
def test_the_pages_say_how_long_stopping_takes(page: Path) -> None:
    settings = WorkerSettings()
    text = page.read_text()
    assert f"`--drain` ({settings.drain:g} s), `--grace` ({settings.grace:g} s)" in text
