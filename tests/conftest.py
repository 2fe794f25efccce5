"""What all tests share."""

from __future__ import annotations

import pytest

from penstock.testing.clock import FakeClock


@pytest.fixture
def clock():
    """A clock that moves only when the test says so."""
    return FakeClock()
