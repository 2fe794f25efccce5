"""The map of the code in CONTRIBUTING.md names only files that are there."""

from __future__ import annotations

import re
from pathlib import Path

from docs.pages import ROOT

SOURCE = ROOT / "src" / "penstock"
ENGINES = ("sqlite", "postgres")
FILE = re.compile(r"`([\w/]+\.(?:py|sql))`")


def section(title: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def missing(names: set[str], *folders: Path) -> set[str]:
    return {name for name in names if not any((folder / name).exists() for folder in folders)}


def test_every_file_on_the_way_of_a_job_is_there() -> None:
    text = section("How a job travels")
    each = {name for line in text.splitlines() if "of each engine" in line for name in _files(line)}
    assert each
    assert missing(_files(text) - each, SOURCE) == set()
    for engine in ENGINES:
        assert missing(each, SOURCE / "engines" / engine) == set()


def test_the_picture_shows_files_that_the_table_names() -> None:
    text = section("How a job travels")
    picture = text.split("```")[1]
    names = set(re.findall(r"\w+\.py", picture))
    assert names <= {Path(name).name for name in _files(text)}


def test_every_file_of_the_postgresql_engine_that_is_named_is_there() -> None:
    names = _files(section("How to find your way in the PostgreSQL engine"))
    engine, sql = SOURCE / "engines" / "postgres", SOURCE / "engines" / "sql" / "postgres"
    assert len(names) > 10
    assert missing(names, engine, sql, ROOT) == set()


def _files(text: str) -> set[str]:
    return set(FILE.findall(text))
