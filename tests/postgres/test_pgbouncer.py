"""Behind a real PgBouncer that lends a connection for one transaction: nothing is kept on one.

The conformance tests below run through it as they stand, on two connections for all handles.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import servers.emptied
from conformance.steps import ask, claim, enqueue_jobs, joined, put, soon
from conformance.stores import Store
from conformance.test_law01_exchange import *  # noqa: F403
from conformance.test_law03_held import *  # noqa: F403
from conformance.test_law11_wake_up import *  # noqa: F403
from conformance.test_law15_results import *  # noqa: F403
from conformance.test_max_running import *  # noqa: F403
from conformance.waiting import LONG, asleep, work
from penstock import Penstock
from penstock.engines.engine import Engine
from penstock.engines.observed import Observed
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.waiting import wait_for_results
from penstock.errors import EngineRefused, EngineUnavailable
from penstock.events import Bus, Polling
from penstock.testing.clock import FakeClock
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres

PATIENCE = 60.0

POOLERS = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
]
"""Settings that PgBouncer keeps for each of its clients by itself."""

# Its connections are not ours to end: they belong to the pooler, which would be taken by surprise.
EMPTY = (
    Path(servers.emptied.__file__)
    .with_name("empty.sql")
    .read_text()
    .replace("pg_terminate_backend(pid)", "pid")
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    # Every transaction of the server counts as a change for who polls: those of autovacuum, too.
    with Postgres(fsync=False, autovacuum="off") as server:
        yield server


@pytest.fixture(scope="module")
def pool(server: Postgres) -> Iterator[PgBouncer]:
    with PgBouncer(server, default_pool_size="2") as pool:
        yield pool


class Database:
    """One store, directly and through the pooler."""

    def __init__(self, server: Postgres, pool: PgBouncer) -> None:
        self.name = server.new_database()
        self.direct = server.url(self.name)
        self.pooled = pool.url(self.name)
        self.admin = server.connect(self.name)
        self._console = psycopg.connect(
            # It understands only what is sent as one text.
            pool.url("pgbouncer"),
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
        )

    def clients(self) -> int:
        """How many connections the pooler has for this database."""
        cursor = self._console.execute("SHOW CLIENTS")
        names = [column.name for column in cursor.description or ()]
        return sum(row[names.index("database")] == self.name for row in cursor.fetchall())

    def close(self) -> None:
        self.admin.close()
        self._console.close()


@pytest.fixture(scope="module")
def made(server: Postgres, pool: PgBouncer) -> Iterator[Database]:
    with closing(Database(server, pool)) as made:
        yield made


@pytest.fixture
async def database(made: Database) -> AsyncIterator[Database]:
    made.admin.execute(EMPTY)
    yield made
    deadline = time.monotonic() + PATIENCE
    while made.clients():
        assert time.monotonic() < deadline, "somebody is still connected"
        time.sleep(0.001)


@pytest.fixture
async def store(database: Database, clock: FakeClock) -> AsyncIterator[Store]:
    """What the conformance tests run on."""
    store = Store(
        lambda: PostgresEngine(database.pooled, clock, listens=False, follows_clock=True), clock
    )
    yield store
    await store.close()


@pytest.fixture
async def engine(store: Store) -> Engine:
    return await store.open()


@pytest.fixture
async def open_handle(database: Database) -> AsyncIterator[Callable[..., Any]]:
    """Opens handles that nobody told what is between them and the server."""
    handles: list[Engine] = []

    async def open_handle(url: str, bus: Bus | None = None) -> Engine:
        handle: Engine = PostgresEngine(url)
        handles.append(handle if bus is None else Observed(handle, bus))
        await handles[-1].open()
        return handles[-1]

    yield open_handle
    for handle in handles:
        await handle.close()


# --- what a pooler is known by ------------------------------------------------------------------


async def test_a_pooler_is_noticed_and_said_once(
    database: Database, open_handle: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    events: list[Polling] = []
    bus.subscribe(Polling, events.append)
    sleeper = await open_handle(database.pooled, bus)
    caller = await open_handle(database.direct)
    one_turn = ask(await joined(sleeper))
    for _ in range(3):
        async with asleep(work(sleeper, one_turn, LONG)) as nap:
            await put(caller)
            assert (await soon(nap)).jobs
    (event,) = events
    assert event.why == "a pooler lends its connections for one transaction each"
    assert len([each for each in caplog.records if each.name == "penstock.postgres"]) == 1


async def test_nothing_is_left_on_a_connection_that_others_will_have(
    server: Postgres, database: Database
) -> None:
    """With one connection for all, whoever comes next would find it."""
    with PgBouncer(server, default_pool_size="1") as narrow:
        url = narrow.url(database.name)
        engine = PostgresEngine(url)
        await engine.open()
        one_turn = ask(await joined(engine))
        id = await put(engine)
        assert await wait_for_results(engine, [id], 0.1) == {}
        assert (await engine.exchange(one_turn)).jobs
        await work(engine, one_turn, 0.2)
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as other:
            found = other.execute(
                "SELECT name FROM pg_prepared_statements UNION ALL"
                " SELECT pg_listening_channels() UNION ALL"
                " SELECT mode FROM pg_locks WHERE locktype = 'advisory' UNION ALL"
                " SELECT name FROM pg_settings WHERE source = 'session' AND name <> ALL (%s)",
                (POOLERS,),
            ).fetchall()
        await engine.close()
    assert found == []


@pytest.mark.parametrize("way", ["pooled", "direct"])
async def test_steps_see_one_another_whatever_was_decided_for_the_database(
    server: Postgres, pool: PgBouncer, way: str
) -> None:
    """Under SERIALIZABLE a step would see only what was there when it began, and often fail."""
    name = server.new_database()
    with server.connect() as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    url = pool.url(name) if way == "pooled" else server.url(name)
    engines = [PostgresEngine(url) for _ in range(4)]
    for engine in engines:
        await engine.open()
    ids = await enqueue_jobs(engines[0], 100)
    batches = await asyncio.gather(*(claim(engine, want=30) for engine in engines))
    for engine in engines:
        await engine.close()
    assert sorted(job.id for batch in batches for job in batch) == sorted(ids)


# --- whole processes ----------------------------------------------------------------------------


def declared(url: str) -> tuple[Penstock, Any]:
    app = Penstock(url)

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    return app, double


@pytest.mark.parametrize("asking", ["pooled", "direct"])
@pytest.mark.parametrize("working", ["pooled", "direct"])
async def test_a_worker_and_its_callers_may_come_different_ways(
    database: Database, asking: str, working: str
) -> None:
    caller, double = declared(getattr(database, asking))
    server, _ = declared(getattr(database, working))
    async with asyncio.timeout(PATIENCE), server.worker(concurrency=5):
        jobs = [await double.aenqueue(number) for number in range(20)]
        assert [await job.aresult() for job in jobs] == [2 * number for number in range(20)]
    await caller.aclose()
    await server.aclose()


async def test_a_worker_outlives_its_pooler(server: Postgres, database: Database) -> None:
    with PgBouncer(server, default_pool_size="2") as pool:
        app, double = declared(pool.url(database.name) + "?listen=false")
        async with asyncio.timeout(PATIENCE), app.worker():
            assert await (await double.aenqueue(1)).aresult() == 2
            pool.kill()
            pool.start()
            while True:
                try:
                    job = await double.aenqueue(2)
                    break
                except EngineUnavailable:
                    continue
            assert await job.aresult() == 4
        await app.aclose()


# --- what it says -------------------------------------------------------------------------------


async def test_a_pooler_that_is_away_is_told_by_its_address(server: Postgres) -> None:
    pool = PgBouncer(server)
    with pytest.raises(EngineUnavailable, match=f"port {pool.port} failed: Connection refused"):
        await PostgresEngine(pool.url("postgres")).open()
    pool.close()


async def test_a_database_that_the_pooler_does_not_find_is_refused(pool: PgBouncer) -> None:
    with pytest.raises(EngineRefused, match='database "none_such" does not exist'):
        await PostgresEngine(pool.url("none_such")).open()
