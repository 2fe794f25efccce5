"""Transactional tasks in a sandbox: they write on what the test has lent, or are told to ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from penstock import INJECTED, Penstock
from penstock.core.job import State
from penstock.errors import BadOption, NoTransaction
from penstock.testing import Sandbox

COUNT = "SELECT count(*) FROM payment"


@pytest.fixture
def app() -> Penstock:
    app = Penstock("postgresql://nowhere/bank")

    @app.task(name="pay", transactional=True, retries=1)
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        db.execute("INSERT INTO payment VALUES (%s)", (number,))
        if number < 0:
            raise ValueError("no debts")

    @app.task(name="pay async", transactional=True)
    async def pay_async(number: int, db: psycopg.AsyncConnection = INJECTED) -> None:
        await db.execute("INSERT INTO payment VALUES (%s)", (number,))

    @app.task(name="pay session", transactional=True)
    def pay_session(number: int, db: Session = INJECTED) -> None:
        db.execute(text("INSERT INTO payment VALUES (:number)"), {"number": number})

    @app.task(name="pay async session", transactional=True)
    async def pay_async_session(number: int, db: AsyncSession = INJECTED) -> None:
        await db.execute(text("INSERT INTO payment VALUES (:number)"), {"number": number})

    return app


@pytest.fixture
def db(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url) as db:
        db.execute("CREATE TABLE payment (number integer)")
        yield db


def test_what_succeeds_stays_in_the_transaction_of_the_test(
    app: Penstock, db: psycopg.Connection[Any]
) -> None:
    with Sandbox(app, connection=db) as t:
        good, bad = (app.enqueue("pay", {"number": number}) for number in (7, -7))
        t.drain()
        assert good.status().state is State.SUCCEEDED
        assert bad.status().state is State.SCHEDULED
        assert [str(failure.error) for failure in t.failures] == ["no debts"]
        assert db.execute("SELECT * FROM payment").fetchall() == [(7,)]
    db.rollback()
    assert db.execute("SELECT to_regclass('payment')").fetchone() == (None,)


def test_an_attempt_whose_process_dies_leaves_nothing(
    app: Penstock, db: psycopg.Connection[Any]
) -> None:
    with Sandbox(app, connection=db) as t:
        job = app.enqueue("pay", {"number": 7})
        t.crash("pay", at="after")
        t.drain()
        assert db.execute(COUNT).fetchone() == (0,)
        t.advance("1m")
        assert job.status().state is State.SUCCEEDED
        assert db.execute(COUNT).fetchone() == (1,)


def test_each_task_gets_what_suits_it(
    app: Penstock, db: psycopg.Connection[Any], postgres_url: str
) -> None:
    db.commit()
    engine = create_engine(postgres_url.replace("postgresql", "postgresql+psycopg"))
    with Session(engine) as session, Sandbox(app, connection=[db, session]) as t:
        app.enqueue("pay", {"number": 7})
        app.enqueue("pay session", {"number": 8})
        t.drain()
        assert db.execute("SELECT * FROM payment").fetchall() == [(7,)]
        assert session.execute(text("SELECT * FROM payment")).all() == [(8,)]
    engine.dispose()


async def test_async_tasks_write_on_async_connections(
    app: Penstock, db: psycopg.Connection[Any], postgres_url: str
) -> None:
    db.commit()
    engine = create_async_engine(postgres_url.replace("postgresql", "postgresql+psycopg"))
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        async with AsyncSession(engine) as session:
            async with Sandbox(app, connection=(connection, session)) as t:
                await app.aenqueue("pay async", {"number": 7})
                await app.aenqueue("pay async session", {"number": 8})
                await t.adrain()
                found = await connection.execute("SELECT * FROM payment")
                assert await found.fetchall() == [(7,)]
                seen = await session.execute(text("SELECT * FROM payment"))
                assert seen.all() == [(8,)]
    await engine.dispose()


def test_without_a_connection_it_is_said_what_to_lend(app: Penstock) -> None:
    with Sandbox(app) as t:
        app.enqueue("pay", {"number": 7})
        app.enqueue("pay session", {"number": 7})
        with pytest.raises(NoTransaction) as caught:
            t.drain(raises=True)
        assert str(caught.value) == (
            "pay has no transaction: a sandbox has no database; lend it a psycopg.Connection: "
            "Sandbox(app, connection=...)"
        )
        t.drain()
        assert "lend it a Session" in str(t.failures[-1].error)


def test_what_is_no_connection_is_refused(app: Penstock) -> None:
    with pytest.raises(BadOption, match="give a psycopg.Connection"):
        Sandbox(app, connection="postgresql://nowhere/bank")


def test_sandboxes_may_end_in_any_order(app: Penstock, db: psycopg.Connection[Any]) -> None:
    outer, inner = Sandbox(app), Sandbox(app, connection=db)
    with outer:
        with inner:
            assert app.hooks.stand_in is not None
            app.enqueue("pay", {"number": 7})
            inner.drain()
        assert app.hooks.stand_in is not None
    assert app.hooks.stand_in is None
