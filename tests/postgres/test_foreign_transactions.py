"""Transactions of others that stay open, while workers work: nobody waits but who wants the same.

What an open transaction keeps from each single verb is in ``test_borrowed_locks``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from penstock import State
from postgres.works import Works

INSERT = (
    "INSERT INTO penstock.job (id, task, queue, unique_key)"
    " VALUES ('held', 'work', 'unserved', 'seven')"
)
SAME: list[dict[str, Any]] = [{"id": "held"}, {"unique": "seven"}]


@pytest.fixture
def works(postgres_url: str) -> Iterator[Works]:
    works = Works(postgres_url)
    yield works
    works.app.close()


@pytest.fixture
def other(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody's connection, whose transaction ends when the test says so."""
    with closing(psycopg.connect(postgres_url)) as connection:
        yield connection


@pytest.mark.parametrize("same", SAME, ids=str)
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_job_that_plain_sql_holds_open_delays_nobody_else(
    works: Works, other: psycopg.Connection[Any], same: dict[str, Any], ends: str
) -> None:
    """Two hundred jobs come, fall due, run and end meanwhile; the same one waits for the end."""
    async with works.workers(2, lease=1.0):
        other.execute(INSERT.encode())
        contested = asyncio.create_task(works.work.using(**same).aenqueue(7))
        now = [works.work.using(id=f"now-{n}", unique=f"u{n}").aenqueue(n) for n in range(100)]
        later = [works.work.using(delay=0.01).aenqueue(n) for n in range(100, 200)]
        await asyncio.gather(*now, *later)
        await works.until_ended(200)
        assert not contested.done()

        getattr(other, ends)()
        job = await contested
        assert job.created is (ends == "rollback")
        if job.created:
            await job.aresult(60)
        else:
            assert (job.id, (await job.astatus()).state) == ("held", State.READY)
    assert sum(works.ran.values()) == (201 if ends == "rollback" else 200)


async def test_a_row_that_somebody_keeps_delays_its_own_end_alone(
    works: Works, other: psycopg.Connection[Any]
) -> None:
    """The attempt has run and cannot be settled yet; all others are, by the same worker."""
    async with works.workers(1):
        held = await works.held.aenqueue()
        await works.until(lambda: works.begun)
        other.execute("SELECT FROM penstock.live WHERE id = %s FOR UPDATE", (held.id,))
        works.let_go()
        await works.enqueued(200)
        await works.until_ended(200)
        assert (await held.astatus()).state is State.RUNNING

        other.rollback()
        await held.aresult(60)
    assert (await held.astatus()).attempt == 1
