"""Every example of the documents runs, in order, as a reader would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import DOCS, PAGES, README, ROOT, blocks, commands, name_of
from docs.reading import read, run, shows, surroundings


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    """Its files are saved, its code runs, its commands show what it says they show."""
    read(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("kind", ["how-to", "reference", "explanation"])
def test_the_first_page_of_a_kind_leads_to_all_others(kind: str) -> None:
    first = DOCS / kind / "index.md"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", first.read_text()))
    assert linked == {page.name for page in first.parent.glob("*.md")} - {first.name}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_ours_is_never_shown_in_a_block_that_does_not_run(page: Path) -> None:
    for block in blocks(page, "sh", "bash", "shell"):
        assert not re.search(r"^(\$ )?(python|penstock)\b", block.body, re.MULTILINE), block.body


def test_a_page_that_shows_something_else_is_found_out() -> None:
    """The comparison has teeth: it knows words, lines, their order and their number."""
    shown = ["job   state", "a1    ready", "b2    failed"]
    assert shows(shown, shown)
    assert shows(["job state", "...", "b2 ..."], shown)
    assert shows(["b2 failed"], shown, whole=False)
    assert not shows(["job state", "a1 ready"], shown)
    assert not shows(["job state", "b2 failed", "a1 ready"], shown)
    assert not shows(["job state", "...", "b2 ready"], shown)


def test_a_command_is_told_from_what_it_shows(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- exits 3 -->\n```console\n$ a \\\n> b\nsaid\n$ c\n```\n")
    (block,) = blocks(page)
    assert block.code == 3
    assert [(each.typed, each.shown) for each in commands(block)] == [
        ("a \\\nb", ("said",)),
        ("c", ()),
    ]


@pytest.mark.parametrize(
    "wrong",
    ["$ echo right\nwrong", "$ false", "$ exit 1"],
    ids=["what it shows", "how it exits", "that it ends the shell"],
)
def test_a_page_that_is_wrong_fails(wrong: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```console\n{wrong}\n```\n")
    with pytest.raises(AssertionError):
        read(page, tmp_path)


def test_the_tour_of_the_readme_really_works(tmp_path: Path) -> None:
    shop, enqueue = blocks(README, "python")
    (tmp_path / "shop.py").write_text(shop.body)
    answer = run(
        f"{enqueue.body}\n"
        "from shop import app\n"
        "app.run_worker(until_empty=True)\n"
        "print(job.result(timeout=10), sorted((c.state.value, c.jobs) for c in app.counts()))",
        tmp_path,
    )
    assert answer.strip() == "sent to ada@example.com [('scheduled', 1), ('succeeded', 3)]"


def test_the_tour_of_the_readme_pleases_a_type_checker(tmp_path: Path) -> None:
    shop, enqueue = blocks(README, "python")
    (tmp_path / "shop.py").write_text(shop.body)
    (tmp_path / "enqueue.py").write_text(enqueue.body)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "shop.py", "enqueue.py"],
        cwd=tmp_path,
        env={**surroundings(), "MYPYPATH": os.fspath(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
