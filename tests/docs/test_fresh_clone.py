"""A newcomer with nothing but Python follows the README and the tutorial to the letter.

The repository is cloned, with what is about to be committed; a file that git does not know is not
there. Commands are typed into a shell as the pages have them: `make` and `pip` make new
environments, build the package and install it. There is no network in a test: what Penstock itself
needs is found in a directory of links to the packages of the present environment, without the
present Penstock. One thing is not as for a newcomer: `make test` only finds the tests instead of
running them, this one among them, and does not check the style.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from docs.pages import CAN_CLONE, README, ROOT, TUTORIAL
from docs.reading import read, surroundings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not CAN_CLONE, reason="no repository, or no way to make environments"),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory with a clone of the repository in it."""
    clone = tmp_path / "penstock"
    _git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone))
    for name in _git("diff", "--name-only", "--no-renames", "-z", "HEAD").split("\0"):
        changed, copy = ROOT / name, clone / name
        if changed.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(changed, copy)
        elif copy.is_file():
            copy.unlink()
    return tmp_path


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=100
    )
    return done.stdout


@pytest.fixture
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine that has this Python, and no network."""
    away = tmp_path_factory.mktemp("machine")
    packages, binaries = away / "packages", away / "bin"
    packages.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith(("penstock", "_editable_impl_penstock", "pip", "__pycache")):
            (packages / package.name).symlink_to(package)
    binaries.mkdir()
    python = binaries / "python3"
    python.write_text(f'#!/bin/sh\nexec "{_base_python()}" "$@"\n')
    python.chmod(0o755)
    environment = surroundings()
    ours, _, path = environment.pop("PATH").partition(os.pathsep)
    others = [each for each in path.split(os.pathsep) if each != ours]
    for name in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH"):
        environment.pop(name, None)
    return {
        **environment,
        "PATH": os.pathsep.join([str(binaries), *others]),
        "PYTHONPATH": str(packages),
        "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        # Read as the value of "build isolation", not of its absence.
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }


def _base_python() -> str:
    """The interpreter that the present environment was made with."""
    return str(getattr(sys, "_base_executable", sys.executable))


def test_the_readme_can_be_followed_in_a_fresh_clone(place: Path, newcomer: dict[str, str]) -> None:
    clone = place / "penstock"
    instead = {"make test": "make --old-file=check test WORKERS=0 ARGS='--collect-only -qq'"}
    # Its Python is for who has activated the environment, as the page says.
    own = f"{clone / '.venv/bin'}{os.pathsep}{newcomer['PATH']}"
    page = clone / README.name
    read(page, clone, newcomer, is_new=True, instead=instead, programs={**newcomer, "PATH": own})


def test_the_tutorial_can_be_followed_from_nothing(place: Path, newcomer: dict[str, str]) -> None:
    page = place / "penstock" / TUTORIAL.relative_to(ROOT)
    read(page, place, newcomer, is_new=True)
