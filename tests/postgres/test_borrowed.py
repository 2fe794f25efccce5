"""Jobs that are enqueued on a connection of the caller's are part of its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import ClientCursor, RawCursor
from psycopg.rows import dict_row

from penstock import Handle, Job, Penstock
from penstock.errors import (
    BadArguments,
    BadItem,
    BadOption,
    IdConflict,
    JobUncommitted,
    PayloadTooLarge,
)
from penstock.testing import Sandbox
from postgres.borrowing import KINDS, Purse
from servers.emptied import emptied

AWKWARD = "%s :drafts $1 %(drafts)s '; DROP TABLE x; -- \\ \" ключ 🜁 \x1f \n"
"""What is a value on every driver, and on none a part of the statement."""


@pytest.fixture
def url() -> str:
    database = emptied()
    database.empty()
    return database.url


@pytest.fixture
def app(url: str) -> Iterator[Penstock]:
    """An app on an empty store, which is open."""
    with Penstock(url) as app:
        app.counts()
        yield app


@pytest.fixture
def send(app: Penstock) -> Any:
    @app.task(name="mail.send")
    def send(to: str, body: str = "") -> str:
        return f"{to}: {body}"

    return send


@pytest.fixture(params=KINDS)
async def purse(request: Any, url: str) -> AsyncIterator[Purse]:
    """A connection of the caller's."""
    purse = KINDS[request.param](url)
    await purse.open()
    yield purse
    await purse.close()


def _noop() -> None: ...


async def stored(app: Penstock) -> list[Job[Any]]:
    """All jobs, the oldest first."""
    return list(reversed((await app.afind(limit=5000)).jobs))


# --- on every kind of connection -----------------------------------------------------------------


async def test_a_job_is_there_when_the_transaction_is_committed_and_not_before(app, send, purse):
    await purse.begin()
    handle = await purse.enqueue(send, "ada", AWKWARD)
    assert (handle.created, handle.because) == (True, None)
    assert await stored(app) == []

    await purse.commit()

    (job,) = await stored(app)
    assert (job.id, job.task) == (handle.id, "mail.send")
    assert job.arguments == {"to": "ada", "body": AWKWARD}


async def test_what_is_rolled_back_never_existed(app, send, purse):
    """Neither does its id, nor its unique key."""
    await purse.begin()
    once = send.using(id="welcome-7", unique="welcome:7")
    assert (await purse.enqueue(once, "ada")).created

    await purse.rollback()

    assert await stored(app) == []
    assert (await once.aenqueue("eve")).created


async def test_a_savepoint_takes_back_only_what_came_after_it(app, send, purse):
    await purse.begin()
    before = await purse.enqueue(send, "ada")
    savepoint = await purse.savepoint()
    await purse.enqueue(send, "eve")

    await purse.back(savepoint)
    after = await purse.enqueue(send, "bob")
    await purse.commit()

    assert [job.id for job in await stored(app)] == [before.id, after.id]


async def test_many_jobs_are_stored_together_in_their_order(app, send, purse):
    await purse.begin()
    handles = await purse.enqueue_many(send, [(f"user {number}",) for number in range(1002)])
    assert await stored(app) == []
    await purse.commit()

    assert [job.id for job in await stored(app)] == [handle.id for handle in handles]


async def test_a_receipt_names_the_job_that_is_there_already(app, send, purse):
    first = await send.using(id="order-7", unique="order").aenqueue("ada")
    await purse.begin()

    by_id = await purse.enqueue(send.using(id="order-7"), "eve")
    by_key = await purse.enqueue(send.using(unique="order"), "eve")
    await purse.commit()

    assert (by_id.id, by_id.created, by_id.because) == (first.id, False, "id")
    assert (by_key.id, by_key.created, by_key.because) == (first.id, False, "unique")
    assert len(await stored(app)) == 1


async def test_an_id_of_another_task_is_a_conflict_in_the_callers_transaction_too(app, send, purse):
    await app.aenqueue("charge", id="order-7")
    await purse.begin()
    with pytest.raises(IdConflict, match=r"task 'mail.send'.*task 'charge'"):
        await purse.enqueue(send.using(id="order-7"), "ada")
    again = await purse.enqueue(send.using(unique="order-7"), "ada")
    await purse.commit()

    assert [job.id for job in await stored(app)] == ["order-7", again.id]


@pytest.mark.parametrize("kind", [name for name in KINDS if "scoped" not in name])
async def test_a_connection_that_commits_by_itself_stores_at_once(app, send, url, kind):
    purse = KINDS[kind](url, commits=True)
    await purse.open()
    try:
        handle = await purse.enqueue(send, "ada")
        assert [job.id for job in await stored(app)] == [handle.id]
    finally:
        await purse.close()


# --- as any other job -----------------------------------------------------------------------------


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection


def test_every_option_is_honoured(app, send, connection):
    given: dict[str, Any] = {
        "queue": "mail",
        "priority": "high",
        "delay": "1h",
        "expires_in": "2d",
        "key": "user-7",
        "unique": "welcome:7",
        "unique_until": "start",
        "unique_for": "10m",
        "at_most_once": True,
        "tags": ["a", "b"],
        "name": "a welcome",
        "correlation_id": "request-1",
    }
    job = send.using(id="mine", connection=connection, **given).enqueue("ada")
    connection.commit()
    found = job.status()
    app.cancel("mine")
    usual = send.using(id="usual", **(given | {"unique": "other"})).enqueue("ada").status()

    def facts(job: Job[Any]) -> dict[str, Any]:
        differ = ("id", "unique", "enqueued_at", "run_at", "expires_at")
        names = [each.name for each in fields(job) if each.name not in differ]
        return {name: getattr(job, name) for name in names}

    assert facts(found) == facts(usual)
    assert found.run_at == found.enqueued_at + timedelta(hours=1)
    assert found.expires_at == found.enqueued_at + timedelta(days=2)
    # The id was written to the ledger: it is not to be used again.
    assert not send.using(id="mine").enqueue("eve").created


def test_a_call_that_does_not_fit_touches_no_transaction(app, send, connection):
    borrowed = send.using(connection=connection)
    for wrong in (
        lambda: borrowed.enqueue(too="ada"),
        lambda: borrowed.enqueue_many([("ada",), (1, 2, 3)]),
        lambda: borrowed.enqueue("ada", "x" * 2_000_000),
        lambda: app.enqueue("mail.send", {"too": "ada"}, connection=connection),
    ):
        with pytest.raises((BadArguments, BadItem, PayloadTooLarge)):
            wrong()
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_job_can_be_enqueued_by_name(app, connection):
    first = app.enqueue("any.task", {"a": 1}, connection=connection)
    rest = app.enqueue_many([("any.task", {"a": 2}), ("other", None)], connection=connection)
    assert app.count() == 0
    connection.commit()

    assert [app.job(each.id).status().task for each in (first, *rest)] == [
        "any.task",
        "any.task",
        "other",
    ]


async def test_a_job_can_be_enqueued_by_name_in_async_code(app, url):
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await app.aenqueue("any.task", {"a": 1}, connection=connection)
        await app.aenqueue_many([("any.task", {"a": 2})], connection=connection)
        assert await app.acount() == 0
    assert await app.acount() == 2


def test_the_jobs_of_one_call_go_over_one_connection(app, connection):
    with pytest.raises(BadItem) as caught:
        app.enqueue_many([("any.task", None, {"connection": connection})])
    assert str(caught.value).endswith("all jobs go over one; give it to enqueue_many itself")


def test_a_task_cannot_be_declared_with_a_connection(app, connection):
    with pytest.raises(BadOption, match="no such option of a task"):
        app.task(connection=connection)(_noop)


@pytest.mark.parametrize("cursors", [ClientCursor, RawCursor], ids=lambda each: each.__name__)
def test_whatever_cursors_and_rows_the_caller_prefers(app, send, url, cursors):
    with psycopg.connect(url, row_factory=dict_row, cursor_factory=cursors) as connection:
        handle = send.using(connection=connection).enqueue("ada", AWKWARD)
    assert handle.status().task == "mail.send"


async def test_whatever_records_the_caller_prefers(app, send, url):
    class Mine(asyncpg.Record):
        pass

    connection = await asyncpg.connect(url, record_class=Mine)
    try:
        handle = await send.using(connection=connection).aenqueue("ada")
    finally:
        await connection.close()
    assert (await handle.astatus()).task == "mail.send"


def test_whatever_encoding_the_connection_has(app, send, url):
    with psycopg.connect(url, client_encoding="latin1") as connection:
        handle = send.using(connection=connection).enqueue("ada", AWKWARD)
    (job,) = app.find().jobs
    assert job.id == handle.id
    assert job.arguments["body"] == AWKWARD


def test_another_schema_is_found_by_the_url(postgres_url):
    with Penstock(f"{postgres_url}?schema=shop_jobs") as app, psycopg.connect(postgres_url) as own:
        app.counts()
        handle = app.enqueue("any.task", connection=own)
        own.commit()
        assert handle.status().task == "any.task"


# --- the handle -----------------------------------------------------------------------------------


def uncommitted(job: str) -> str:
    return (
        f"job {job} is not in the store: the transaction it was enqueued in is still open, or was "
        "rolled back; commit it first"
    )


def test_before_the_commit_the_handle_says_what_is_missing(app, send, connection):
    handle = send.using(connection=connection).enqueue("ada")
    for ask in (handle.status, handle.result, handle.cancel, handle.retry):
        with pytest.raises(JobUncommitted) as caught:
            ask()
        assert str(caught.value) == uncommitted(handle.id)


async def test_after_the_commit_the_handle_waits_for_the_result(app, send, url):
    async with await psycopg.AsyncConnection.connect(url) as connection:
        handle: Handle[str] = await send.using(connection=connection).aenqueue("ada", "hi")
        with pytest.raises(JobUncommitted):
            await handle.aresult()
    async with app.worker():
        assert await handle.aresult(timeout=60) == "ada: hi"


# --- wake-up --------------------------------------------------------------------------------------


async def test_the_wake_up_comes_with_the_commit(app, send, purse):
    """Between the enqueue and the commit somebody else notifies: that is heard first."""
    async with await psycopg.AsyncConnection.connect(purse.url, autocommit=True) as ear:
        await ear.execute('LISTEN "penstock.wake"')
        await purse.begin()
        await purse.enqueue(send, "ada")
        await ear.execute("""NOTIFY "penstock.wake", 'meanwhile'""")
        await purse.commit()

        heard = [note.payload async for note in ear.notifies(timeout=60, stop_after=2)]

    assert heard == ["meanwhile", "work"]


async def test_what_is_rolled_back_wakes_nobody(app, send, purse):
    async with await psycopg.AsyncConnection.connect(purse.url, autocommit=True) as ear:
        await ear.execute('LISTEN "penstock.wake"')
        await purse.begin()
        await purse.enqueue(send, "ada")
        await purse.rollback()
        await ear.execute("""NOTIFY "penstock.wake", 'afterwards'""")

        heard = [note.payload async for note in ear.notifies(timeout=60, stop_after=1)]

    assert heard == ["afterwards"]


# --- in a test of one's own -----------------------------------------------------------------------


def test_in_a_sandbox_the_job_is_enqueued_as_any_other(app, send, connection):
    """Code that is tested without a database may still name its connection."""
    with Sandbox(app) as sandbox:
        send.using(connection=connection).enqueue("ada")
        sandbox.assert_enqueued(send, "ada")
        sandbox.drain()
    connection.commit()
    assert app.count() == 0


async def test_a_connection_may_be_used_by_many_senders_at_once_where_its_driver_allows(
    app, send, url
):
    async with await psycopg.AsyncConnection.connect(url) as connection:
        borrowed = send.using(connection=connection)
        handles = await asyncio.gather(*(borrowed.aenqueue(f"user {n}") for n in range(20)))
    assert {job.id for job in await stored(app)} == {handle.id for handle in handles}
