"""The proxy breaks a connection where it was told, and leaves all others alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from servers.messages import answers, runs
from servers.postgres import quick
from servers.proxy import Proxy

Connection = psycopg.Connection[Any]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(quick().port) as proxy:
        yield proxy


@pytest.fixture
def direct(postgres_url: str) -> Iterator[Connection]:
    """A connection that does not go through the proxy, to a database with a table."""
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        connection.execute("CREATE TABLE kept (number int)")
        yield connection


@pytest.fixture
def client(proxy: Proxy, postgres_url: str, direct: Connection) -> Iterator[Connection]:
    with closing(psycopg.connect(proxy.url(postgres_url), autocommit=True)) as connection:
        yield connection


def insert(connection: Connection, number: int, prepare: bool | None = None) -> None:
    connection.execute("INSERT INTO kept VALUES (%s)", (number,), prepare=prepare)


def kept(direct: Connection) -> list[int]:
    return [number for (number,) in direct.execute("SELECT number FROM kept ORDER BY number")]


def test_a_client_notices_nothing_without_a_fault(client: Connection, direct: Connection) -> None:
    with client.pipeline():
        for number in range(20):
            insert(client, number)
    assert client.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1000000,)
    with client.cursor().copy("COPY kept FROM STDIN") as copy:
        copy.write_row((20,))
    assert kept(direct) == list(range(21))


def test_what_is_cut_before_never_reaches_the_server(
    proxy: Proxy, client: Connection, direct: Connection
) -> None:
    fault = proxy.cut_before(runs("commit"))
    with pytest.raises(psycopg.OperationalError):
        with client.transaction():
            insert(client, 1)
    assert fault.has_happened
    assert kept(direct) == []


def test_what_is_cut_after_is_done_and_nobody_hears_of_it(
    proxy: Proxy, client: Connection, direct: Connection
) -> None:
    fault = proxy.cut_after(runs("COMMIT"))
    with pytest.raises(psycopg.OperationalError):
        with client.transaction():
            insert(client, 1)
    assert fault.has_happened
    assert kept(direct) == [1]


@pytest.mark.parametrize("prepare", [False, True])
def test_the_nth_is_cut_prepared_or_not(
    proxy: Proxy, client: Connection, direct: Connection, prepare: bool
) -> None:
    proxy.cut_after(runs("insert into kept"), nth=3)
    insert(client, 1, prepare)
    insert(client, 2, prepare)
    with pytest.raises(psycopg.OperationalError):
        insert(client, 3, prepare)
    assert kept(direct) == [1, 2, 3]


def test_of_a_lost_answer_nothing_arrives(proxy: Proxy, client: Connection) -> None:
    proxy.cut_after(runs("generate_series"))
    rows = client.cursor().stream("SELECT * FROM generate_series(1, 5000)")
    with pytest.raises(psycopg.OperationalError):
        next(rows)


def test_the_answer_to_the_nth_question_is_cut(
    proxy: Proxy, client: Connection, direct: Connection
) -> None:
    proxy.cut_before(answers("Z"), nth=2)
    insert(client, 1)
    with pytest.raises(psycopg.OperationalError):
        insert(client, 2)
    assert kept(direct) == [1, 2]


def test_a_fault_happens_once(proxy: Proxy, client: Connection, postgres_url: str) -> None:
    proxy.cut_before(runs("insert"))
    with pytest.raises(psycopg.OperationalError):
        insert(client, 1)
    with closing(psycopg.connect(proxy.url(postgres_url), autocommit=True)) as again:
        insert(again, 1)


def test_a_cut_leaves_other_connections_alone(
    proxy: Proxy, client: Connection, postgres_url: str
) -> None:
    with closing(psycopg.connect(proxy.url(postgres_url), autocommit=True)) as other:
        proxy.cut_before(runs("insert"))
        with pytest.raises(psycopg.OperationalError):
            insert(client, 1)
        insert(other, 2)


async def test_what_is_held_before_arrives_when_it_is_released(
    proxy: Proxy, client: Connection, direct: Connection
) -> None:
    fault = proxy.hold_before(runs("insert"))
    inserted = asyncio.create_task(asyncio.to_thread(insert, client, 1))
    await asyncio.to_thread(fault.wait)
    assert kept(direct) == []
    assert not inserted.done()
    fault.release()
    await inserted
    assert kept(direct) == [1]


async def test_what_is_held_after_is_done_before_it_is_released(
    proxy: Proxy, client: Connection, direct: Connection
) -> None:
    fault = proxy.hold_after(runs("insert"))
    inserted = asyncio.create_task(asyncio.to_thread(insert, client, 1))
    await asyncio.to_thread(fault.wait)
    assert kept(direct) == [1]
    assert not inserted.done()
    fault.release()
    await inserted


async def test_a_black_hole_keeps_both_sides_open_until_it_is_cut(
    proxy: Proxy, client: Connection, direct: Connection
) -> None:
    pid = client.info.backend_pid
    fault = proxy.hold_before(runs("insert"))
    inserted = asyncio.create_task(asyncio.to_thread(insert, client, 1))
    await asyncio.to_thread(fault.wait)
    alive = direct.execute("SELECT pid FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchall()
    assert alive == [(pid,)]
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        await inserted
    assert kept(direct) == []


def test_refused_clients_get_in_once_they_are_accepted(
    proxy: Proxy, client: Connection, postgres_url: str
) -> None:
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(proxy.url(postgres_url))
    insert(client, 1)
    proxy.accept()
    psycopg.connect(proxy.url(postgres_url)).close()


def test_all_connections_can_be_cut(proxy: Proxy, client: Connection, postgres_url: str) -> None:
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        insert(client, 1)
    psycopg.connect(proxy.url(postgres_url)).close()


def test_without_a_server_a_client_is_cut(proxy: Proxy, postgres_url: str) -> None:
    with Proxy(proxy.port) as further:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(further.url(postgres_url))


async def test_an_asynchronous_client_is_cut_as_well(
    proxy: Proxy, postgres_url: str, direct: Connection
) -> None:
    url = proxy.url(postgres_url)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as client:
        proxy.cut_after(runs("insert"))
        with pytest.raises(psycopg.OperationalError):
            await client.execute("INSERT INTO kept VALUES (1)")
    assert kept(direct) == [1]


def test_who_is_cut_before_being_served_is_let_go(proxy: Proxy) -> None:
    """The door has let a client in, and everything is cut before its task has begun."""
    here, there = socket.socketpair()

    async def cut_at_the_door() -> None:
        proxy._welcome(*await asyncio.open_connection(sock=there))
        await proxy._cut()

    with closing(here):
        here.settimeout(60)
        proxy._call(cut_at_the_door())
        assert here.recv(1) == b""
