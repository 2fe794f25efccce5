"""What is only looked at costs by what is found: rows that are not asked for are not read.

The statistics are wrong on purpose: they were taken when the store was all but empty, or knew one
queue only. The server itself counts which rows it has touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest

from conformance.steps import put
from penstock.core.job import KEEP, State
from penstock.engines import reads as shared
from penstock.engines.postgres import reads
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.transaction import SQL
from penstock.engines.records import Filter
from penstock.testing.clock import FakeClock
from servers.emptied import Emptied

MANY = 3000
DAY = 86_400.0
BUSY = "the-queue-that-has-all-the-jobs-but-those-that-are-looked-for"
"""So long that the indexes which begin with the queue are the larger ones: no plan prefers them."""

CROWD = """
INSERT INTO penstock.live (entry, seq, priority, enqueued_at, run_at, expires_at, hold, hold_until,
                           claimed_at, id, task, queue, state, payload)
SELECT 1000 + n, 1000 + n, 5, %(now)s, %(now)s + n, CASE WHEN n %% 7 = 0 THEN %(now)s + 2 * n END,
       CASE n %% 4 WHEN 2 THEN 'breaker' WHEN 3 THEN 'rate' END,
       CASE n %% 4 WHEN 3 THEN %(now)s + n END, CASE WHEN n %% 3 = 0 THEN %(now)s END,
       'crowd-' || n, 'work', %(queue)s, CASE n %% 4 WHEN 0 THEN 'scheduled' ELSE 'ready' END, ''
  FROM generate_series(1, %(many)s) AS n
"""
ENDED = """
INSERT INTO penstock.history (entry, seq, priority, enqueued_at, finished_at, id, task, queue,
                              state, payload)
SELECT n, n, 5, %(at)s, %(at)s, 'ended-' || n, 'work', 'default', 'succeeded', ''
  FROM generate_series(%(first)s + 1, %(first)s + %(many)s) AS n
"""
TOUCHED = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
  FROM pg_stat_xact_user_tables
 WHERE schemaname = 'penstock' AND (relname = 'live' OR relname LIKE 'history%')
"""


class Peek:
    """A snapshot on a connection of its own, which knows how many rows of jobs it has touched."""

    def __init__(self, url: str, connection: psycopg.AsyncConnection[Any], now: float) -> None:
        self._url = url
        self._connection = connection
        self.now = now

    def run(self, sql: str, **values: object) -> None:
        """Change something meanwhile, on another connection."""
        run(self._url, sql, **values)

    def end_many(self, at: float, first: int) -> None:
        """Let many jobs have ended at an instant, which are kept for as long as usual."""
        self.run("SELECT penstock.make_day(%(at)s)", at=at + KEEP)
        self.run(ENDED, at=at, first=first, many=MANY)

    async def rows(
        self, sql: str, values: Mapping[str, object] | Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(sql.encode(), values or None)
        return await cursor.fetchall()

    async def ask(
        self, name: str, values: Mapping[str, object] | Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        return await self.rows(SQL[name], values)

    async def touched(self) -> int:
        ((rows,),) = await self.rows(TOUCHED)
        return int(rows)


@pytest.fixture
def database() -> Iterator[Emptied]:
    """One that no other test has used: what they deleted, and what was counted of it, is there."""
    database = Emptied()
    yield database
    database.close()


@pytest.fixture
async def engine(database: Emptied, clock: FakeClock) -> AsyncIterator[PostgresEngine]:
    """A store whose statistics know one job."""
    engine = PostgresEngine(database.url, clock, follows_clock=True)
    await engine.open()
    await put(engine, "first", queue=BUSY)
    run(database.url, "ANALYZE penstock.live")
    yield engine
    await engine.close()
    assert database.left_open() == []


@pytest.fixture
async def peek(database: Emptied, engine: PostgresEngine) -> AsyncIterator[Peek]:
    now = await shared.now(engine)
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        await connection.execute(f"SET penstock_clock.now = '{now!r}'")
        yield Peek(database.url, connection, now)


def run(url: str, sql: str, **values: object) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode(), values or None)


async def test_finished_jobs_are_got_by_their_ids_in_every_day(
    engine: PostgresEngine, peek: Peek
) -> None:
    peek.end_many(peek.now - DAY, first=0)
    peek.end_many(peek.now, first=MANY)
    ids = ["ended-1", f"ended-{MANY + 1}", "first", "nobody"]
    found = await reads.get(peek, ids)
    assert [job and job.id for job in found] == [*ids[:3], None]
    assert await peek.touched() <= 3


async def test_a_page_of_finished_jobs_costs_a_page(engine: PostgresEngine, peek: Peek) -> None:
    peek.end_many(peek.now - DAY, first=0)
    peek.end_many(peek.now, first=MANY)
    page = await reads.find(peek, Filter(), None, 10)
    assert [job.id for job in page.jobs] == [f"ended-{2 * MANY - n}" for n in range(10)]
    older = await reads.find(peek, Filter(), str(MANY + 5), 10)
    assert [job.id for job in older.jobs] == [f"ended-{MANY + 4 - n}" for n in range(10)]
    # One more than a page, one of each day to compare, and the one that waits.
    assert await peek.touched() <= 2 * (11 + 2 + 1)


async def test_named_jobs_are_found_by_their_names(engine: PostgresEngine, peek: Peek) -> None:
    peek.end_many(peek.now - DAY, first=0)
    peek.run(CROWD, now=peek.now, queue=BUSY, many=MANY)
    which = Filter(ids=("crowd-7", "ended-7"))
    page = await reads.find(peek, which, None, 10)
    assert [job.id for job in page.jobs] == ["crowd-7", "ended-7"]
    assert await peek.touched() <= 2


async def test_a_state_that_a_table_cannot_have_is_not_looked_for_there(
    engine: PostgresEngine, peek: Peek
) -> None:
    peek.end_many(peek.now, first=0)
    (count,) = await reads.counts(peek, Filter(states=(State.READY, State.RUNNING)))
    assert count.jobs == 1
    assert await peek.touched() == 1
    found = await reads.counts(peek, Filter(states=(State.READY, State.SUCCEEDED)))
    assert sum(each.jobs for each in found) == 1 + MANY


async def test_counts_read_nothing_of_what_ended_before_they_ask(
    engine: PostgresEngine, peek: Peek
) -> None:
    peek.end_many(peek.now - DAY, first=-MANY)
    states = (State.READY, State.SCHEDULED, State.RUNNING, State.FAILED)
    assert sum(each.jobs for each in await reads.counts(peek, Filter(states=states))) == 1
    since = Filter(states=(State.SUCCEEDED, State.FAILED), finished_since=peek.now - 60)
    assert await reads.counts(peek, since) == []
    assert await reads.queues(peek) == {}
    assert await peek.touched() <= 10
