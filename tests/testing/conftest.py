"""What the tests of the test kit share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import Penstock


@pytest.fixture
def app() -> Iterator[Penstock]:
    """An application of its own, with nothing in its store at the end."""
    with Penstock("memory://") as app:
        yield app
        assert app.counts() == []
