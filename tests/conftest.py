"""What all tests share."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the time went: seconds per directory, in all test processes together."""
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                directory = str(PurePath(report.nodeid.partition("::")[0]).parent)
                seconds[directory] += report.duration
                tests[directory] += report.when == "call"
    if len(seconds) > 1:
        terminalreporter.section("seconds per directory")
        for directory, total in seconds.most_common():
            terminalreporter.write_line(f"{total:8.1f}s {tests[directory]:6} {directory}")
