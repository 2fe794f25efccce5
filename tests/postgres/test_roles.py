"""Who may do what in a PostgreSQL store: roles that enqueue, work or read, and nothing else."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from conformance.steps import claim_one, joined, put, settle, stored
from penstock import Penstock
from penstock.core.job import OutcomeKind, State, Verdict
from penstock.engines import changes, reads
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Filter, News, QueueSettings
from penstock.errors import EngineForbidden, JobFailed
from servers.postgres import quick

PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""

RELATIONS = """
SELECT relname, privilege_type FROM pg_class, aclexplode(relacl)
 WHERE relnamespace = 'penstock'::regnamespace AND grantee IN (0, %s::regrole)
"""
FUNCTIONS = """
SELECT DISTINCT proname FROM pg_proc
 WHERE pronamespace = 'penstock'::regnamespace AND has_function_privilege(%s, oid, 'EXECUTE')
"""
HARMLESS = {"shown", "words", "instant", "stored_key", "given_key", "scope_of"}
"""What the view is shown with."""


class House:
    """A store that belongs to nobody special, and the roles around it."""

    def __init__(self, url: str) -> None:
        mark = uuid.uuid4().hex[:12]
        self._url = url
        self.owner, self.enqueuer, self.worker, self.reader, self.stranger = (
            f"{name}_{mark}" for name in ("owner", "enqueuer", "worker", "reader", "stranger")
        )
        self.roles = (self.owner, self.enqueuer, self.worker, self.reader, self.stranger)

    def url(self, role: str) -> str:
        return self._url.replace("postgres@", f"{role}@")

    @contextmanager
    def session(self, role: str) -> Iterator[psycopg.Connection[Any]]:
        """What this role could do with psql."""
        with psycopg.connect(self.url(role), autocommit=True) as connection:
            yield connection

    def run(self, role: str, sql: str, *values: object) -> list[Any]:
        with self.session(role) as connection:
            cursor = connection.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def house(postgres_url: str) -> Iterator[House]:
    """A store whose owner is no superuser, and who has allowed one thing to each role."""
    house = House(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for role in house.roles:
            connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        database = connection.info.dbname
        connection.execute(f"GRANT CREATE ON DATABASE {database} TO {house.owner}".encode())
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        try:
            asyncio.run(made(house.url(house.owner)))
            for role, what in (
                (house.enqueuer, "enqueue"),
                (house.worker, "work"),
                (house.reader, "read"),
            ):
                house.run(house.owner, "SELECT penstock.allow(%s, %s)", role, what)
            yield house
        finally:
            roles = ", ".join(house.roles)
            connection.execute(f"DROP OWNED BY {roles} CASCADE; DROP ROLE {roles}".encode())


async def made(url: str) -> None:
    engine = PostgresEngine(url)
    await engine.open()
    await engine.close()


@contextmanager
def app_of(house: House, role: str) -> Iterator[Penstock]:
    with Penstock(house.url(role)) as app:
        yield app


# --- who enqueues -------------------------------------------------------------------------------


def test_an_enqueuer_enqueues_through_the_application(house: House) -> None:
    with app_of(house, house.enqueuer) as app:
        plain = app.enqueue("mail.send", {"to": "a@b.c"})
        chosen = app.enqueue("mail.send", {}, id="mine", unique="u", delay="1h", tags=["x"])
        again = app.enqueue("mail.send", {}, id="mine")
        assert (chosen.created, again.created) == (True, False)
    found = dict(house.run(house.owner, "SELECT id, state FROM penstock.job"))
    assert found == {plain.id: "ready", "mine": "scheduled"}


def test_an_enqueuer_enqueues_in_its_own_transaction(house: House) -> None:
    with app_of(house, house.enqueuer) as app, house.session(house.enqueuer) as connection:
        with connection.transaction():
            app.enqueue("mail.send", {}, id="kept", connection=connection)
        with connection.transaction(force_rollback=True):
            app.enqueue("mail.send", {}, id="never", connection=connection)
    assert house.run(house.owner, "SELECT id FROM penstock.job") == [("kept",)]


def test_an_enqueuer_inserts_and_sees_nothing(house: House) -> None:
    house.run(house.enqueuer, "INSERT INTO penstock.job (id, task) VALUES ('i', 't')")
    ((by,),) = house.run(house.owner, "SELECT enqueued_by FROM penstock.job WHERE id = 'i'")
    assert by == f"sql:{house.enqueuer}"
    # A malformed payload ends in the history, which the enqueuer cannot write either.
    house.run(house.enqueuer, "INSERT INTO penstock.job (id, task, payload) VALUES ('j', 't', '[')")
    assert house.run(house.owner, "SELECT state FROM penstock.job WHERE id = 'j'") == [("failed",)]
    with pytest.raises(InsufficientPrivilege):
        house.run(house.enqueuer, "INSERT INTO penstock.job (task) VALUES ('t') RETURNING payload")


def test_an_enqueuer_can_read_and_write_no_table(house: House) -> None:
    rows = house.run(house.owner, RELATIONS, house.enqueuer)
    assert set(rows) == {("job", "INSERT"), ("migration", "SELECT")}
    for sql in ("TABLE penstock.job", "SELECT payload FROM penstock.live"):
        with pytest.raises(InsufficientPrivilege):
            house.run(house.enqueuer, sql)


def test_an_enqueuer_can_call_nothing_but_the_way_in(house: House) -> None:
    found = {name for (name,) in house.run(house.owner, FUNCTIONS, house.enqueuer)}
    assert found == {"put", "put_json", "contested", "wake", "now", "shifted_now", *HARMLESS}


async def test_an_enqueuer_can_neither_claim_nor_settle_nor_decide(house: House) -> None:
    engine = PostgresEngine(house.url(house.enqueuer))
    await engine.open()
    try:
        id = await put(engine)
        for forbidden in (
            lambda: joined(engine),
            lambda: changes.cancel(engine, [id], "no"),
            lambda: changes.retry(engine, [id]),
            lambda: engine.purge(Filter(), 10),
            lambda: engine.set_queue("default", QueueSettings(paused=True)),
            lambda: engine.set_cell("x", b"1", 0),
            lambda: engine.get([id]),
            lambda: engine.find(Filter(), None, 10),
            lambda: engine.promote(10),
            lambda: engine.prune(10),
        ):
            with pytest.raises(EngineForbidden, match="permission denied") as caught:
                await forbidden()
            assert "SELECT penstock.allow(role, 'enqueue')" in str(caught.value)
    finally:
        await engine.close()


def test_an_enqueuer_cannot_move_the_clock(house: House) -> None:
    with house.session(house.enqueuer) as session:
        session.execute("SET penstock_clock.now = '1000'")
        session.execute("INSERT INTO penstock.job (id, task) VALUES ('early', 't')")
        session.execute("""SELECT penstock.put_json('{"ids": "e2", "tasks": "t"}')""")
    rows = house.run(house.owner, "SELECT now() - enqueued_at < '1 hour' FROM penstock.job")
    assert rows == [(True,), (True,)]
    # The owner can: that is what tests are made of.
    with house.session(house.owner) as session:
        session.execute("SET penstock_clock.now = '1000'")
        assert session.execute("SELECT penstock.now()").fetchall() == [(1000.0,)]


def test_functions_of_an_enqueuer_are_never_called_with_the_owners_rights(house: House) -> None:
    """They stand first on its own search path, for every name that the way in uses."""
    names = ("nextval(regclass)", "nextval(text)", "json_typeof(json)", "hashtext(text)")
    with house.session("postgres") as session:
        session.execute(f"CREATE SCHEMA evil AUTHORIZATION {house.enqueuer}".encode())
    with house.session(house.enqueuer) as session:
        session.execute("GRANT USAGE ON SCHEMA evil TO PUBLIC")
        trap = "RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'caught by %', current_user; END $$"
        for name in (*names, "convert_to(text, text)", "pg_notify(text, text)", "length(text)"):
            session.execute(f"CREATE FUNCTION evil.{name} {trap}".encode())
        session.execute("CREATE FUNCTION evil.same(text, text) RETURNS boolean" + trap[12:])
        session.execute(
            "CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same)"
        )
        session.execute("CREATE TEMPORARY TABLE live (id text)")
        session.execute("SET search_path = evil, pg_temp, pg_catalog")
        session.execute("INSERT INTO penstock.job (id, task, unique_key) VALUES ('v', 't', 'k')")
        session.execute("INSERT INTO penstock.job (id, task, payload) VALUES ('w', 't', '[')")
        session.execute("""SELECT penstock.put_json('{"ids": "x", "tasks": "t"}')""")
        given = '{"ids": "y", "tasks": "t", "uniques": "l", "remember": "60", "tags": "[]"}'
        session.execute(f"SELECT penstock.put_json('{given}')".encode())
        session.execute("SELECT penstock.contested('y', 'l', '')")
        session.execute("SELECT penstock.wake('work')")
    rows = house.run(house.owner, "SELECT id, state FROM penstock.job ORDER BY id")
    assert rows == [("v", "ready"), ("w", "failed"), ("x", "ready"), ("y", "ready")]


def test_what_runs_with_the_owners_rights_has_its_own_search_path(house: House) -> None:
    rows = house.run(
        house.owner,
        "SELECT proname, proconfig FROM pg_proc"
        " WHERE pronamespace = 'penstock'::regnamespace AND prosecdef",
    )
    ways_in = {"put", "put_json", "contested", "wake", "insert_job"}
    assert ways_in | {"make_day", "doze"} <= dict(rows).keys()
    for name, settings in rows:
        assert "search_path=pg_catalog, pg_temp" in (settings or ()), name


# --- who works ----------------------------------------------------------------------------------


def test_a_worker_works(house: House) -> None:
    with app_of(house, house.worker) as app:

        @app.task(name="add", retries=1)
        def add(left: int, right: int) -> int:
            return left + right

        @app.task(name="fail", retries=0)
        def fail() -> None:
            raise ValueError("no")

        with app.worker_thread():
            job = add.enqueue(1, 2)
            bad = fail.enqueue()
            assert job.result(timeout=PATIENCE) == 3
            with pytest.raises(JobFailed, match="no"):
                bad.result(timeout=PATIENCE)


async def test_a_worker_may_do_all_that_the_contract_has(house: House) -> None:
    engine = PostgresEngine(house.url(house.worker))
    await engine.open()
    try:
        id = await put(engine, unique="u", delay=0.0)
        job = await claim_one(engine)
        assert await settle(engine, job, OutcomeKind.FAILED, reason="no") is Verdict.DONE
        (control,) = await changes.retry(engine, [id])
        assert control.state is State.READY
        await engine.set_queue("default", QueueSettings(fair=True, max_running=1))
        assert (await claim_one(engine)).id == id
        await changes.cancel(engine, [id], "enough")
        await engine.promote(10)
        await changes.rescue(engine, [], 10)
        await engine.repair(100)
        assert await engine.set_cell("x", b"1", 0) is not None
        await reads.overview(engine, 60.0, 5)
        await engine.purge(Filter(), 10)
        await engine.prune(10)
        assert (await engine.migrate()).newest == (await engine.migrate(check=True)).newest
    finally:
        await engine.close()


def test_a_worker_makes_a_day_that_is_missing_and_no_other_table(house: House) -> None:
    assert house.run(house.worker, "SELECT penstock.make_day(4102444800)") == [(True,)]
    for sql in (
        "CREATE TABLE penstock.mine ()",
        "DROP TABLE penstock.live",
        "TRUNCATE penstock.live",
        "ALTER TABLE penstock.live ADD COLUMN mine integer",
        "UPDATE penstock.migration SET version = 99",
        "INSERT INTO penstock.allowed VALUES ('me', 'work')",
    ):
        with pytest.raises(InsufficientPrivilege):
            house.run(house.worker, sql)
    with pytest.raises(InsufficientPrivilege):
        house.run(house.worker, "SELECT penstock.allow(%s, 'work')", house.stranger)


# --- who reads ----------------------------------------------------------------------------------


async def test_a_reader_sees_everything_and_changes_nothing(house: House) -> None:
    house.run(house.owner, "INSERT INTO penstock.job (id, task) VALUES ('seen', 't')")
    assert house.run(house.reader, "SELECT id FROM penstock.job") == [("seen",)]
    engine = PostgresEngine(house.url(house.reader))
    await engine.open()
    try:
        assert (await stored(engine, "seen")).task == "t"
        assert [job.id for job in (await engine.find(Filter(), None, 10)).jobs] == ["seen"]
        assert len(await engine.counts(Filter())) == 1
        assert (await reads.overview(engine, 60.0, 5)).counts
        assert await engine.workers() == []
        await reads.standing(engine, "seen")
        await engine.version(News.CHANGED)
        for forbidden in (
            lambda: put(engine),
            lambda: changes.cancel(engine, ["seen"], "no"),
            lambda: engine.set_queue("default", QueueSettings(paused=True)),
            lambda: joined(engine),
        ):
            with pytest.raises(EngineForbidden):
                await forbidden()
    finally:
        await engine.close()
    for sql in (
        "INSERT INTO penstock.job (task) VALUES ('t')",
        "DELETE FROM penstock.live",
        "SELECT nextval('penstock.ticket')",
        """SELECT penstock.put_json('{"ids": "z", "tasks": "t"}')""",
        "SELECT penstock.make_day(0)",
    ):
        with pytest.raises(InsufficientPrivilege):
            house.run(house.reader, sql)


# --- who is allowed what ------------------------------------------------------------------------


async def test_a_stranger_is_told_whom_to_ask(house: House) -> None:
    engine = PostgresEngine(house.url(house.stranger))
    with pytest.raises(EngineForbidden) as caught:
        await engine.open()
    assert str(caught.value).startswith(
        "postgresql does not allow this: permission denied for schema penstock"
    )
    assert "let the owner of the store run SELECT penstock.allow(" in str(caught.value)


def test_everybody_may_only_what_the_view_needs(house: House) -> None:
    rows = house.run(
        house.owner,
        "SELECT proname FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner)))"
        " WHERE pronamespace = 'penstock'::regnamespace AND grantee = 0",
    )
    assert {name for (name,) in rows} == HARMLESS


def test_what_was_allowed_holds_for_what_a_later_version_adds(house: House) -> None:
    house.run(
        house.owner,
        "CREATE FUNCTION penstock.later() RETURNS integer LANGUAGE sql AS 'SELECT 1';"
        "CREATE TABLE penstock.later_table (x integer);"
        "SELECT penstock.keep_rights()",
    )
    assert house.run(house.worker, "SELECT penstock.later()") == [(1,)]
    assert house.run(house.worker, "DELETE FROM penstock.later_table") == []
    assert house.run(house.reader, "TABLE penstock.later_table") == []
    for role in (house.enqueuer, house.reader):
        with pytest.raises(InsufficientPrivilege):
            house.run(role, "SELECT penstock.later()")
    with pytest.raises(InsufficientPrivilege):
        house.run(house.enqueuer, "TABLE penstock.later_table")


def test_a_role_that_is_gone_is_no_trouble_for_a_later_version(house: House) -> None:
    with house.session("postgres") as session:
        session.execute(f"DROP OWNED BY {house.reader}; DROP ROLE {house.reader}".encode())
        session.execute("SELECT penstock.keep_rights()")
        session.execute(f"CREATE ROLE {house.reader}".encode())


def test_what_was_allowed_can_be_taken_back(house: House) -> None:
    house.run(house.owner, "SELECT penstock.allow(%s, 'read')", house.enqueuer)
    assert house.run(house.enqueuer, "TABLE penstock.job") == []
    house.run(house.owner, "SELECT penstock.forbid(%s)", house.enqueuer)
    house.run(house.owner, "SELECT penstock.keep_rights()")
    for sql in ("TABLE penstock.job", "INSERT INTO penstock.job (task) VALUES ('t')"):
        with pytest.raises(InsufficientPrivilege):
            house.run(house.enqueuer, sql)


def test_a_wrong_word_or_role_is_told(house: House) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        house.run(house.owner, "SELECT penstock.allow(%s, 'everything')", house.stranger)
    assert caught.value.diag.message_hint == "Give 'enqueue', 'work' or 'read'."
    with pytest.raises(psycopg.errors.UndefinedObject) as missing:
        house.run(house.owner, "SELECT penstock.allow('nobody; DROP TABLE x', 'work')")
    assert missing.value.diag.message_hint == "Make it with CREATE ROLE first."


def test_a_name_that_has_to_be_quoted_is(house: House) -> None:
    name = f'Odd "{house.stranger}'
    with quick().connect() as admin:
        admin.execute(f'CREATE ROLE "{name.replace(chr(34), chr(34) * 2)}"'.encode())
    try:
        house.run(house.owner, "SELECT penstock.allow(%s, 'read')", name)
        house.run(house.owner, "SELECT penstock.forbid(%s)", name)
    finally:
        with quick().connect() as admin:
            admin.execute(f'DROP ROLE "{name.replace(chr(34), chr(34) * 2)}"'.encode())


def test_an_enqueuer_that_could_set_traps_is_warned_of(house: House) -> None:
    with house.session("postgres") as session:
        session.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    warnings: list[str | None] = []
    with house.session(house.owner) as session:
        session.add_notice_handler(lambda notice: warnings.append(notice.message_hint))
        session.execute("SELECT penstock.allow(%s, 'enqueue')", (house.enqueuer,))
    assert warnings == ["Run: REVOKE CREATE ON SCHEMA public FROM PUBLIC;"]
