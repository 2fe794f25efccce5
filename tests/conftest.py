"""What all tests share."""

from __future__ import annotations

import functools
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that may share a fixture of their module run in one process: it is made once.

    xdist's own groups do nothing with pytest 9.2, which has no ``_nodeid`` to write them to. And
    after the death of a test process its scheduler hands out units that have nothing left to run,
    for which no report ever comes: the run would wait for it without end.
    """
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ModulesWithFixtures(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return path if _shares_fixtures(config.rootpath / path) else nodeid

        def remove_node(self, node: Any) -> str | None:
            units = self.assigned_work.pop(node)
            left = {
                scope: tests
                for scope, unit in units.items()
                if (tests := {test: False for test, is_done in unit.items() if not is_done})
            }
            if not left:
                return None
            scope = next(iter(left))
            killer = next(iter(left[scope]))
            del left[scope][killer]
            self.workqueue.update({scope: tests for scope, tests in left.items() if tests})
            for other in self.assigned_work:
                self._reschedule(other)
            return killer

        def _reschedule(self, node: Any) -> None:
            if node in self.registered_collections:  # a new one may not have collected yet
                super()._reschedule(node)

    return ModulesWithFixtures(config, log)


@functools.cache
def _shares_fixtures(module: Path) -> bool:
    return '(scope="module")' in module.read_text()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the time went: seconds per directory, in all test processes together."""
    seconds: dict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                directory = str(PurePath(report.nodeid.partition("::")[0]).parent)
                seconds[directory] += report.duration
                tests[directory] += report.when == "call"
    if len(seconds) > 1:
        terminalreporter.section("seconds per directory")
        for directory, total in sorted(seconds.items(), key=lambda each: -each[1]):
            terminalreporter.write_line(f"{total:8.1f}s {tests[directory]:6} {directory}")
