"""A loop with a place of its own at the counter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from conformance.steps import draft
from penstock.clock import SystemClock
from penstock.core.ids import new_id
from penstock.core.job import Draft
from penstock.engines.postgres.booth import Booth
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.regulars import REGULAR, Regulars
from postgres.visitors import Answers, until
from servers.emptied import emptied
from servers.postgres import quick
from servers.proxy import Proxy


def job(**fields: object) -> Draft:
    return draft(new_id(SystemClock.now()), **fields)


def regulars_of(engine: PostgresEngine) -> Regulars:
    assert engine._counter is not None
    return engine._counter._regulars


async def come(engine: PostgresEngine, answers: Answers, times: int) -> None:
    """Come with one job after the other."""
    for number in range(len(answers.told), len(answers.told) + times):
        engine.enqueue_soon(job(), answers)
        await answers.come(number + 1)


async def come_often(engine: PostgresEngine) -> Booth:
    """Come until this loop has its place; return it."""
    await come(engine, Answers(), REGULAR - 1)
    assert regulars_of(engine)._invited is None
    await come(engine, Answers(), 1)
    await until(lambda: regulars_of(engine)._booth is not None)
    booth = regulars_of(engine)._booth
    assert booth is not None
    return booth


@asynccontextmanager
async def at_the_booth() -> AsyncIterator[tuple[PostgresEngine, Proxy, Booth]]:
    """A handle behind a proxy with one place, and so many jobs as it took to get that."""
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url))
        await engine.open()
        try:
            yield engine, proxy, await come_often(engine)
        finally:
            await engine.close()
    await no_connection_is_left()


async def no_connection_is_left() -> None:
    assert await asyncio.to_thread(emptied().left_open) == []
