"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from penstock.testing.clock import FakeClock

# A shell starts what runs in the background deaf to Ctrl-C, and so would be all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def clock():
    """A clock that moves only when the test says so."""
    return FakeClock()


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL database with nothing in it."""
    from servers.postgres import quick

    with quick().database() as url:
        yield url
