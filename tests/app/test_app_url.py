"""URLs: which store they name, and what is said, without secrets, of those that name none."""

from __future__ import annotations

import os

import pytest

from penstock import Penstock
from penstock.errors import BadDuration, BadOption, MissingDriver, MissingEngine, UnknownScheme
from penstock.stores import Url, hidden, parse


@pytest.mark.parametrize(
    ("text", "scheme", "location", "options"),
    [
        ("memory://", "memory", "", {}),
        ("memory://tests", "memory", "tests", {}),
        ("sqlite:////var/lib/jobs.db", "sqlite", "/var/lib/jobs.db", {}),
        ("sqlite:////tmp/a%20b.db", "sqlite", "/tmp/a b.db", {}),
        ("sqlite:////tmp/j.db?synchronous=full", "sqlite", "/tmp/j.db", {"synchronous": "full"}),
        ("SQLite:////tmp/j.db", "sqlite", "/tmp/j.db", {}),
        ("postgres://u:p@host/db", "postgresql", "postgresql://u:p@host/db", {}),
        (
            "postgresql:///shop?schema=a%20b&sslmode=require&connections=2&application_name=x",
            "postgresql",
            "postgresql:///shop?sslmode=require&application_name=x",
            {"schema": "a b", "connections": "2"},
        ),
        (
            "postgresql:///shop?listen=false",
            "postgresql",
            "postgresql:///shop",
            {"listen": "false"},
        ),
        ("rediss://host", "redis", "", {}),
    ],
)
def test_a_url_names_a_store(text, scheme, location, options):
    assert parse(text) == Url(scheme, location, options, text)


def test_a_relative_file_stays_where_it_was_when_the_directory_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Penstock("sqlite:///jobs.db") as app:
        os.mkdir("below")
        monkeypatch.chdir(tmp_path / "below")
        app.enqueue("task")
    assert (tmp_path / "jobs.db").exists()


def test_apps_in_memory_share_a_store_only_by_name():
    with (
        Penstock("memory://shared-store") as first,
        Penstock("memory://shared-store") as second,
        Penstock("memory://") as third,
        Penstock("memory://") as fourth,
    ):
        first.enqueue("task")
        third.enqueue("task")
        assert len(second.counts()) == 1
        assert fourth.counts() == []


def test_a_store_in_memory_lives_on_when_its_app_is_closed():
    with Penstock("memory://that-stays") as app:
        app.enqueue("task")
        app.close()
        assert len(app.counts()) == 1


def test_a_file_can_be_as_safe_as_a_power_cut_asks(tmp_path):
    with Penstock(f"sqlite:///{tmp_path}/jobs.db?synchronous=full&busy_timeout=2s") as app:
        app.enqueue("task")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "mysql://me:secret@host/db",
            UnknownScheme,
            "'mysql://me:***@host/db' does not name an engine; a URL starts with one of memory://, "
            "sqlite:///, postgresql://",
        ),
        ("jobs.db", UnknownScheme, "'jobs.db' does not name an engine; a URL starts with one of"),
        ("", UnknownScheme, "'' does not name an engine; a URL starts with one of"),
        (
            "sqlite://jobs.db",
            BadOption,
            "url='sqlite://jobs.db': a file needs three slashes: sqlite:///relative.db, or "
            "sqlite:////absolute/path.db",
        ),
        (
            "sqlite:///",
            BadOption,
            "url='sqlite:///': it names no file; write sqlite:///jobs.db, or memory://",
        ),
        (
            "sqlite:///:memory:",
            BadOption,
            "url='sqlite:///:memory:': it names no file; write sqlite:///jobs.db, or memory://",
        ),
        (
            "sqlite:///a%00b",
            BadOption,
            "url='sqlite:///a%00b': a file name cannot contain NUL",
        ),
        (
            "sqlite:///jobs.db?sync=full",
            BadOption,
            "sync='full': a sqlite URL has no such option; it has synchronous, busy_timeout",
        ),
        (
            "sqlite:///jobs.db?synchronous=off",
            BadOption,
            "synchronous='off': give 'normal' or 'full'",
        ),
        (
            "sqlite:///jobs#2.db",
            BadOption,
            "url='sqlite:///jobs#2.db': it has a '#', which ends a URL; write it as %23",
        ),
        ("memory://[x", BadOption, "url='memory://[x': it cannot be read (Invalid IPv6 URL)"),
        (
            "sqlite:///x.db?password=hush",
            BadOption,
            "password='***': a sqlite URL has no such option; it has synchronous, busy_timeout",
        ),
        (
            "postgresql:///shop?connections=none",
            BadOption,
            "connections='none': give a whole number from 1 to 1000",
        ),
        (
            "postgresql:///shop?transactions=0",
            BadOption,
            "transactions='0': give a whole number from 1 to 1000",
        ),
        ("postgresql:///shop?listen=no", BadOption, "listen='no': give 'true' or 'false'"),
        (
            "postgresql:///shop?connect_timeout=soon",
            BadDuration,
            "'soon' is not a duration: connect_timeout has no number at 'soon'",
        ),
        (
            "postgresql:///shop?schema=pg_jobs",
            BadOption,
            "schema='pg_jobs': names with pg_ are PostgreSQL's own; give another",
        ),
        (
            "postgresql://me:secret@host/shop?conections=2",
            BadOption,
            "url='postgresql://me:***@host/shop?conections=2': invalid URI query parameter "
            "'conections'; a URL may have schema, connections, transactions, connect_timeout, "
            "listen, and the options of libpq",
        ),
        ("memory://?x=1", BadOption, "x='1': a memory URL has no such option; it has none"),
        (7, BadOption, "url=7: give text such as 'sqlite:///jobs.db'"),
    ],
)
def test_a_url_that_names_no_store_is_refused(text, kind, message):
    with pytest.raises(kind) as caught:
        Penstock(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("se%cret", "it cannot be read (invalid percent-encoded token)"),
        ("sec/ret", "its port is no number"),
        ("se@cret", "its host has an '@'"),
    ],
)
def test_a_password_that_was_not_escaped_is_said_but_not_shown(password, why):
    with pytest.raises(BadOption) as caught:
        Penstock(f"postgresql://me:{password}@host/db")
    assert str(caught.value) == (
        f"url='postgresql://me:***@host/db': {why}; "
        "in a user or a password, write : / ? # @ % as %3A %2F %3F %23 %40 %25"
    )
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "driver", "message"),
    [
        (
            "postgresql://me:secret@host/db",
            "psycopg",
            "postgresql:// needs a driver that is not installed: pip install 'penstock[postgres]'",
        ),
    ],
)
def test_an_engine_without_its_driver_says_what_to_install(monkeypatch, text, driver, message):
    monkeypatch.setattr("penstock.stores.find_spec", lambda name: None)
    with pytest.raises(MissingDriver) as caught:
        Penstock(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("is_installed", [True, False])
def test_an_engine_that_this_version_has_not_is_named(monkeypatch, is_installed):
    """Whether or not its driver is there: to install that would not help."""
    monkeypatch.setattr("penstock.stores.find_spec", lambda name: name if is_installed else None)
    with pytest.raises(MissingEngine) as caught:
        Penstock("redis://me:secret@host/db")
    assert str(caught.value) == (
        "this version of Penstock has no engine for redis:// yet; "
        "use one of memory://, sqlite:///, postgresql://"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("postgresql://me:se@cr/et://@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?password=secret&x=1", "postgresql://host/db?password=***&x=1"),
        ("redis://host?ssl_keyfile_Password=secret", "redis://host?ssl_keyfile_Password=***"),
        ("me:secret@host", "me:***@host"),
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
    ],
)
def test_no_secret_is_ever_shown(text, shown):
    assert hidden(text) == shown
