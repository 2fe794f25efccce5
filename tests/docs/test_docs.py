"""Every example of the documents runs, in order, as a reader would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from docs.pages import CAN_CLONE, DOCS, PAGES, README, ROOT, TUTORIAL, blocks, commands, name_of
from docs.reading import read, run, shows, surroundings
from docs.serving import served
from penstock.cli import program

# In a fresh clone the tutorial is followed with all that comes before it, so not here once more.
# Those with the most to do come first: the last one must not be the longest.
FOLLOWED = sorted(
    set(PAGES) - ({TUTORIAL} if CAN_CLONE else set()),
    key=lambda page: (-sum(map(len, map(commands, blocks(page, "console")))), page),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_a_page_can_be_followed(page: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its files are saved, its code runs, its commands show what it says they show.

    The folder has a short name: no line with its path is to be wrapped.
    """
    with served(page) as environment:
        read(page, tmp_path_factory.mktemp("page"), environment)


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


LANGUAGES = {"python", "console", "sh", "ini", "dockerfile", "yaml", "toml", "text"}
"""Of blocks: what is none of these is overlooked by the tests, or not shown well on the site."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_ours_is_never_shown_in_a_block_that_does_not_run(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language}"
        if block.language in ("sh", "text"):
            assert not re.search(r"(^|/|\s)(python|penstock)\s", block.body), block.body


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """One that does not is no block for the tests."""
    fences = re.findall(r"^ *(?:```|~~~)", page.read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(list(blocks(page)))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_to_be_installed_exists(page: Path) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"penstock\[([\w,-]+)\]", page.read_text()):
        assert set(extras.split(",")) <= set(known["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_in_a_sentence_exists(page: Path) -> None:
    """Also those that are only named: their options are known."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for said in re.findall(r"`penstock ([^`]+)`", text):
        _check_command(said)


def _check_command(said: str) -> None:
    """A name in capitals or an ellipsis stands for something; so does what is in brackets."""
    words = [word for word in said.replace("…", "").split() if word[0] not in "[("]
    command: Any = typer.main.get_command(program.app)
    while words and words[0] in getattr(command, "commands", ()):
        command = command.get_command(None, words.pop(0))
    known = {"--help", "--version", "--install-completion", "--show-completion"}
    known |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert not getattr(command, "commands", ()) or not words or words[0] in known, said
    given = {word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1}
    assert given <= known, f"penstock {said}"


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
    [
        "console\n$ echo right\nwrong",
        "console\n$ echo said",
        "console\n$ false",
        "console\n$ exit 1",
        "python\nassert 0",
        "python\n# shop.py\nassert 0",
        "python\n# shop.py\nassert 0\n```\n\n```python\n# shop.py\n```\n\n```python\nimport shop",
    ],
    ids=[
        "what it shows",
        "that it shows nothing",
        "how it exits",
        "that it ends the shell",
        "what it asserts",
        "a file that nothing uses",
        "a file that is replaced before it is used",
    ],
)
def test_a_page_that_is_wrong_fails(wrong: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```{wrong}\n```\n")
    with pytest.raises(AssertionError):
        read(page, tmp_path)


@pytest.mark.parametrize(
    "wrong", ["worker --proceses 2", "job list", "jobs lst", "jobs list --sate x"]
)
def test_a_command_that_does_not_exist_is_found_out(wrong: str) -> None:
    with pytest.raises(AssertionError):
        _check_command(wrong)


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
