"""``penstock migrate``: from which version to which, and what a check says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from cli.conftest import Shell
from penstock.engines.postgres.schema import printed as schema_sql
from penstock.engines.postgres.schema import scripts
from penstock.engines.sql_files import migrations
from penstock.engines.sqlite.schema import APPLICATION_ID
from servers.ward import free_port

NEWEST = len(migrations("sqlite"))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store as the first version made it."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(migrations("sqlite")[0])
        connection.execute("PRAGMA user_version = 1")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return path


def test_a_check_says_what_is_to_be_done_and_does_nothing(shell: Shell, old: Path) -> None:
    for _ in range(2):
        checked = shell("migrate", "--check", "--url", "sqlite:///old.db")
        assert checked.code == 1
        told = f"sqlite:///{old}: out of date, to be migrated from version 1 to {NEWEST}.\n"
        assert (checked.out, checked.err) == (told, "")
    assert shell("migrate", "--check", "--json", "--url", "sqlite:///old.db").document == {
        "url": f"sqlite:///{old}",
        "from": 1,
        "to": NEWEST,
        "is": 1,
    }


def test_an_old_store_is_brought_up_to_date(shell: Shell, old: Path) -> None:
    done = shell("migrate", "--url", "sqlite:///old.db")
    assert (done.code, done.out) == (
        0,
        f"sqlite:///{old}: migrated from version 1 to {NEWEST}.\n",
    )
    again = shell("migrate", "--check", "--url", "sqlite:///old.db")
    assert (again.code, again.out) == (
        0,
        f"sqlite:///{old}: up to date, version {NEWEST}.\n",
    )
    assert shell("jobs", "list", "--url", "sqlite:///old.db").code == 0


def test_a_store_that_is_not_there_is_made_but_not_by_a_check(shell: Shell, tmp_path: Path) -> None:
    checked = shell("migrate", "--check", "--url", "sqlite:///new.db")
    told = f"sqlite:///{tmp_path}/new.db: does not exist yet, to be created, version {NEWEST}.\n"
    assert (checked.code, checked.out) == (1, told)
    assert list(tmp_path.iterdir()) == []
    made = shell("migrate", "--json", "--url", "sqlite:///new.db")
    assert (made.code, made.document) == (
        0,
        {"url": f"sqlite:///{tmp_path}/new.db", "from": 0, "to": NEWEST, "is": NEWEST},
    )


def test_a_store_of_a_later_version_is_refused(shell: Shell, old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("PRAGMA user_version = 999")
    for check in ((), ("--check",)):
        refused = shell("migrate", *check, "--url", "sqlite:///old.db")
        assert refused.code == 1
        assert refused.err == (
            f"Error: sqlite file {str(old)!r} has schema version 999, this Penstock needs "
            f"{NEWEST}; upgrade Penstock in this process\n"
        )


def test_the_database_of_another_program_is_refused(shell: Shell, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    refused = shell("migrate", "--url", "sqlite:///other.db")
    assert refused.code == 1
    assert "no Penstock store: the file is the database of another program" in refused.err


# --- PostgreSQL ---------------------------------------------------------------------------------


def test_the_sql_of_a_migration_is_printed_for_the_owner_to_run(
    shell: Shell, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        whole = shell("migrate", "--sql", "--url", postgres_url)
        assert (whole.code, whole.err) == (0, "")
        assert shell("migrate", "--check", "--url", postgres_url).code == 1

        connection.execute(scripts("penstock")[0].encode())
        rest = shell("migrate", "--sql", "--url", postgres_url)
        assert "schema penstock: version 2\n" in rest.out
        assert "schema penstock: version 1\n" not in rest.out
        connection.execute(rest.out.encode())

    newest = len(migrations("postgres"))
    told = f"{postgres_url}: up to date, version {newest}"
    done = shell("migrate", "--check", "--url", postgres_url)
    assert (done.code, done.out) == (0, f"{told}.\n")
    nothing = shell("migrate", "--sql", "--url", postgres_url)
    assert (nothing.code, nothing.out) == (0, f"-- {told}\n")


def test_the_sql_names_the_schema_of_the_url(shell: Shell, postgres_url: str) -> None:
    printed = shell("migrate", "--sql", "--url", f"{postgres_url}?schema=jobs")
    assert "CREATE TABLE jobs.live (" in printed.out
    assert "penstock." not in printed.out
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(printed.out.encode())
    assert shell("migrate", "--check", "--url", f"{postgres_url}?schema=jobs").code == 0
    assert shell("migrate", "--check", "--url", postgres_url).code == 1


def test_without_a_server_all_the_steps_are_printed(shell: Shell) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    printed = shell("migrate", "--sql", "--url", url)
    assert printed.code == 0
    assert printed.out == schema_sql("penstock")
    assert "printing all steps, for a store that does not exist yet" in printed.err
    assert shell("migrate", "--url", url).code == 1


def test_a_store_in_a_file_is_not_made_by_sql(shell: Shell) -> None:
    refused = shell("migrate", "--sql", "--url", "sqlite:///new.db")
    assert refused.code != 0
    assert "a sqlite store is not made by SQL alone; run it without --sql" in refused.err
    alone = shell("migrate", "--sql", "--check", "--url", "sqlite:///new.db")
    assert alone.code != 0
    assert "it prints SQL only; leave out --check and --json" in alone.err
