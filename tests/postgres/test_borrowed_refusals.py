"""Connections that jobs cannot be enqueued on: each refusal says why, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors as driver_errors
from sqlalchemy import create_engine, exc, text
from sqlalchemy.orm import Session

from penstock import Penstock
from penstock.errors import WrongConnection
from postgres.borrowing import KINDS, Purse, alchemical
from servers.emptied import emptied
from servers.postgres import quick


@pytest.fixture
def url() -> str:
    database = emptied()
    database.empty()
    return database.url


@pytest.fixture
def app(url: str) -> Iterator[Penstock]:
    with Penstock(url) as app:
        app.counts()
        yield app


@pytest.fixture
def send(app: Penstock) -> Any:
    @app.task(name="mail.send")
    def send(to: str) -> str:
        return to

    return send


@pytest.fixture(params=KINDS)
async def purse(request: Any, url: str) -> Any:
    purse = KINDS[request.param](url)
    await purse.open()
    yield purse
    await purse.close()


def refusal(caught: pytest.ExceptionInfo[WrongConnection]) -> str:
    return str(caught.value)


async def test_a_connection_is_used_as_it_wants_to_be(app, send, purse: Purse):
    """One that is async is awaited, one that blocks is not."""
    borrowed = send.using(connection=purse.connection)
    name = type(purse.connection).__name__
    if purse.is_async:
        with pytest.raises(WrongConnection) as caught:
            await asyncio.to_thread(borrowed.enqueue, "ada")
        with pytest.raises(WrongConnection):
            await asyncio.to_thread(borrowed.enqueue_many, [("ada",)])
        assert refusal(caught).endswith(f".{name}: it is async; await aenqueue or aenqueue_many")
    else:
        with pytest.raises(WrongConnection) as caught:
            await borrowed.aenqueue("ada")
        with pytest.raises(WrongConnection):
            await borrowed.aenqueue_many([("ada",)])
        assert refusal(caught).endswith(
            f".{name}: it blocks; call enqueue or enqueue_many, where your transaction is: "
            "in a thread"
        )


@pytest.mark.parametrize("thing", ["a text", 7, object()], ids=lambda each: type(each).__name__)
def test_what_is_no_connection_is_refused(send, thing):
    with pytest.raises(WrongConnection) as caught:
        send.using(connection=thing).enqueue("ada")
    assert refusal(caught) == (
        f"no job can be enqueued on this builtins.{type(thing).__name__}: it is no connection that "
        "is known here; give one of psycopg, asyncpg, SQLAlchemy or Django, or a session of "
        "SQLAlchemy"
    )


def test_what_only_leads_to_connections_is_refused(send, url):
    engine = create_engine(alchemical(url))
    with pytest.raises(WrongConnection, match=r"this sqlalchemy\.Engine: it is no connection"):
        send.using(connection=engine).enqueue("ada")
    with psycopg.connect(url) as connection:
        with pytest.raises(WrongConnection, match=r"this psycopg\.Cursor: it is no connection"):
            send.using(connection=connection.cursor()).enqueue("ada")


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{place}/jobs.db"])
def test_jobs_in_another_kind_of_store_cannot_share_a_transaction(url, store, tmp_path):
    store = store.format(place=tmp_path)
    with Penstock(store) as app, psycopg.connect(url) as connection:
        with pytest.raises(WrongConnection) as caught:
            app.enqueue("any.task", connection=connection)
        assert app.count() == 0
    assert refusal(caught) == (
        f"no job can be enqueued on this psycopg.Connection: the jobs are kept in {store}, not in "
        "a PostgreSQL database; leave connection=... out, or give Penstock the URL of that database"
    )


def test_a_connection_to_another_kind_of_database_is_refused(send):
    engine = create_engine("sqlite://")
    with Session(engine) as session, pytest.raises(WrongConnection) as caught:
        send.using(connection=session).enqueue("ada")
    engine.dispose()
    assert refusal(caught) == (
        "no job can be enqueued on this sqlalchemy.Connection: it leads to sqlite; give one to the "
        "PostgreSQL database that has the jobs"
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_a_database_without_a_store_is_refused(send, postgres_url, kind):
    purse = KINDS[kind](postgres_url)
    await purse.open()
    try:
        await purse.begin()
        with pytest.raises(WrongConnection) as caught:
            await purse.enqueue(send, "ada")
        await purse.rollback()
    finally:
        await purse.close()
    assert refusal(caught).endswith(
        "its database has no store in the schema 'penstock'; give a connection to the database "
        "that the app's URL names, and make the store with `penstock migrate`"
    )
    assert caught.value.__cause__ is not None


def test_a_schema_of_that_name_that_is_no_store_is_refused(send, postgres_url):
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA penstock")
        with pytest.raises(WrongConnection, match="has no store in the schema 'penstock'"):
            send.using(connection=connection).enqueue("ada")


def test_a_role_that_may_not_enqueue_is_told_what_to_ask_for(app, send, url):
    with quick().connect(url.rpartition("/")[2]) as owner:
        owner.execute("CREATE ROLE stranger LOGIN")
        try:
            login = url.replace("postgres@", "stranger@")
            with psycopg.connect(login) as connection, pytest.raises(WrongConnection) as caught:
                send.using(connection=connection).enqueue("ada")
            owner.execute("SELECT penstock.allow('stranger', 'enqueue')")
            with psycopg.connect(login) as connection:
                handle = send.using(connection=connection).enqueue("ada")
            assert handle.status().task == "mail.send"
        finally:
            owner.execute("SELECT penstock.forbid('stranger')")
            owner.execute("DROP ROLE stranger")
    assert "its role may not enqueue (permission denied for schema penstock" in refusal(caught)
    assert refusal(caught).endswith(
        "let the owner of the store say SELECT penstock.allow(role, 'enqueue')"
    )


# --- what is the caller's own --------------------------------------------------------------------


def test_what_is_wrong_with_the_transaction_is_said_by_its_own_driver(send, url):
    """The caller's code looks for these: it repeats a serialization failure, for example."""
    with psycopg.connect(url) as connection:
        with pytest.raises(driver_errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(driver_errors.InFailedSqlTransaction):
            send.using(connection=connection).enqueue("ada")
        connection.rollback()
        connection.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(driver_errors.ReadOnlySqlTransaction):
            send.using(connection=connection).enqueue("ada")
    engine = create_engine(alchemical(url))
    with Session(engine) as session:
        session.execute(text("SET TRANSACTION READ ONLY"))
        with pytest.raises(exc.InternalError):
            send.using(connection=session).enqueue("ada")
    engine.dispose()


def test_a_connection_that_is_gone_is_told_by_its_own_driver(send, url):
    connection = psycopg.connect(url)
    connection.close()
    with pytest.raises(psycopg.OperationalError):
        send.using(connection=connection).enqueue("ada")


def test_a_serialization_failure_is_the_callers_to_repeat(app, send, url):
    """Two transactions on snapshots of their own use one id: the later one is told to try again."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        send.using(id="order-7").enqueue("ada")
        with pytest.raises(driver_errors.SerializationFailure):
            send.using(id="order-7", connection=connection).enqueue("eve")
        connection.rollback()

        assert not send.using(id="order-7", connection=connection).enqueue("eve").created
