"""The site can be built without a warning, and be read without a network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import penstock
from docs.pages import DOCS
from penstock import events, testing


class Loads(HTMLParser):
    """What a browser fetches by itself for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.addresses.append(given.get("src") or "")
        if tag == "link" and given.get("rel") != "canonical":
            self.addresses.append(given.get("href") or "")


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md"))) - 1
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert [each for each in loads.addresses if re.match(r"(https?:)?//", each)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\W?https?:|@import", sheet.read_text()), sheet


def anchors(site: Path) -> set[str]:
    pages = (page.read_text() for page in (site / "reference").glob("*.html"))
    return {anchor for page in pages for anchor in re.findall(r'id="(penstock\.[\w.]+)"', page)}


def test_every_public_name_has_its_place(site: Path) -> None:
    """Errors have a table of their own; all else comes from its docstring."""
    known = anchors(site)
    told = [
        each
        for each in penstock.__all__
        if each not in ("errors", "events") and not hasattr(penstock.errors, each)
    ]
    assert {f"penstock.{each}" for each in told} <= known
    assert {f"penstock.testing.{each}" for each in testing.__all__} <= known
    kinds = [each for each in vars(events).values() if isinstance(each, type)]
    said = [each.__name__ for each in kinds if issubclass(each, events.Event)]
    assert {f"penstock.events.{each}" for each in said} <= known
    assert "penstock.events.Bus" in known


@pytest.mark.parametrize("verb", ["enqueue", "aresult", "apause", "afind", "run_worker", "retries"])
def test_what_it_can_do_has_its_place_too(site: Path, verb: str) -> None:
    assert any(anchor.endswith(f".{verb}") for anchor in anchors(site))
