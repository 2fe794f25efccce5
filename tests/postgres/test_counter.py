"""What was handed in at the counter, and given up, does not happen after all."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from conformance.steps import claim_one, draft, settle
from penstock.core.ids import new_id
from penstock.core.job import State, Verdict
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Filter
from penstock.errors import EngineTimeout, EngineUnavailable
from penstock.testing.clock import FakeClock
from servers.emptied import emptied
from servers.messages import runs
from servers.postgres import quick
from servers.proxy import Proxy

PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""


async def test_a_job_that_arrives_late_is_not_run_again(clock: FakeClock) -> None:
    """Its caller sends it by the other way meanwhile, and it ends."""
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        clock.advance(1.0)
        mine = draft(new_id(clock.now()))
        late = proxy.hold_before(runs("put_plain"))
        with pytest.raises(EngineTimeout):
            await asyncio.to_thread(engine.enqueue_now, mine, 0.1)
        late.wait()
        (receipt,) = await engine.enqueue([mine])
        assert receipt.created
        assert await settle(engine, await claim_one(engine), "succeeded") is Verdict.DONE
        late.release()
        await everybody_has_been_served(engine)
        waiting = Filter(states=(State.READY,))
        assert await engine.count(waiting) == 0
        await engine.close()


async def everybody_has_been_served(engine: PostgresEngine) -> None:
    """Return when the connection that was given up is gone from the server."""
    pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock'"
    async with (
        asyncio.timeout(PATIENCE),
        await psycopg.AsyncConnection.connect(emptied().url, autocommit=True) as watcher,
    ):
        while len(await (await watcher.execute(pids)).fetchall()) > 1:
            await engine.now()


async def test_a_clock_that_was_set_back_forgets_no_doubt(clock: FakeClock) -> None:
    """The id was made before, and sent after: when its reply was lost it is older than it says."""
    database = emptied()
    database.empty()
    with Proxy(quick().port) as proxy:
        engine = PostgresEngine(proxy.url(database.url), clock, follows_clock=True)
        await engine.open()
        clock.advance(100.0)
        mine = draft(new_id(clock.now()))
        clock.jump(-50.0)
        proxy.cut_after(runs("put_plain"))
        with pytest.raises(EngineUnavailable):
            await engine.enqueue([mine])
        assert await settle(engine, await claim_one(engine), "succeeded") is Verdict.DONE
        (receipt,) = await engine.enqueue([mine])
        assert receipt.because == "id"
        await engine.close()
