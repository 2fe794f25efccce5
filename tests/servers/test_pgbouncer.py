"""The pooler of the tests is a real one: it lends a connection for one transaction at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from servers.pgbouncer import PgBouncer
from servers.postgres import quick
from servers.ward import ServerTrouble


@pytest.fixture(scope="module")
def pool() -> Iterator[PgBouncer]:
    with PgBouncer(quick(), default_pool_size="1") as pool:
        yield pool


def test_two_clients_share_one_connection(pool: PgBouncer) -> None:
    with closing(psycopg.connect(pool.url("postgres"), autocommit=True)) as one:
        with closing(psycopg.connect(pool.url("postgres"), autocommit=True)) as other:
            pids = [
                client.execute("SELECT pg_backend_pid()").fetchone() for client in (one, other, one)
            ]
    assert len(set(pids)) == 1


@pytest.mark.parametrize("end", [PgBouncer.kill, PgBouncer.stop])
def test_it_can_be_ended_and_started_again(pool: PgBouncer, end) -> None:
    with closing(psycopg.connect(pool.url("postgres"), autocommit=True)) as client:
        end(pool)
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    pool.start()
    with closing(psycopg.connect(pool.url("postgres"), autocommit=True)) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_pooler_that_does_not_start_says_why() -> None:
    with pytest.raises(ServerTrouble, match="PgBouncer ended at once") as caught:
        with PgBouncer(quick(), pool_mode="whenever"):
            pass
    assert "whenever" in str(caught.value)
