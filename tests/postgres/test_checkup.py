"""Every finding about a PostgreSQL store, provoked on a real server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from conformance.steps import enqueue_jobs
from penstock.clock import SystemClock
from penstock.core.finding import Finding, Level
from penstock.core.job import KEEP
from penstock.doctor import Expected, examine
from penstock.engines.postgres import checkup, schema, table_checks
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.probe import Probe
from penstock.engines.postgres.rows import Row
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres, count_now, quick
from servers.ward import free_port

EXPECTED = Expected(lease=15.0, keep_finished=604_800.0)
DAY = 86_400.0

CROWD = """
INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, payload)
SELECT n, n, 5, 0, 'crowd-' || n, 'work', 'default', 'ready', '' FROM generate_series(1, 3000) AS n
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One that writes to disk, as people run it."""
    with Postgres(max_prepared_transactions="2") as server:
        yield server


@pytest.fixture(scope="module")
def model(server: Postgres) -> str:
    """The name of a database with a store in it that nobody uses."""

    async def make() -> None:
        engine = PostgresEngine(server.url(name))
        await engine.open()
        await engine.close()

    name = server.new_database()
    asyncio.run(make())
    return name


class Store:
    """A healthy store of its own, and a person who can do anything to it."""

    numbers = itertools.count()

    def __init__(self, server: Postgres, model: str) -> None:
        self.server = server
        self.name = f"checked_{next(self.numbers)}"
        with server.connect() as connection:
            connection.execute(f"CREATE DATABASE {self.name} TEMPLATE {model}".encode())
        self.url = server.url(self.name)

    def run(self, *statements: str) -> list[Any]:
        """Each by itself; the server has counted what was done."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            found = cursor.fetchall() if cursor.description else []
            count_now(connection)
            return found

    async def checkup(
        self, *, role: str = "postgres", thorough: bool = False, **options: Any
    ) -> list[Finding]:
        url = self.url.replace("postgres@", f"{role}@")
        return await PostgresEngine(url, **options).checkup(thorough=thorough)

    async def told(self, check: str, **how: Any) -> list[tuple[str, str, str | None]]:
        """What a check says: level, text and next step."""
        found = await self.checkup(**how)
        return [(each.level, each.text, each.next_step) for each in found if each.check == check]


@pytest.fixture
def store(server: Postgres, model: str) -> Iterator[Store]:
    store = Store(server, model)
    yield store
    server.drop_database(store.name)


@pytest.fixture
def role(server: Postgres) -> Iterator[str]:
    """A role that may do nothing."""
    with server.connect() as connection:
        connection.execute("CREATE ROLE stranger LOGIN")
        yield "stranger"
        databases = connection.execute(
            "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate"
        ).fetchall()
        for (name,) in databases:
            with server.connect(name) as inside:
                inside.execute("DROP OWNED BY stranger")
        connection.execute("DROP ROLE stranger")


# --- is it there --------------------------------------------------------------------------------


async def test_a_healthy_store_has_nothing_wrong(store: Store) -> None:
    found = await store.checkup()
    assert {each.check: each.level for each in found} == dict.fromkeys(
        [
            *("server", "schema", "permissions", "durability", "isolation", "connections"),
            *("vacuum", "horizon", "indexes", "days", "wake_up"),
        ],
        Level.OK,
    )


async def test_a_doctor_finds_nothing_bad_either(store: Store) -> None:
    found = await examine(lambda: PostgresEngine(store.url), EXPECTED, watch=0)
    assert [each for each in found if each.level.is_bad] == []


async def test_a_server_that_is_not_there_is_not_asked_for_more() -> None:
    url = f"postgresql://postgres@127.0.0.1:{free_port()}/shop"
    store, jobs = (await examine(lambda: PostgresEngine(url), EXPECTED, watch=0))[1:]
    assert (store.check, store.level) == ("store", Level.ERROR)
    assert store.text.startswith("the server cannot be reached: connection to server at ")
    assert store.text.endswith(" failed: Connection refused")
    assert store.next_step is not None
    assert store.next_step.startswith("check the address, that the server runs")
    assert jobs.text.startswith("jobs and workers were not checked")


@pytest.mark.parametrize(
    ("address", "step"),
    [
        ("postgres@127.0.0.1:{port}/nowhere", "correct the URL, or make it"),
        ("nobody@127.0.0.1:{port}/postgres", "correct the URL, or make it"),
    ],
)
async def test_who_or_what_does_not_exist_is_said(
    server: Postgres, address: str, step: str
) -> None:
    url = f"postgresql://{address.format(port=server.port)}"
    (found,) = await PostgresEngine(url).checkup()
    assert (found.check, found.level) == ("store", Level.ERROR)
    assert found.text.startswith("the server does not let us in: connection to server at ")
    assert found.text.endswith("does not exist")
    assert (found.next_step or "").startswith(step)


def test_a_server_without_room_is_not_a_wrong_address() -> None:
    found = checkup.unreachable(psycopg.OperationalError("FATAL: sorry, too many clients already"))
    assert (found.next_step or "").startswith("raise max_connections")


def test_a_server_that_is_too_old() -> None:
    found = checkup.server("13.4", 130_004, "UTF8")
    assert found.level is Level.ERROR
    assert found.text == "PostgreSQL 13.4 is too old: Penstock needs 14 or newer"


async def test_a_database_that_cannot_hold_every_text(server: Postgres) -> None:
    name = server.new_database("ENCODING 'LATIN1'")
    found = await PostgresEngine(server.url(name)).checkup()
    assert [(each.level, each.text) for each in found if each.check == "server"] == [
        ("error", "the database has encoding LATIN1, and jobs are UTF8")
    ]


async def test_a_database_without_a_store(server: Postgres) -> None:
    found = await PostgresEngine(server.url(server.new_database())).checkup()
    assert [each.check for each in found] == ["server", "store"]
    assert found[1].text == "there is no schema 'penstock' with a store in this database"


async def test_tables_of_another_program(server: Postgres) -> None:
    name = server.new_database()
    with server.connect(name) as connection:
        connection.execute("CREATE SCHEMA penstock; CREATE TABLE penstock.live ()")
    found = await PostgresEngine(server.url(name)).checkup()
    assert found[1].text == "schema 'penstock' holds tables or functions of another program"


async def test_a_schema_that_is_older_or_newer(store: Store) -> None:
    newest = schema.newest()
    store.run(f"DELETE FROM penstock.migration WHERE version = {newest}")
    text = f"the store has schema version {newest - 1}, and this Penstock needs {newest}"
    assert await store.told("schema") == [("error", text, "run penstock migrate")]
    store.run("INSERT INTO penstock.migration VALUES (99, 0)")
    text = f"the store has schema version 99, and this Penstock knows {newest}"
    step = "upgrade Penstock here: a newer one has migrated the store"
    assert await store.told("schema") == [("error", text, step)]


# --- who may ------------------------------------------------------------------------------------


async def test_a_role_that_may_not_enter(store: Store, role: str) -> None:
    ((level, text, step),) = await store.told("permissions", role=role)
    assert level == "error"
    assert text.startswith("role stranger lacks a right: permission denied for schema penstock")
    assert step == "as the owner of the schema: SELECT penstock.allow('stranger', 'work')"


async def test_a_role_that_lacks_a_right(store: Store, role: str) -> None:
    store.run(
        f"SELECT penstock.allow('{role}', 'work')",
        f"REVOKE DELETE ON penstock.live FROM {role}",
        f"REVOKE EXECUTE ON FUNCTION penstock.wake FROM {role}",
    )
    text = "role stranger lacks DELETE on live, EXECUTE on wake"
    step = "as the owner of the schema: SELECT penstock.allow('stranger', 'work')"
    assert await store.told("permissions", role=role) == [("error", text, step)]


async def test_a_role_that_owns_nothing_is_told_what_that_costs(store: Store, role: str) -> None:
    store.run(f"SELECT penstock.allow('{role}', 'work')")
    ((level, text, step),) = await store.told("permissions", role=role)
    assert level == "note"
    assert "old jobs are deleted one by one, for the tables are postgres's" in text
    assert (step or "").endswith("GRANT postgres TO stranger")
    hidden = await store.told("horizon", role=role)
    assert [text for _, text, _ in hidden] == ["this role does not see the transactions of others"]


async def test_a_role_that_may_only_read(store: Store, role: str) -> None:
    store.run(
        f"SELECT penstock.allow('{role}', 'read')",
        f"ALTER ROLE {role} SET default_transaction_read_only = on",
    )
    step = "ALTER ROLE stranger RESET default_transaction_read_only"
    told = await store.told("permissions", role=role)
    assert told == [("error", "role stranger may only read, and nothing can be written", step)]


# --- how the server is set up -------------------------------------------------------------------


async def test_a_commit_that_does_not_wait_for_the_disk(store: Store) -> None:
    store.run(f"ALTER DATABASE {store.name} SET synchronous_commit = off")
    ((level, text, _),) = await store.told("durability")
    assert level == "warning"
    assert text.startswith("synchronous_commit off: a crash of the server loses")


async def test_a_server_that_does_not_write_to_disk() -> None:
    with quick().database() as url:
        engine = PostgresEngine(url)
        await engine.open()
        await engine.close()
        found = {each.check: each for each in await engine.checkup()}
    assert found["durability"].level is Level.WARNING
    assert found["durability"].text == (
        "fsync, full_page_writes off: a power cut can destroy the database"
    )


async def test_another_isolation_is_worth_a_note(store: Store) -> None:
    store.run(f"ALTER DATABASE {store.name} SET default_transaction_isolation = 'serializable'")
    ((level, text, _),) = await store.told("isolation")
    assert level == "note"
    assert text.startswith("the default isolation is serializable: Penstock has its own")


async def test_a_database_that_lets_nobody_else_in(store: Store) -> None:
    store.run(f"ALTER DATABASE {store.name} CONNECTION LIMIT 1")
    ((level, text, step),) = await store.told("connections")
    assert (level, text) == ("warning", f"1 of 1 connections of database {store.name} are in use")
    assert (step or "").startswith("raise the limit")


async def test_polling_on_purpose_is_worth_a_note(store: Store) -> None:
    ((level, text, _),) = await store.told("wake_up", listens=False)
    assert (level, text) == ("note", "the URL says listen=false: workers poll")


async def test_a_pooler_that_swallows_notifications(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "PATIENCE", 0.3)
    with PgBouncer(store.server) as pool:
        found = await PostgresEngine(pool.url(store.name)).checkup()
    (told,) = [each for each in found if each.check == "wake_up"]
    assert told.level is Level.WARNING
    assert told.text.startswith("a pooler is between, and no notification is heard")
    assert told.next_step == "let workers connect directly, or in a pool with pool_mode = session"


async def test_a_pooler_that_keeps_connections_is_no_trouble(store: Store) -> None:
    with PgBouncer(store.server, pool_mode="session") as pool:
        found = await PostgresEngine(pool.url(store.name)).checkup()
    (told,) = [each for each in found if each.check == "wake_up"]
    assert (told.level, told.text) == (Level.OK, "notifications are heard, through a pooler")


async def test_a_clock_that_is_wrong_here(store: Store) -> None:
    class Ahead(SystemClock):
        def now(self) -> float:
            return super().now() + 90

    found = await examine(lambda: PostgresEngine(store.url, Ahead()), EXPECTED, watch=0)
    (told,) = [each for each in found if each.check == "clock"]
    assert told.level is Level.WARNING
    assert told.text == "the store's clock is 1m30s behind the one here"


# --- what is cleared away -----------------------------------------------------------------------


async def test_a_table_that_autovacuum_leaves_out(store: Store) -> None:
    store.run("ALTER TABLE penstock.live SET (autovacuum_enabled = off)")
    text = "autovacuum is off for penstock.live: its dead rows are never cleared away"
    step = "ALTER TABLE penstock.live RESET (autovacuum_enabled)"
    assert await store.told("vacuum") == [("warning", text, step)]
    store.run(step)
    assert [level for level, _, _ in await store.told("vacuum")] == ["ok"]


async def test_a_server_without_autovacuum() -> None:
    with Postgres(fsync=False, autovacuum="off") as server, server.database() as url:
        engine = PostgresEngine(url)
        await engine.open()
        await engine.close()
        found = [each for each in await engine.checkup() if each.check == "vacuum"]
    assert [(each.level, each.text) for each in found] == [
        (Level.WARNING, "autovacuum off: dead rows are never cleared away")
    ]


async def test_dead_rows_that_nobody_clears_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_checks, "MANY_DEAD", 3000)
    store.run(CROWD, "DELETE FROM penstock.live")
    ((level, text, _),) = await store.told("vacuum")
    assert level == "warning"
    assert text == "live has 3,000 dead rows beside 0 live ones; it was last cleared never"
    store.run("VACUUM penstock.live")
    assert [level for level, _, _ in await store.told("vacuum")] == ["ok"]


async def test_a_table_that_is_mostly_air(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_checks, "SPARSE", 200_000)
    store.run(CROWD, "DELETE FROM penstock.live WHERE id <> 'crowd-3000'")
    told = await store.told("bloat")
    assert [level for level, _, _ in told] == ["note", "note"]
    assert told[0][1].startswith("live takes ")
    assert told[0][1].endswith(" MB for 1 rows")
    assert told[0][2] == "in a quiet hour: VACUUM FULL penstock.live"
    assert told[1][2] == "REINDEX TABLE CONCURRENTLY penstock.live"
    store.run("VACUUM FULL penstock.live")
    assert await store.told("bloat") == []


async def test_a_transaction_that_holds_vacuum_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_checks, "LONG", 0.0)
    with psycopg.connect(store.url, application_name="monthly report") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*)\n  FROM penstock.live")
        pid = connection.info.backend_pid
        ((level, text, step),) = await store.told("horizon")
    assert level == "warning"
    assert text.startswith(f"process {pid} of postgres (monthly report) has a transaction open for")
    assert text.endswith("idle in transaction: SELECT count(*) FROM penstock.live")
    assert step == f"end it: SELECT pg_terminate_backend({pid})"
    monkeypatch.undo()
    assert [level for level, _, _ in await store.told("horizon")] == ["ok"]


async def test_a_prepared_transaction_that_nobody_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_checks, "LONG", 0.0)
    store.run("BEGIN", "DELETE FROM penstock.live", "PREPARE TRANSACTION 'forgotten'")
    try:
        ((level, text, step),) = await store.told("horizon")
    finally:
        store.run("ROLLBACK PREPARED 'forgotten'")
    assert level == "warning"
    assert text.startswith("prepared transaction 'forgotten' of postgres has a transaction open")
    assert step == "COMMIT PREPARED 'forgotten', or ROLLBACK PREPARED 'forgotten'"


async def test_a_standby_that_holds_vacuum_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server would say of one; there is none here."""
    rows = Probe.rows
    drop = "SELECT pg_drop_replication_slot('north')"

    async def seen(probe: Probe, name: str, *values: Any, **words: str) -> list[Row]:
        slot = ("replication slot 'north', which is not in use", 2_000_000, drop)
        return [slot] if name == "slots" else await rows(probe, name, *values, **words)

    monkeypatch.setattr(Probe, "rows", seen)
    ((level, text, step),) = await store.told("horizon")
    assert (level, step) == ("warning", drop)
    assert "is 2,000,000 transactions behind" in text


# --- what is missing ----------------------------------------------------------------------------


def test_what_the_migrations_make_is_known() -> None:
    indexes, keyed = table_checks.expected("shop")
    assert indexes["history_entry"] == "CREATE INDEX history_entry ON shop.history (entry)"
    assert indexes["ledger_until"] == (
        "CREATE INDEX ledger_until ON shop.ledger USING brin (until) WITH (pages_per_range = 16)"
    )
    assert {"live_claim", "live_due", "live_open", "history_id"} <= indexes.keys()
    assert {"live", "ledger", "queue", "worker"} <= keyed


@pytest.mark.parametrize("name", ["live_claim", "live_due", "history_id", "ledger_until"])
async def test_an_index_that_is_missing_is_made_by_what_is_said(store: Store, name: str) -> None:
    store.run(f"DROP INDEX penstock.{name}")
    ((level, text, step),) = await store.told("indexes")
    assert (level, text) == ("error", f"index {name} is missing")
    assert step is not None
    store.run(step)
    assert [level for level, _, _ in await store.told("indexes")] == ["ok"]


async def test_a_primary_key_that_is_missing(store: Store) -> None:
    store.run("ALTER TABLE penstock.ledger DROP CONSTRAINT ledger_pkey")
    ((level, text, _),) = await store.told("indexes")
    assert (level, text) == ("error", "ledger has no primary key")


async def test_an_index_that_was_not_built_to_its_end(store: Store) -> None:
    """Nor is one that was to take its place."""
    store.run(
        "CREATE INDEX live_due_ccnew ON penstock.live (run_at)",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid IN"
        " ('penstock.live_due'::regclass, 'penstock.live_due_ccnew'::regclass)",
    )
    told = await store.told("indexes")
    assert {text for _, text, _ in told} == {
        f"index {name} is not valid: building it was interrupted"
        for name in ("live_due", "live_due_ccnew")
    }
    store.run(*(step for _, _, step in told if step is not None))
    assert [level for level, _, _ in await store.told("indexes")] == ["ok"]


async def test_days_that_nobody_has_made(store: Store) -> None:
    """What ends today and tomorrow has tables, by the days on which it may be forgotten."""
    for (name,) in store.run(
        f"SELECT name FROM penstock.days() WHERE begins_at > penstock.now() + {KEEP + DAY}"
    ):
        store.run(f"DROP TABLE penstock.{name}")
    ((level, text, step),) = await store.told("days")
    assert level == "warning"
    assert text == "the history has tables for 2 days from today on, and should for 7"
    assert step is not None
    store.run(step.partition(": ")[2])
    assert [level for level, _, _ in await store.told("days")] == ["ok"]


async def test_a_day_that_did_not_leave_is_worth_a_note(store: Store) -> None:
    store.run(f"SELECT penstock.make_day(penstock.now() - {30 * DAY})")
    ((name,),) = store.run("SELECT name FROM penstock.days() LIMIT 1")
    store.run(
        f"COMMENT ON TABLE penstock.{name} IS 'penstock: pruned'",
        f"ALTER TABLE penstock.history DETACH PARTITION penstock.{name}",
    )
    ((level, text, _),) = await store.told("days")
    assert level == "note"
    assert text.startswith(f"{name} did not leave the history yet")


# --- what is damaged ----------------------------------------------------------------------------


async def fill(store: Store) -> None:
    engine = PostgresEngine(store.url)
    await engine.open()
    await enqueue_jobs(engine, 20)
    await engine.close()


BLIND = "UPDATE pg_index SET indisready = {} WHERE indexrelid = 'penstock.live_claim'::regclass"


async def damage(store: Store) -> None:
    """Let jobs in that the claim index does not know."""
    store.run(BLIND.format("false"))
    await fill(store)
    store.run(BLIND.format("true"))


async def test_indexes_are_compared_with_their_tables(store: Store) -> None:
    await fill(store)
    ((level, text, step),) = await store.told("integrity", thorough=True)
    assert (level, text) == ("note", "20 live jobs, and as many by the indexes")
    assert (step or "").startswith("CREATE EXTENSION amcheck")


async def test_jobs_that_an_index_does_not_know_are_found_by_counting(store: Store) -> None:
    await damage(store)
    ((level, text, step),) = await store.told("integrity", thorough=True)
    assert level == "error"
    assert text == "the tables hold [20, 20, 0] jobs, and their indexes [20, 0, 0]"
    assert (step or "").startswith("REINDEX TABLE CONCURRENTLY penstock.live;")


async def test_jobs_that_an_index_does_not_know_are_found_by_amcheck(store: Store) -> None:
    store.run("CREATE SCHEMA tools", "CREATE EXTENSION amcheck SCHEMA tools")
    assert [level for level, _, _ in await store.told("integrity", thorough=True)] == ["ok"]
    await damage(store)
    ((level, text, step),) = await store.told("integrity", thorough=True)
    assert level == "error"
    assert text.startswith("index penstock.live_claim is damaged")
    assert step is not None
    store.run(step.partition(";")[0])
    assert [level for level, _, _ in await store.told("integrity", thorough=True)] == ["ok"]
