"""The reference is complete: what exists is in it, and what is in it exists."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import penstock
from docs.pages import DOCS
from penstock import Handle, Penstock, context, errors, events
from penstock.config import Settings
from penstock.core.job import TRANSITIONS, Change, Hold, OutcomeKind, State
from penstock.stores import POSTGRES

REFERENCE = DOCS / "reference"
LIFE = DOCS / "explanation/life-of-a-job.md"


def rows(page: Path, section: str = "") -> list[list[str]]:
    """The cells of every table of a page, or of one of its sections, without marks."""
    text = page.read_text()
    if section:
        text = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip(" `*") for cell in line[1:-1].split("|")] for line in lines]


def test_every_setting_is_in_the_reference() -> None:
    page = (REFERENCE / "configuration.md").read_text()
    for field in fields(Settings):
        assert f"| `{field.name}` | `PENSTOCK_{field.name.upper()}` |" in page


def test_every_option_of_a_url_is_in_the_reference() -> None:
    shown = "\n".join(row[0] for row in rows(REFERENCE / "configuration.md", "URLs"))
    for option in ("synchronous", "busy_timeout", *POSTGRES):
        assert f"?{option}=" in shown


def classes(module: object, kind: type) -> set[type]:
    return {
        each
        for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, kind) and not name.startswith("_")
    }


BASES = (errors.PenstockError, errors.UsageError, errors.JobError, errors.EngineError)


def test_every_error_has_a_meaning_and_a_next_step() -> None:
    known = (classes(errors, errors.PenstockError) | {context.NoContext}) - set(BASES)
    told = {row[0]: row for row in rows(REFERENCE / "errors.md")}
    assert set(told) - {"error"} == {each.__name__ for each in known}
    for each in known:
        name, kin, meaning, step = told[each.__name__]
        builtin = [base.__name__ for base in each.__mro__ if base.__module__ == "builtins"]
        assert (kin or "Exception") == builtin[0], name
        assert meaning, name
        assert step, name


def test_the_roots_of_errors_are_told_above_their_tables() -> None:
    page = (REFERENCE / "errors.md").read_text()
    for base in BASES:
        assert f"`{base.__name__}`" in page


def test_the_tree_in_the_docstring_has_every_error() -> None:
    drawn = set(re.findall(r"\w+", errors.__doc__ or ""))
    assert {each.__name__ for each in classes(errors, errors.PenstockError)} <= drawn


def test_the_life_of_a_job_is_told_as_it_is() -> None:
    told = {(row[0], row[1], row[2]) for row in rows(LIFE, "Every change") if row[0] != "from"}
    assert told == {(state, change, to) for (state, change), to in TRANSITIONS.items()}


def test_the_life_of_a_job_is_drawn_as_it_is() -> None:
    arrows = re.findall(r'data-from="(\w+)" data-by="([\w ]+)" data-to="(\w+)"', LIFE.read_text())
    drawn = [(state, change, to) for state, by, to in arrows for change in by.split()]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {(state, change, to) for (state, change), to in TRANSITIONS.items()}


def test_the_picture_names_every_state_and_every_change() -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", LIFE.read_text())
    words = set(re.findall(r"\w+", " ".join(texts)))
    assert {*State, *Change} <= words


@pytest.mark.parametrize(
    "section, words",
    [("States", State), ("Holds", Hold), ("Outcomes", OutcomeKind)],
    ids=["states", "holds", "outcomes"],
)
def test_the_glossary_has_every_word_of_the_model(section: str, words: type[State]) -> None:
    told = {row[0] for row in rows(REFERENCE / "glossary.md", section)[1:]}
    assert told == set(words)


def test_the_glossary_is_in_order() -> None:
    words = [row[0] for row in rows(REFERENCE / "glossary.md")]
    first = words[1 : words.index("state")]
    assert first == sorted(first)
    assert len(first) == len(set(first))


def test_every_event_is_drawn() -> None:
    page = (REFERENCE / "events.md").read_text()
    drawn = set(re.findall(r"\w+", page.split("```text", 1)[1].split("```", 1)[0]))
    assert drawn == {each.__name__ for each in classes(events, events.Event)}


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    told = set(re.findall(r"^::: penstock\.(\w+)$", pages, re.MULTILINE))
    told |= {row[0] for row in rows(REFERENCE / "errors.md")}
    told |= {each.__name__ for each in BASES}
    assert set(penstock.__all__) <= told


@pytest.mark.parametrize("kind", [Penstock, Handle])
def test_every_blocking_verb_is_in_the_reference(kind: type) -> None:
    told = {row[0]: row[1] for row in rows(REFERENCE / "application.md")}
    named = set(re.findall(r"\w+", told[kind.__name__]))
    twins = {name for name in dir(kind) if f"a{name}" in dir(kind) and name[0] != "_"}
    documented = {name for name in twins if _has_its_own_text(kind, name)}
    assert named == twins - documented


def _has_its_own_text(kind: type, name: str) -> bool:
    """It is written as a function of its own, and so has its own place in the reference."""
    blocking = inspect.getattr_static(kind, name)
    return "wrapper" not in repr(blocking) and not hasattr(blocking, "__wrapped__")
