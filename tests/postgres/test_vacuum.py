"""The leader clears dead rows away, as soon as it is worth it and no more often."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from penstock.clock import SystemClock
from penstock.engines.engine import Engine
from penstock.engines.observed import Observed
from penstock.engines.postgres import vacuum
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.vacuum import EVERY, IN_VAIN, SHARE, Vacuum
from penstock.events import Bus
from postgres.works import PATIENCE
from servers.pgbouncer import PgBouncer
from servers.postgres import count_now, quick

ROWS = 3000
CROWD = f"""
INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, payload)
SELECT n, n, 5, 0, 'crowd-' || n, 'work', 'default', 'ready', ''
  FROM generate_series(1, {ROWS}) AS n
"""
LONG = "SELECT pg_sleep(60)"
SEEN = """
SELECT pg_stat_get_dead_tuples('penstock.live'::regclass),
       pg_stat_get_vacuum_count('penstock.live'::regclass)
"""


Person = psycopg.Connection[Any]


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def person(postgres_url: str, engine: PostgresEngine) -> Iterator[Person]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        # Only we clear anything away here.
        connection.execute("ALTER TABLE penstock.live SET (autovacuum_enabled = off)")
        yield connection


@pytest.fixture
def other(postgres_url: str, engine: PostgresEngine) -> Iterator[Person]:
    """Somebody whose transaction is open until it is ended."""
    with psycopg.connect(postgres_url) as connection:
        yield connection


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few dead rows are worth it."""
    monkeypatch.setattr(vacuum, "FEW", ROWS // 2)


def rows_die(person: Person) -> None:
    """Let jobs go, and let the server count them."""
    person.execute(CROWD.encode())
    person.execute("DELETE FROM penstock.live")
    count_now(person)


def seen(person: Person) -> tuple[int, int]:
    """Dead rows, and how often somebody has cleared them away."""
    (found,) = person.execute(SEEN).fetchall()
    return found


def rested(engine: PostgresEngine) -> PostgresEngine:
    """Let the pause after the last time be over."""
    engine._vacuum._rests_until = -math.inf
    return engine


async def tidied(engine: Engine) -> float | None:
    """Prune; return when the store wants it again."""
    return (await engine.prune(10)).again_in


async def test_dead_rows_are_cleared_away_when_they_are_many(
    engine: PostgresEngine, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_die(person)
    assert await tidied(engine) == EVERY
    assert seen(person) == (ROWS, 0)
    monkeypatch.setattr(vacuum, "FEW", ROWS // 2)
    assert 0 < (await tidied(engine) or 0) < IN_VAIN[0] / 2
    assert seen(person) == (0, 1)
    assert await tidied(rested(engine)) is None
    assert seen(person) == (0, 1)


@pytest.mark.usefixtures("many")
async def test_it_rests_though_there_are_many_again(
    engine: PostgresEngine, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_die(person)
    await tidied(engine)
    monkeypatch.setattr(engine._vacuum, "_rests_until", SystemClock.monotonic() + PATIENCE)
    rows_die(person)
    assert EVERY < (await tidied(engine) or 0) <= PATIENCE
    assert seen(person)[1] == 1


@pytest.mark.usefixtures("many")
async def test_while_a_transaction_keeps_them_it_is_tried_less_and_less(
    engine: PostgresEngine, person: Person, other: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(SystemClock, "monotonic", staticmethod(lambda: now[0]))
    other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other.execute("SELECT pg_current_xact_id()")
    rows_die(person)
    pauses = [await tidied(rested(engine)) for _ in range(5)]
    assert pauses == [60.0, 120.0, 240.0, 480.0, 600.0]
    other.rollback()
    assert await tidied(rested(engine)) == EVERY
    assert seen(person)[0] == 0


@pytest.mark.usefixtures("many")
async def test_whoever_is_at_it_already_is_left_alone(
    engine: PostgresEngine, person: Person, other: Person
) -> None:
    """Their lock is the one that a vacuum takes; nobody waits for it long."""
    rows_die(person)
    other.execute("LOCK TABLE penstock.live IN SHARE UPDATE EXCLUSIVE MODE")
    pauses = [await tidied(rested(engine)) for _ in range(3)]
    assert max(pause or 0 for pause in pauses) <= EVERY
    assert seen(person) == (ROWS, 0)


def slowed(monkeypatch: pytest.MonkeyPatch, instead: str) -> None:
    """Let something else happen in the place of a vacuum."""
    monkeypatch.setattr(vacuum, "SQL", {**vacuum.SQL, "vacuum": instead})


@pytest.mark.usefixtures("many")
async def test_one_that_takes_too_long_leaves_its_turn_to_autovacuum(
    engine: PostgresEngine, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tried again at once would cut it short at once, and lock out who has the time."""
    rows_die(person)
    limits = "SET statement_timeout = 1"
    monkeypatch.setattr(vacuum, "SQL", {**vacuum.SQL, "limits": limits, "vacuum": LONG})
    assert (await tidied(engine) or 0) > IN_VAIN[0] / 2
    assert (await tidied(engine) or 0) > IN_VAIN[0] / 2


@pytest.mark.usefixtures("many")
async def test_one_whose_connection_ends_is_not_repeated_at_once(
    engine: PostgresEngine, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_die(person)
    slowed(monkeypatch, "SELECT pg_terminate_backend(pg_backend_pid())")
    assert (await tidied(Observed(engine, Bus())) or 0) > IN_VAIN[0] / 2
    assert (await tidied(engine) or 0) > IN_VAIN[0] / 2


@pytest.mark.usefixtures("many")
async def test_one_that_is_cancelled_rests_as_well(
    engine: PostgresEngine, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_die(person)
    slowed(monkeypatch, LONG)
    begun = asyncio.Event()
    begin = engine._vacuum._begin

    def noted() -> None:
        begin()
        begun.set()

    monkeypatch.setattr(engine._vacuum, "_begin", noted)
    clearing = asyncio.create_task(tidied(engine))
    await begun.wait()
    clearing.cancel()
    await asyncio.wait([clearing])
    assert (await tidied(engine) or 0) > IN_VAIN[0] / 2


@pytest.mark.usefixtures("many")
async def test_behind_a_pooler_it_is_left_to_autovacuum(
    engine: PostgresEngine, person: Person
) -> None:
    rows_die(person)
    with PgBouncer(quick()) as pooler:
        pooled = PostgresEngine(pooler.url(person.info.dbname))
        await pooled.open()
        assert await tidied(pooled) is None
        await pooled.close()
    assert seen(person) == (ROWS, 0)


async def test_what_belongs_to_others_is_left_to_them(
    engine: PostgresEngine, person: Person, postgres_url: str
) -> None:
    """Also by a member of that role who has to take it on first."""
    person.execute("CREATE ROLE tidy_guest LOGIN NOINHERIT; CREATE ROLE tidy_owner")
    try:
        person.execute("SELECT penstock.allow('tidy_guest', 'work')")
        person.execute("GRANT tidy_owner TO tidy_guest")
        person.execute("GRANT ALL ON SCHEMA penstock TO tidy_owner")
        person.execute("ALTER TABLE penstock.live OWNER TO tidy_owner")
        guest = PostgresEngine(postgres_url.replace("postgres@", "tidy_guest@"))
        await guest.open()
        assert await tidied(guest) is None
        await guest.close()
    finally:
        person.execute("ALTER TABLE penstock.live OWNER TO postgres")
        person.execute("DROP OWNED BY tidy_guest, tidy_owner CASCADE")
        person.execute("DROP ROLE tidy_guest, tidy_owner")


def test_it_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(SystemClock, "monotonic", staticmethod(lambda: now[0]))
    for took, rest in ((0.1, EVERY), (4.0, 4.0 * SHARE)):
        it = Vacuum()
        it._begin()
        now[0] += took
        it._end(1000, 0)
        assert it.rests_for == pytest.approx(rest)


def test_beside_many_live_rows_more_have_to_be_dead() -> None:
    assert Vacuum().is_worth_it(30_000, 0)
    assert not Vacuum().is_worth_it(30_000, 1_000_000)
    assert Vacuum().is_worth_it(300_000, 1_000_000)
