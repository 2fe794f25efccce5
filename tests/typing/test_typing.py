"""The public API as type checkers see it: right use passes, each wrong call is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT = HERE / "right_use.py"
WRONG = HERE / "wrong_use.py.txt"


def mypy(file: Path, cache: Path) -> set[int]:
    """The lines to which mypy, at its strictest, objects."""
    options = ("--strict", "--no-error-summary", "--output=json", "--config-file=")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, f"--cache-dir={cache}", str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
    )
    assert done.stderr == ""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["line"] for each in found if each["file"].endswith(file.name)}


def basedpyright(file: Path, _cache: Path) -> set[int]:
    """The lines to which basedpyright objects; its mere advice does not count."""
    options = ("--outputjson", "--level=error", f"--pythonpath={sys.executable}")
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", *options, str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}


def marked_lines(file: Path) -> set[int]:
    lines = file.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


@pytest.mark.parametrize("checker", [mypy, basedpyright])
def test_right_use_passes(checker, tmp_path):
    assert checker(RIGHT, tmp_path) == set()


@pytest.mark.parametrize("checker", [mypy, basedpyright])
def test_each_wrong_call_is_found_on_its_line(checker, tmp_path):
    file = tmp_path / "wrong_use.py"
    file.write_text(WRONG.read_text())
    assert checker(file, tmp_path) == marked_lines(WRONG)
