"""The way to a store: which one it is, and what is said if it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Shell

READERS = [
    ("jobs", "list"),
    ("jobs", "show", "x"),
    ("jobs", "retry", "x"),
    ("jobs", "purge", "--all"),
    ("queues", "list"),
    ("queues", "pause", "x"),
]
NEXT = (
    "name the store with --app, --url, PENSTOCK_APP, PENSTOCK_URL or url in penstock.toml; the "
    "first job or worker creates it\n"
)


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_a_command_that_looks_makes_no_store(
    shell: Shell, tmp_path: Path, command: tuple[str, ...]
) -> None:
    missing = shell(*command, "--url", "sqlite:///none.db")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err == (
        f"Error: there is no store at '{tmp_path}/none.db' (from --url): there is no such file; "
        + NEXT
    )
    assert list(tmp_path.iterdir()) == []


def test_what_named_the_store_is_said(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = shell("jobs", "list").err
    assert (
        f"at '{tmp_path}/penstock.db' (the default, because nothing names a store): there"
        in default
    )
    (tmp_path / "penstock.toml").write_text('url = "sqlite:///file.db"')
    assert f"at '{tmp_path}/file.db' (from the configuration file)" in shell("jobs", "list").err
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///environment.db")
    assert "/environment.db' (from PENSTOCK_URL)" in shell("jobs", "list").err
    assert "/given.db' (from --url)" in shell("jobs", "list", "--url", "sqlite:///given.db").err


def test_an_empty_file_is_no_store(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    refused = shell("jobs", "list", "--url", "sqlite:///empty.db")
    assert refused.code == 1
    assert "(from --url): the file is empty; name the store" in refused.err
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_a_file_that_is_something_else_is_no_store(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, but long enough to be looked into" * 20)
    refused = shell("jobs", "list", "--url", "sqlite:///text.db")
    assert refused.code == 1
    assert refused.err.startswith(f"Error: sqlite file '{tmp_path}/text.db' is damaged or no ")
    assert "Traceback" not in refused.err


def test_a_directory_is_no_store(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused = shell("jobs", "list", "--url", "sqlite:///folder")
    assert refused.code == 1
    assert f"at '{tmp_path}/folder' (from --url): it is a directory; name the store" in refused.err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "memory://",
            "url='memory://': it lives in one process, and this is another; name one to share: "
            "sqlite:///jobs.db",
        ),
        (
            "mysql://x",
            "'mysql://x' does not name an engine; a URL starts with one of memory://, "
            "sqlite:///, postgresql://",
        ),
        (
            "sqlite://jobs.db",
            "url='sqlite://jobs.db': a file needs three slashes: sqlite:///relative.db, or "
            "sqlite:////absolute/path.db",
        ),
    ],
)
@pytest.mark.parametrize("command", [("jobs", "list"), ("enqueue", "x"), ("migrate",)])
def test_a_url_that_cannot_be_meant_is_refused(
    shell: Shell, command: tuple[str, ...], url: str, message: str
) -> None:
    refused = shell(*command, "--url", url)
    assert (refused.code, refused.out, refused.err) == (2, "", f"Error: {message}\n")
