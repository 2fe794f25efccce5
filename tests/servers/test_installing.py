"""A server that is not there is installed, or it is said what to install; none is passed over."""

from __future__ import annotations

import pytest

from servers import installing
from servers.programs import INITDB, PGBOUNCER, POSTGRES, Program

ABSENT = Program("no-such-server", "no-such-package")
ALSO_ABSENT = Program("no-such-tool", "no-such-package")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was to be installed; it never works."""
    asked: list[list[str]] = []

    def fail(packages: list[str]) -> bool:
        asked.append(packages)
        return False

    monkeypatch.setattr(installing, "install", fail)
    return asked


def test_with_everything_there_nothing_is_installed(asked, monkeypatch, tmp_path) -> None:
    program = tmp_path / "here"
    program.touch(0o755)
    here = Program("here", "package", (str(tmp_path.relative_to("/")),))
    monkeypatch.setattr(installing, "NEEDED", (here,))
    assert installing.main() == 0
    assert asked == []


def test_each_missing_package_is_asked_for_once(asked, monkeypatch, capsys) -> None:
    monkeypatch.setattr(installing, "NEEDED", (ABSENT, ALSO_ABSENT))
    assert installing.main() == 1
    assert asked == [["no-such-package"]]
    assert capsys.readouterr().err == (
        "Could not. Install them yourself, then run make again:\n"
        "  Debian, Ubuntu: sudo apt-get install no-such-package\n"
        "  elsewhere: PostgreSQL 14 or newer and PgBouncer, with their programs on the PATH\n"
    )


def test_every_server_of_the_tests_is_asked_for() -> None:
    assert {INITDB, POSTGRES, PGBOUNCER} <= set(installing.NEEDED)
