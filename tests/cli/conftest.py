"""Commands run here: what they print, what they exit with."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.program import run

TIME = re.compile(r'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"')
PROCESS = re.compile(r'"[^"\s]+:\d+"')


@dataclass(frozen=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON that it printed."""
        return json.loads(self.out)

    @property
    def steady(self) -> Any:
        """The same without what differs from run to run."""
        return json.loads(PROCESS.sub('"PROCESS"', TIME.sub('"TIME"', self.out)))


Shell = Callable[..., Answer]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def shell(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs ``penstock`` with some arguments in an empty directory, as if its output was a file."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str, stdin: str = "", **environment: str) -> Answer:
        capsys.readouterr()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(sys, "stdin", io.StringIO(stdin))
            for name, value in environment.items():
                meanwhile.setenv(name, value)
            code = run(arguments)
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return call


@pytest.fixture
def store(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The same, with a store named in the environment that has one job, ``mine``."""
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///jobs.db")
    assert shell("enqueue", "shop.send", '{"to": "ada"}', "--id", "mine", "--tag", "a").code == 0
    return shell
