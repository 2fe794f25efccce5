"""The built site, and the order in which the tests of the documents are run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let those that take longest begin first, so that several processes end together."""
    items.sort(key=lambda item: not (HERE in item.path.parents and item.get_closest_marker("slow")))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, or has just built it: one for all test processes."""
    if built := os.environ.get("PENSTOCK_SITE"):
        return ROOT / built
    if run := os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        place = tmp_path_factory.getbasetemp().parent / f"site-{run}"
    else:
        place = tmp_path_factory.mktemp("site") / "site"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _build(place)
    return place


def _build(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", f"{place}.part"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    Path(f"{place}.part").rename(place)
