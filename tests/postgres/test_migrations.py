"""How the schema of a PostgreSQL store is made and brought up to date, whoever does it and when."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from conformance.steps import claim, elect, put, stored
from penstock.engines import changes
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.schema import check_server, newest, printed, scripts
from penstock.errors import (
    BadOption,
    EngineCorrupt,
    EngineUnavailable,
    EngineUnsuitable,
    SchemaMismatch,
)
from servers.postgres import quick

PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""

OPEN = """
import asyncio, sys
from penstock.engines.postgres.engine import PostgresEngine

async def main():
    engine = PostgresEngine(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await engine.open()
    await engine.close()

asyncio.run(main())
"""


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def make(connection: psycopg.Connection[Any], version: int, schema: str = "penstock") -> None:
    """A store as an older version of Penstock has left it."""
    for script in scripts(schema)[:version]:
        connection.execute(script.encode())


def versions(connection: psycopg.Connection[Any], schema: str = "penstock") -> list[int]:
    rows = connection.execute(f"SELECT version FROM {schema}.migration ORDER BY 1".encode())
    return [version for (version,) in rows]


def things(connection: psycopg.Connection[Any], schema: str = "penstock") -> set[Any]:
    """All tables, views, sequences, indexes and functions of a schema, with who may do what."""
    return set(
        connection.execute(
            """
            SELECT relname::text, relkind::text, coalesce(relacl::text, '') FROM pg_class
             WHERE relnamespace = to_regnamespace(%(schema)s)
            UNION ALL
            SELECT proname::text || pg_get_function_arguments(oid), 'f', coalesce(proacl::text, '')
              FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s)
            """,
            {"schema": schema},
        )
    )


async def opened(url: str, **options: Any) -> PostgresEngine:
    engine = PostgresEngine(url, **options)
    await engine.open()
    return engine


# --- one after the other ------------------------------------------------------------------------


async def test_every_version_is_brought_up_to_date(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    found = []
    for version in range(newest()):
        admin.execute("DROP SCHEMA IF EXISTS penstock CASCADE")
        make(admin, version)
        engine = await opened(postgres_url)
        try:
            assert versions(admin) == list(range(1, newest() + 1))
            assert (await engine.migrate(check=True)).found == newest()
            id = await put(engine)
            assert [job.id for job in await claim(engine)] == [id]
        finally:
            await engine.close()
        found.append(things(admin))
    assert all(each == found[0] for each in found)


async def test_what_is_printed_does_the_same(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    await (await opened(postgres_url)).close()
    expected = things(admin)
    for version in range(newest()):
        admin.execute("DROP SCHEMA penstock CASCADE")
        make(admin, version)
        admin.execute(printed("penstock", version).encode())
        assert things(admin) == expected
        assert versions(admin) == list(range(1, newest() + 1))


def test_what_is_printed_changes_nothing_the_second_time(admin: psycopg.Connection[Any]) -> None:
    admin.execute(printed("penstock").encode())
    before = things(admin)
    with pytest.raises(psycopg.errors.DuplicateTable):
        admin.execute(printed("penstock").encode())
    admin.execute("ROLLBACK")
    assert things(admin) == before


async def test_a_migration_of_what_is_up_to_date_only_makes_days(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    engine = await opened(postgres_url)
    with closing(admin):
        before = things(admin)
        ((name,),) = admin.execute(
            "SELECT max(relname) FROM pg_class WHERE relname ~ '^history_[0-9]+$'"
        ).fetchall()
        admin.execute(f"DROP TABLE penstock.{name}".encode())
        assert (await engine.migrate()).newest == newest()
        assert things(admin) == before
    await engine.close()


# --- all at once --------------------------------------------------------------------------------


def test_of_many_processes_one_works_and_the_others_find_it_done(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, postgres_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert errors == [""] * len(processes)
    assert {process.returncode for process in processes} == {0}
    assert versions(admin) == list(range(1, newest() + 1))


def test_a_migration_waits_for_the_one_before_it(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    make(admin, newest() - 1)
    with admin.transaction():
        admin.execute("SELECT pg_advisory_xact_lock(hashtext('penstock.migration'), 1)")
        other = threading.Thread(target=lambda: asyncio.run(made(postgres_url)))
        other.start()
        until_waiting(postgres_url, "advisory")
        admin.execute(scripts("penstock", newest() - 1)[0].encode())
    other.join(PATIENCE)
    assert not other.is_alive()
    assert versions(admin) == list(range(1, newest() + 1))


async def made(url: str) -> None:
    await (await opened(url)).close()


def until_waiting(url: str, kind: str) -> int:
    """Wait until a backend waits for a lock of this kind; return its process id."""
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND wait_event = %s",
                (kind,),
            ).fetchall()
            if rows:
                return int(rows[0][0])
    raise AssertionError(f"nobody waits for a lock of kind {kind}")


@pytest.mark.parametrize("number", range(2, newest() + 1))
def test_a_killed_step_leaves_nothing_half(
    postgres_url: str, admin: psycopg.Connection[Any], number: int
) -> None:
    """It is stopped at its very last statement, which notes that it was done."""
    make(admin, number - 1)
    before = things(admin)
    ends: list[BaseException] = []

    def migrate() -> None:
        try:
            asyncio.run(made(postgres_url))
        except EngineUnavailable as error:
            ends.append(error)

    with psycopg.connect(postgres_url) as blocker:
        # The steps before this one are in; a note of it has to wait.
        blocker.execute("LOCK TABLE penstock.migration IN SHARE MODE")
        other = threading.Thread(target=migrate)
        other.start()
        admin.execute("SELECT pg_terminate_backend(%s)", (until_waiting(postgres_url, "relation"),))
        other.join(PATIENCE)
    assert len(ends) == 1
    assert things(admin) == before
    assert versions(admin) == list(range(1, number))
    asyncio.run(made(postgres_url))
    assert versions(admin) == list(range(1, newest() + 1))


# --- what does not fit --------------------------------------------------------------------------


async def test_an_older_penstock_refuses_a_newer_schema(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    await made(postgres_url)
    admin.execute("INSERT INTO penstock.migration VALUES (99, 0)")
    with pytest.raises(SchemaMismatch) as caught:
        await opened(postgres_url)
    assert str(caught.value) == (
        f"postgresql has schema version 99, this Penstock needs {newest()}; "
        "upgrade Penstock in this process"
    )


@pytest.fixture
def guest(admin: psycopg.Connection[Any]) -> Iterator[str]:
    """A role that may read which version there is, and change nothing."""
    name = f"guest_{uuid.uuid4().hex[:12]}"
    admin.execute(f"CREATE ROLE {name} LOGIN".encode())
    yield name
    admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


async def test_a_role_that_may_not_migrate_says_who_may(
    postgres_url: str, admin: psycopg.Connection[Any], guest: str
) -> None:
    url = postgres_url.replace("postgres@", f"{guest}@")
    with pytest.raises(SchemaMismatch) as caught:
        await opened(url)
    assert str(caught.value) == (
        f"postgresql has no schema yet, this Penstock needs {newest()}; "
        "run 'penstock migrate' as the owner of the store"
    )
    make(admin, newest() - 1)
    admin.execute(
        f"GRANT USAGE ON SCHEMA penstock TO {guest};"
        f"GRANT SELECT ON penstock.migration TO {guest}".encode()
    )
    with pytest.raises(SchemaMismatch) as caught:
        await opened(url)
    assert str(caught.value) == (
        f"postgresql has schema version {newest() - 1}, this Penstock needs {newest()}; "
        "run 'penstock migrate' as the owner of the store"
    )
    await made(postgres_url)
    admin.execute("SELECT penstock.allow(%s, 'work')", (guest,))
    await made(url)


async def test_a_database_that_is_not_in_utf8_is_refused() -> None:
    server = quick()
    name = server.new_database("ENCODING 'LATIN1' LOCALE 'C'")
    try:
        with pytest.raises(EngineUnsuitable) as caught:
            await opened(server.url(name))
    finally:
        server.drop_database(name)
    assert str(caught.value) == (
        "postgresql cannot hold a store: the database has the encoding LATIN1; "
        "make one with CREATE DATABASE ... ENCODING 'UTF8'"
    )


def test_a_server_that_is_too_old_is_refused() -> None:
    check_server(140_000, "UTF8")
    with pytest.raises(EngineUnsuitable) as caught:
        check_server(130_014, "UTF8")
    assert str(caught.value) == (
        "postgresql cannot hold a store: the server is PostgreSQL 13; use version 14 or later"
    )


@pytest.mark.parametrize("name", ["", "Jobs", "a-b", "1a", 'a"b', "a.b", "x" * 42])
def test_a_schema_that_would_have_to_be_quoted_is_refused(postgres_url: str, name: str) -> None:
    with pytest.raises(BadOption, match="schema"):
        PostgresEngine(postgres_url, schema=name)


def test_the_schema_of_everybody_is_refused(postgres_url: str) -> None:
    with pytest.raises(BadOption) as caught:
        PostgresEngine(postgres_url, schema="public")
    assert str(caught.value) == (
        "schema='public': all programs share it, and rights are given to all of it; give the store "
        "a schema of its own"
    )


@pytest.mark.parametrize(
    "other",
    ["TABLE app.orders ()", "FUNCTION app.total() RETURNS integer LANGUAGE sql AS 'SELECT 1'"],
)
async def test_a_schema_in_which_others_live_is_left_alone(
    admin: psycopg.Connection[Any], postgres_url: str, other: str
) -> None:
    """A worker's role would have all rights to their tables, and nobody any to their functions."""
    admin.execute("CREATE SCHEMA app")
    admin.execute(f"CREATE {other}".encode())
    before = things(admin, "app")
    with pytest.raises(EngineCorrupt, match="'app' holds tables or functions of another program"):
        await opened(postgres_url, schema="app")
    assert things(admin, "app") == before


# --- two stores in one database -----------------------------------------------------------------


async def test_two_schemas_do_not_disturb_each_other(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    here = await opened(postgres_url)
    there = await opened(postgres_url, schema="other_jobs")
    try:
        for engine in (here, there):
            await put(engine, "same", unique="same", remember=1000.0)
        assert [job.id for job in await claim(here, want=5)] == ["same"]
        assert (await stored(there, "same")).attempt == 0
        await changes.cancel(there, ["same"], "no")
        assert (await stored(here, "same")).cancel_reason is None
        assert len(await here.workers()) == 1
        assert await there.workers() == []
        assert await elect(here, "a", 10.0)
        assert await elect(there, "b", 10.0)
    finally:
        await here.close()
        await there.close()
    ours, theirs = things(admin), things(admin, "other_jobs")
    assert {name for name, *_ in ours} == {
        name.replace("other_jobs.", "penstock.") for name, *_ in theirs
    }


def test_a_wake_up_is_heard_in_its_own_schema_only(admin: psycopg.Connection[Any]) -> None:
    for schema in ("penstock", "other_jobs"):
        admin.execute(printed(schema).encode())
    admin.execute('LISTEN "penstock.wake"')
    admin.execute("INSERT INTO other_jobs.job (id, task) VALUES ('there', 't')")
    assert list(admin.notifies(timeout=0)) == []
    admin.execute("INSERT INTO penstock.job (id, task) VALUES ('here', 't')")
    (heard,) = admin.notifies(timeout=PATIENCE, stop_after=1)
    assert heard.channel == "penstock.wake"
    for schema, id in (("penstock", "here"), ("other_jobs", "there")):
        found = admin.execute(f"SELECT id FROM {schema}.job".encode()).fetchall()
        assert found == [(id,)]


def test_locks_of_one_schema_are_not_those_of_another(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    for schema in ("penstock", "other_jobs"):
        admin.execute(printed(schema).encode())
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT penstock.try_queue('q')")
        locks = ("penstock", False), ("other_jobs", True)
        for schema, expected in locks:
            found = admin.execute(f"SELECT {schema}.try_queue('q')".encode()).fetchall()
            assert found == [(expected,)]


def test_roles_are_allowed_in_one_schema_only(
    admin: psycopg.Connection[Any], guest: str, postgres_url: str
) -> None:
    for schema in ("penstock", "other_jobs"):
        admin.execute(printed(schema).encode())
    admin.execute("SELECT other_jobs.allow(%s, 'enqueue')", (guest,))
    with psycopg.connect(postgres_url.replace("postgres@", f"{guest}@"), autocommit=True) as role:
        role.execute("INSERT INTO other_jobs.job (task) VALUES ('t')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute("INSERT INTO penstock.job (task) VALUES ('t')")
