"""The order in which the tests of the documents are run."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let those that take longest begin first, so that several processes end together."""
    items.sort(key=lambda item: not (HERE in item.path.parents and item.get_closest_marker("slow")))
