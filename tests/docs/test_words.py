"""The documents use the words that an engineer who has never seen them would use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.pages import DOCS, README, name_of

UNNATURAL = {
    "whoever": "name the agent: the worker, the caller, the process that …",
    "somebody": "name the agent, or say that something was done",
    "mend": "repair, fix",
    "mended": "repaired, fixed",
    "dear": "expensive",
    "hiccup": "say what happened: was briefly away, was slow",
    "hiccuped": "say what happened: was briefly away, was slow",
    "time-out": "timeout",
    "time-outs": "timeouts",
    "is no address": "is not an address",
    "is no failure": "is not a failure",
    "is no error": "is not an error",
}
"""What is said instead, by the words that the documents do without."""

PAGES = sorted([README, *DOCS.rglob("*.md")])


def pattern(words: str) -> str:
    """Also where the phrase goes on in the next line."""
    return rf"(?<![\w-]){re.escape(words)}(?![\w-])".replace(r"\ ", r"\s+")


def test_a_phrase_is_found_across_lines() -> None:
    assert re.search(pattern("is no error"), "A repeated id is\nno error.")
    assert not re.search(pattern("dear"), "a near-dear word, endearing")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_in_plain_english(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text())
    found = {
        words: instead
        for words, instead in UNNATURAL.items()
        if re.search(pattern(words), text, re.IGNORECASE)
    }
    assert found == {}
