"""The leader clears dead rows away, as soon as it is worth it and no more often."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from penstock.clock import SystemClock
from penstock.engines.observed import Observed
from penstock.engines.postgres import engine as engines
from penstock.engines.postgres import tidying
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.tidying import EVERY, IN_VAIN, SHARE, Tidying
from penstock.engines.queries import statements
from penstock.errors import EngineUnavailable
from penstock.events import Bus
from postgres.works import PATIENCE

ROWS = 3000
CROWD = f"""
INSERT INTO penstock.live (entry, seq, priority, enqueued_at, id, task, queue, state, payload)
SELECT n, n, 5, 0, 'crowd-' || n, 'work', 'default', 'ready', ''
  FROM generate_series(1, {ROWS}) AS n
"""
TERMINATE = "SELECT pg_terminate_backend(pg_backend_pid())"
SEEN = """
SELECT pg_stat_get_dead_tuples('penstock.live'::regclass),
       pg_stat_get_vacuum_count('penstock.live'::regclass)
"""


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def person(postgres_url: str, engine: PostgresEngine) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        # Only we clear anything away here.
        connection.execute("ALTER TABLE penstock.live SET (autovacuum_enabled = off)")
        yield connection


async def rows_die(person: psycopg.Connection[Any], left: int = 0) -> None:
    """Let many jobs go; return when the server has counted them."""
    person.execute(CROWD.encode())
    person.execute(f"DELETE FROM penstock.live WHERE entry > {left}".encode())
    async with asyncio.timeout(PATIENCE):
        while seen(person)[0] < ROWS - left:  # noqa: ASYNC110  (the server tells nobody)
            await asyncio.sleep(0.05)


def seen(person: psycopg.Connection[Any]) -> tuple[int, int]:
    """Dead rows, and how often somebody has cleared them away."""
    (found,) = person.execute(SEEN).fetchall()
    return found


def rested(engine: PostgresEngine) -> None:
    """Let the pause after the last time be over."""
    engine._tidying._rests_until = -math.inf


async def test_dead_rows_are_cleared_away_when_they_are_many(
    engine: PostgresEngine, person: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await rows_die(person)
    assert await engine.tidy() == EVERY
    assert seen(person) == (ROWS, 0)
    monkeypatch.setattr(tidying, "FEW", ROWS // 2)
    assert 0 < await engine.tidy() < IN_VAIN[0] / 2
    assert seen(person) == (0, 1)
    rested(engine)
    assert await engine.tidy() == EVERY
    assert seen(person) == (0, 1)


async def test_it_rests_though_there_are_many_again(
    engine: PostgresEngine, person: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "FEW", ROWS // 2)
    await rows_die(person)
    await engine.tidy()
    monkeypatch.setattr(engine._tidying, "_rests_until", SystemClock.monotonic() + PATIENCE)
    await rows_die(person)
    assert EVERY < await engine.tidy() <= PATIENCE
    assert seen(person)[1] == 1


async def test_while_a_transaction_keeps_them_it_is_tried_less_and_less(
    engine: PostgresEngine,
    person: psycopg.Connection[Any],
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tidying, "FEW", ROWS // 2)
    pauses = []
    with psycopg.connect(postgres_url) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT pg_current_xact_id()")
        await rows_die(person)
        for _ in range(5):
            rested(engine)
            began_at = SystemClock.monotonic()
            pauses.append(await engine.tidy() + SystemClock.monotonic() - began_at)
    assert pauses == pytest.approx([60.0, 120.0, 240.0, 480.0, 600.0], abs=5.0)
    rested(engine)
    assert await engine.tidy() < IN_VAIN[0] / 2
    assert seen(person)[0] == 0


async def test_whoever_is_at_it_already_is_left_alone(
    engine: PostgresEngine,
    person: psycopg.Connection[Any],
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their lock is the one that a vacuum takes; nobody waits for it long."""
    monkeypatch.setattr(tidying, "FEW", ROWS // 2)
    await rows_die(person)
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE penstock.live IN SHARE UPDATE EXCLUSIVE MODE")
        for _ in range(3):
            rested(engine)
            assert await engine.tidy() <= EVERY
    assert seen(person) == (ROWS, 0)


@pytest.mark.parametrize("end", ["SET statement_timeout = 1; SELECT pg_sleep(60)", TERMINATE])
async def test_after_one_that_was_cut_short_autovacuum_has_its_turn(
    engine: PostgresEngine,
    person: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    """Whoever tries again at once would cut it short at once, and lock out who has the time."""
    monkeypatch.setattr(tidying, "FEW", ROWS // 2)
    await rows_die(person)
    slow = {**statements("postgres/tidying.sql"), "vacuum": end}
    monkeypatch.setattr(engines, "statements", lambda _: slow)
    with suppress(EngineUnavailable):
        await Observed(engine, Bus()).tidy()
    assert engine._tidying.rests_for > IN_VAIN[0] / 2
    assert await engine.tidy() > IN_VAIN[0] / 2


async def test_one_that_is_cancelled_rests_as_well(
    engine: PostgresEngine, person: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "FEW", ROWS // 2)
    await rows_die(person)
    slow = {**statements("postgres/tidying.sql"), "vacuum": "SELECT pg_sleep(60)"}
    monkeypatch.setattr(engines, "statements", lambda _: slow)
    began = asyncio.Event()
    begin = engine._tidying.begin

    def noted() -> None:
        begin()
        began.set()

    monkeypatch.setattr(engine._tidying, "begin", noted)
    clearing = asyncio.create_task(engine.tidy())
    await began.wait()
    clearing.cancel()
    await asyncio.wait([clearing])
    assert engine._tidying.rests_for > IN_VAIN[0] / 2


async def test_what_belongs_to_others_is_left_to_them(
    engine: PostgresEngine, person: psycopg.Connection[Any], postgres_url: str
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
        assert await guest.tidy() == math.inf
        await guest.close()
    finally:
        person.execute("ALTER TABLE penstock.live OWNER TO postgres")
        person.execute("DROP OWNED BY tidy_guest, tidy_owner CASCADE")
        person.execute("DROP ROLE tidy_guest, tidy_owner")


def test_it_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(SystemClock, "monotonic", staticmethod(lambda: now[0]))
    for took, rest in ((0.1, EVERY), (4.0, 4.0 * SHARE)):
        it = Tidying()
        it.begin()
        now[0] += took
        it.end(1000, 0)
        assert it.rests_for == pytest.approx(rest)


def test_beside_many_live_rows_more_have_to_be_dead() -> None:
    assert Tidying().is_worth_it(30_000, 0)
    assert not Tidying().is_worth_it(30_000, 1_000_000)
    assert Tidying().is_worth_it(300_000, 1_000_000)
