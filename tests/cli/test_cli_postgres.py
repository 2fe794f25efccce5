"""The commands on a PostgreSQL store, and what they say where there is none."""

from __future__ import annotations

import pytest

from cli.conftest import Shell
from cli.test_cli_store import NEXT, READERS
from servers.postgres import quick
from servers.ward import free_port

LOOKERS = [*READERS, ("explain", "x"), ("top", "--once")]


def schemas(url: str) -> int:
    """How many schemas a database holds that are not its own."""
    ours = "WHERE nspname NOT LIKE 'pg\\_%' AND nspname NOT IN ('public', 'information_schema')"
    with quick().connect(url.rpartition("/")[2]) as connection:
        row = connection.execute(f"SELECT count(*) FROM pg_namespace {ours}").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("command", LOOKERS, ids=" ".join)
def test_a_command_that_looks_makes_no_store(
    shell: Shell, postgres_url: str, command: tuple[str, ...]
) -> None:
    missing = shell(*command, "--url", f"{postgres_url}?schema=jobs")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err == (
        f"Error: there is no store at '{postgres_url}?schema=jobs' (from --url): "
        f"the database has no schema 'jobs' with one; {NEXT}"
    )
    assert schemas(postgres_url) == 0


def test_what_named_the_store_is_said(
    shell: Shell, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", postgres_url)
    assert (
        f"at '{postgres_url}' (from PENSTOCK_URL): the database has no schema 'penstock'"
        in shell("jobs", "list").err
    )


def test_a_checkup_makes_no_store(shell: Shell, postgres_url: str) -> None:
    found = shell("doctor", "--url", postgres_url)
    assert found.code == 1
    assert "there is no schema 'penstock' with a store in this database" in found.out
    assert schemas(postgres_url) == 0


def test_a_store_is_made_filled_and_looked_at(
    shell: Shell, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", postgres_url)
    assert shell("migrate", "--check").code == 1
    assert shell("enqueue", "shop.send", '{"to": "ada"}', "--id", "a", "--queue", "mail").code == 0
    assert shell("migrate", "--check").out.startswith(f"{postgres_url}: up to date, version ")
    assert [job["id"] for job in shell("jobs", "list", "--json").document["jobs"]] == ["a"]
    assert shell("queues", "pause", "mail", "--note", "later").out == "Queue mail paused.\n"
    assert "queue 'mail' is paused: later" in shell("explain", "a").out
    assert shell("top", "--once").out.startswith(f"{postgres_url}, ")
    assert shell("jobs", "cancel", "a").out.split() == ["ID", "OUTCOME", "a", "cancelled"]
    assert shell("jobs", "show", "a", "--json").document["state"] == "cancelled"
    assert shell("jobs", "retry", "a").out.split() == ["ID", "OUTCOME", "a", "retried"]
    assert shell("jobs", "purge", "--all", "--yes").out == "1 job deleted.\n"


@pytest.mark.parametrize(
    "command", [("jobs", "list"), ("enqueue", "x"), ("migrate",), ("top", "--once")]
)
def test_a_server_that_is_away_is_said_in_a_sentence(
    shell: Shell, command: tuple[str, ...]
) -> None:
    port = free_port()
    refused = shell(*command, "--url", f"postgresql://postgres:secret@127.0.0.1:{port}/shop")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "Error: postgresql cannot be reached: connection to server at "
        f'"127.0.0.1", port {port} failed: Connection refused; nothing is lost, try again\n'
    )


@pytest.mark.parametrize("command", [("jobs", "list"), ("enqueue", "x"), ("migrate",)])
def test_a_database_that_is_not_there_is_said_in_a_sentence(
    shell: Shell, command: tuple[str, ...]
) -> None:
    refused = shell(*command, "--url", quick().url("none_such"))
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.endswith(
        'database "none_such" does not exist; correct the user, the password or the database in '
        "the URL, or let this one in\n"
    )


def test_a_schema_of_another_program_is_no_store(shell: Shell, postgres_url: str) -> None:
    with quick().connect(postgres_url.rpartition("/")[2]) as connection:
        connection.execute("CREATE SCHEMA penstock CREATE TABLE live (x integer)")
    refused = shell("jobs", "list", "--url", postgres_url)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "Error: postgresql is damaged or no Penstock store: schema 'penstock' holds tables "
        "or functions of another program; name another schema: ?schema=NAME\n"
    )
