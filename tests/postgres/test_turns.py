"""Turns that meet what is odd: ids and priorities at the edge, keys and rows that others have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from conformance.steps import (
    ask,
    claim_one,
    draft,
    enqueue_jobs,
    joined,
    outcome,
    put,
    send,
    settle,
    stored,
)
from penstock.core.job import Draft, State, Verdict
from penstock.engines import changes, reads
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import QueueSettings
from penstock.errors import EngineBusy
from penstock.testing.clock import FakeClock
from postgres.puts import PUT, columns, refused
from servers.emptied import emptied

LEAST = -(1 << 63)
PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""


@pytest.fixture
async def connection(engine: PostgresEngine) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody else's, whose clock is the engine's."""
    async with await psycopg.AsyncConnection.connect(emptied().url) as connection:
        await connection.execute(f"SET penstock_clock.now = '{await reads.now(engine)!r}'")
        await connection.commit()
        yield connection


async def until(sql: str, *values: object) -> None:
    """Return when the server says so."""
    async with (
        asyncio.timeout(PATIENCE),
        await psycopg.AsyncConnection.connect(emptied().url, autocommit=True) as watcher,
    ):
        while not await (await watcher.execute(sql.encode(), values)).fetchall():
            pass


# --- ids and priorities --------------------------------------------------------------------------


async def test_a_job_whose_id_is_empty_ends_as_any_other(engine: PostgresEngine) -> None:
    await engine.enqueue([Draft(id="", task="work")])
    job = await claim_one(engine)
    assert await settle(engine, job, "succeeded") is Verdict.DONE
    assert (await stored(engine, "")).state is State.SUCCEEDED


async def test_what_has_begun_is_marked_whatever_its_id(engine: PostgresEngine) -> None:
    ids = ["", "a\x1fb", "c"]
    for id in ids:
        await engine.enqueue([Draft(id=id, task="work")])
    worker = await joined(engine)
    jobs = (await engine.exchange(ask(worker, want=3, slots=0))).jobs
    await send(engine, worker, begun=tuple((job.id, job.claim) for job in jobs))
    assert [(await stored(engine, id)).started for id in ids] == [True] * 3


async def test_the_most_urgent_number_of_all_is_a_priority(engine: PostgresEngine) -> None:
    await enqueue_jobs(engine, 2, priority=LEAST)
    worker = await joined(engine)
    for _ in range(2):
        await claim_one(engine, worker=worker)


async def test_a_queue_that_cannot_be_takes_no_other_ones_turn(engine: PostgresEngine) -> None:
    worker = await joined(engine)
    first = await put(engine, queue="c")
    await enqueue_jobs(engine, 3, queue="b")
    queues = ("a\0", "b", "c")
    assert (await claim_one(engine, *queues, worker=worker)).queue == "b"
    assert (await engine.exchange(ask(worker, *queues, want=2))).jobs[1].id == first
    assert await engine.exchange(ask(worker, "a\0")) is not None


async def test_of_jobs_that_have_ended_nothing_is_kept(engine: PostgresEngine) -> None:
    """A worker lives for months."""
    worker = await joined(engine)
    for kind, fields in (
        ("succeeded", {"result": b"x" * 5000}),
        ("failed", {}),
        ("retry", {"delay": 60.0}),
        ("succeeded", {}),
    ):
        await put(engine)
        job = await claim_one(engine, worker=worker)
        await settle(engine, job, kind, **fields)
    assert engine._claiming().ctids == {}


# --- unique keys ---------------------------------------------------------------------------------


async def test_a_repeated_id_leaves_the_window_of_its_key_alone(engine: PostgresEngine) -> None:
    mine = draft(unique="k", unique_for=60.0)
    await engine.enqueue([mine])
    await settle(engine, await claim_one(engine), "succeeded")
    (again,) = await engine.enqueue([mine])
    assert again.because == "id"
    (other,) = await engine.enqueue([draft(unique="k", unique_for=60.0)])
    assert (other.id, other.because) == (mine.id, "unique")


async def test_an_id_sent_twice_at_once_leaves_the_key_with_its_job(
    engine: PostgresEngine, connection: psycopg.AsyncConnection[Any]
) -> None:
    """The first one commits while the second one waits for its key."""
    mine = draft(unique="k")
    await connection.execute(PUT, columns(mine))
    async with await psycopg.AsyncConnection.connect(emptied().url) as second:
        await second.execute(f"SET penstock_clock.now = '{await reads.now(engine)!r}'")
        sent = asyncio.create_task(second.execute(PUT, columns(mine)))
        pid = second.info.backend_pid
        await until("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s", pid)
        await connection.commit()
        assert refused(await (await sent).fetchall()) == [(1, mine.id, "id", mine.task)]
        await second.commit()
    (other,) = await engine.enqueue([draft(unique="k")])
    assert (other.id, other.because) == (mine.id, "unique")


async def test_who_takes_a_key_that_is_free_again_keeps_nobody_from_ending(
    engine: PostgresEngine, clock: FakeClock, connection: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    await put(engine, unique="k", unique_until="start", unique_for=60.0)
    job = await claim_one(engine, worker=worker)
    await put(engine)
    beside = await claim_one(engine, worker=worker)
    clock.advance(100.0)
    taking = draft(unique="k")
    await connection.execute(f"SET penstock_clock.now = '{await reads.now(engine)!r}'")
    cursor = await connection.execute(PUT, columns(taking))
    assert refused(await cursor.fetchall()) == []
    told = await send(engine, worker, outcome(job, "succeeded"), outcome(beside, "succeeded"))
    assert told.verdicts == (Verdict.DONE, Verdict.DONE)
    await connection.commit()
    (other,) = await engine.enqueue([draft(unique="k")])
    assert other.id == taking.id


# --- orders that cross ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "retry"])
async def test_many_are_locked_in_one_order(
    engine: PostgresEngine, connection: psycopg.AsyncConnection[Any], verb: str
) -> None:
    """Whoever waits for one has none that another, who goes the other way, waits for."""
    for id in ("a", "b"):
        await put(engine, id)
    if verb == "retry":
        await changes.cancel(engine, ["a", "b"], "for now")
    table = "live" if verb == "cancel" else "history"
    lock = f"SELECT id FROM penstock.{table} WHERE id = %s FOR UPDATE NOWAIT".encode()
    await connection.execute(lock, ("a",))
    ids = ["b", "a"]
    verbs = {
        "cancel": lambda: changes.cancel(engine, ids, "both"),
        "retry": lambda: changes.retry(engine, ids),
    }
    task = asyncio.create_task(verbs[verb]())
    await until(
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%FOR UPDATE'"
    )
    async with await psycopg.AsyncConnection.connect(emptied().url) as third:
        assert await (await third.execute(lock, ("b",))).fetchall() == [("b",)]
    await connection.rollback()
    try:
        assert [(each.id, each.changed) for each in await task] == [("b", True), ("a", True)]
    except EngineBusy:
        pass  # this machine was too slow to let go in time


LOCK = "SELECT pg_advisory_xact_lock(hashtext('penstock.queue'), hashtext(%s))"


@pytest.mark.parametrize("settings", [{"max_running": 5}, {"ordered": True}, {"fair": True}])
async def test_a_queue_that_another_claimer_has_locked_is_skipped_and_not_waited_for(
    engine: PostgresEngine, connection: psycopg.AsyncConnection[Any], settings: dict[str, Any]
) -> None:
    """The turn has outcomes that are committed at once, and jobs of its other queues."""
    await engine.set_queue("q", QueueSettings(**settings))
    await enqueue_jobs(engine, 5, queue="q")
    await enqueue_jobs(engine, 2)
    worker = await joined(engine)
    done = await claim_one(engine, worker=worker)
    await connection.execute(LOCK, ("q",))
    turn = ask(worker, "q", "default", want=5, outcomes=(outcome(done, "succeeded"),))
    given = await engine.exchange(turn)
    assert [job.queue for job in given.jobs] == ["default"]
    assert given.verdicts == (Verdict.DONE,)
    assert given.due_in is not None
    assert 0 < given.due_in < 0.1
    await connection.rollback()
    assert (await engine.exchange(ask(worker, "q", want=5))).jobs


async def test_what_is_promoted_by_another_claimer_is_not_waited_for(
    engine: PostgresEngine, clock: FakeClock, connection: psycopg.AsyncConnection[Any]
) -> None:
    await put(engine, delay=5)
    mine = await put(engine)
    worker = await joined(engine)
    clock.advance(6.0)
    await connection.execute(LOCK, ("",))
    given = await engine.exchange(ask(worker, want=5))
    assert [job.id for job in given.jobs] == [mine]
    assert given.due_in is not None
    assert 0 < given.due_in < 0.1
    await connection.rollback()
    assert len((await engine.exchange(ask(worker, want=5))).jobs) == 1


async def test_what_has_begun_and_is_locked_keeps_no_outcome_waiting(
    engine: PostgresEngine, connection: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    await enqueue_jobs(engine, 2)
    first, second = (await engine.exchange(ask(worker, want=2, slots=0))).jobs
    await connection.execute("SELECT FROM penstock.live WHERE id = %s FOR UPDATE", (first.id,))
    told = await send(
        engine, worker, outcome(second, "succeeded"), begun=((first.id, first.claim),)
    )
    assert told.verdicts == (Verdict.DONE,)
