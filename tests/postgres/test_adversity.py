"""A server that ends connections, has none to spare or takes too long: workers get through."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from conformance.steps import claim, draft
from penstock.engines.postgres.engine import PostgresEngine
from penstock.errors import EngineCrowded
from penstock.events import Faulted
from postgres.works import Works
from servers.postgres import Postgres, quick

OURS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'penstock%' ORDER BY pid"


@pytest.fixture
def works(postgres_url: str) -> Iterator[Works]:
    works = Works(postgres_url)
    yield works
    works.app.close()


# --- connections that are ended -------------------------------------------------------------------


async def test_backends_that_are_ended_at_random_cost_no_job(works: Works) -> None:
    """Two of them for every five jobs that have run, while more come."""
    chance = random.Random(5)
    with quick().connect() as admin:
        async with works.workers(2):
            coming = asyncio.create_task(works.enqueued(500))
            for run in range(0, 500, 5):
                await works.until(lambda: len(works.ran) >= run)  # noqa: B023
                pids = [pid for (pid,) in admin.execute(OURS).fetchall()]
                for pid in chance.sample(pids, min(2, len(pids))):
                    admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
            await coming
            await works.until_ended(500)
    assert set(works.ran.values()) == {1}


# --- connections that are not to be had -----------------------------------------------------------


async def test_very_many_calls_share_one_connection(postgres_url: str) -> None:
    engine = PostgresEngine(postgres_url, connections=1)
    await engine.open()
    try:
        await asyncio.gather(*(engine.enqueue([draft()]) for _ in range(200)))
        batches = await asyncio.gather(*(claim(engine, want=10) for _ in range(30)))
        assert len({job.id for batch in batches for job in batch}) == 200
    finally:
        await engine.close()


async def test_a_worker_waits_for_a_server_that_has_no_connection_to_spare() -> None:
    """Others have taken them all; who enqueues is told, and all goes on when they leave."""
    with Postgres(fsync=False, max_connections="12", superuser_reserved_connections="0") as server:
        works = Works(server.url())
        crowd: list[psycopg.Connection[Any]] = []
        try:
            async with works.workers(1):
                await works.enqueued(10)
                await works.until_ended(10)
                with server.connect() as admin:
                    await asyncio.to_thread(_take_all, server, admin, crowd)
                    with pytest.raises(EngineCrowded, match="no connection to spare"):
                        await works.work.using(id="work-10").aenqueue(10)
                for each in crowd:
                    each.close()
                await works.enqueued(20)
                await works.until_ended(20)
        finally:
            works.app.close()


def _take_all(
    server: Postgres, admin: psycopg.Connection[Any], crowd: list[psycopg.Connection[Any]]
) -> None:
    """Take every connection, also those that handles have: until none is theirs any more."""
    while True:
        try:
            crowd.append(server.connect())
            continue
        except psycopg.OperationalError:
            pids = [pid for (pid,) in admin.execute(OURS).fetchall()]
            if not pids:
                return
            admin.execute("SELECT pg_terminate_backend(pid, 60000) FROM unnest(%s) pid", (pids,))


# --- statements that take too long ----------------------------------------------------------------


@pytest.fixture
def hurried() -> Iterator[str]:
    """A role whose statements may take half a second each."""
    with quick().connect() as admin:
        admin.execute("CREATE ROLE hurried SUPERUSER LOGIN")
        admin.execute("ALTER ROLE hurried SET statement_timeout = '500ms'")
        yield "hurried"
        admin.execute("DROP ROLE hurried")


async def test_statements_that_the_server_cuts_short_cost_no_job(
    hurried: str, postgres_url: str, works: Works
) -> None:
    """Somebody keeps the tables locked until handles have been told that it takes too long."""
    await works.enqueued(1)
    others = Works(postgres_url.replace("postgres@", f"{hurried}@"))
    try:
        async with others.workers(2, lease=1.0):
            await others.enqueued(10)
            await others.until_ended(10)
            with closing(psycopg.connect(postgres_url)) as other:
                other.execute("LOCK TABLE penstock.live, penstock.worker, penstock.cell")
                coming = asyncio.create_task(others.enqueued(20))
                await others.until(lambda: _timed_out(others.faults))
            await coming
            await others.until_ended(20)
    finally:
        others.app.close()
    assert set(others.ran.values()) == {1}


def _timed_out(faults: list[Faulted]) -> bool:
    return any("statement timeout" in fault.error for fault in faults)


# --- midnight -------------------------------------------------------------------------------------


async def test_workers_that_find_no_day_to_put_what_ended_make_it(
    works: Works, postgres_url: str
) -> None:
    """Two of them at once, under load, as after a midnight that nobody has prepared."""
    await works.enqueued(300)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        found = admin.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits i "
            "WHERE inhparent = 'penstock.history'::regclass"
        ).fetchall()
        assert found
        for (day,) in found:
            admin.execute(f"DROP TABLE {day}".encode())
    async with works.workers(2):
        await works.until_ended(300)
    assert set(works.ran.values()) == {1}
