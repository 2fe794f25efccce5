"""What the tests of this engine alone share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from penstock.engines.postgres.engine import PostgresEngine
from penstock.testing.clock import FakeClock
from servers.emptied import emptied


@pytest.fixture
async def engine(clock: FakeClock) -> AsyncIterator[PostgresEngine]:
    """A handle on a store with nothing in it, whose time is the test's."""
    database = emptied()
    database.empty()
    engine = PostgresEngine(database.url, clock, follows_clock=True)
    await engine.open()
    yield engine
    await engine.close()
    assert database.left_open() == []


@pytest.fixture
async def other() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody else, in a transaction."""
    async with await psycopg.AsyncConnection.connect(emptied().url) as connection:
        yield connection
        await connection.rollback()
