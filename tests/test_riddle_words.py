"""The check that bans words which name no agent finds them where code is explained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "riddle_words.py"


def checked(folder: Path, name: str, text: str) -> tuple[int, list[str]]:
    (folder / name).write_text(text)
    run = subprocess.run([sys.executable, SCRIPT, folder], stdout=subprocess.PIPE, text=True)
    return run.returncode, [line.removeprefix(f"{folder}/") for line in run.stdout.splitlines()]


@pytest.mark.parametrize(
    "name, text, where",
    [
        ("a.py", '"""Whoever sleeps."""\n', "a.py:1: 'Whoever'"),
        ("a.py", 'x = 1\n"""What\nnobody reads."""\n', "a.py:3: 'nobody'"),
        ("a.py", "x = 1  # for somebody\n", "a.py:1: 'somebody'"),
        ("a.py", "x = 1\n# a worker who\n# sleeps\n", "a.py:2: 'who # sleeps'"),
        ("a.sql", "SELECT 1;\n-- who comes first\n", "a.sql:2: 'who comes'"),
    ],
)
def test_a_banned_word_is_told_with_its_line(
    tmp_path: Path, name: str, text: str, where: str
) -> None:
    advice = "name the agent: the worker, the caller, the leader, the connection"
    assert checked(tmp_path, name, text) == (1, [where, advice])


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.py", '"""The worker that sleeps."""\nTEXT = "nobody leads"\n'),
        ("a.py", "nobody_else = 1  # a name is no prose\n"),
        ("a.txt", "nobody"),
    ],
)
def test_what_users_read_and_names_are_left_alone(tmp_path: Path, name: str, text: str) -> None:
    assert checked(tmp_path, name, text) == (0, [])
