"""Key lines on PostgreSQL: locks, foreign transactions and both orders of commit."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from conformance.steps import ask, claim, claim_one, enqueue_jobs, ids, joined, put, settle
from penstock.core.job import Job
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import QueueSettings
from servers.emptied import emptied

Connection = psycopg.AsyncConnection[Any]

INSERT = "INSERT INTO penstock.job (id, task, key) VALUES (%s, 'work', %s)"
LOCK = "SELECT FROM penstock.live WHERE id = %s FOR UPDATE"
END = "DELETE FROM penstock.live WHERE id = %s"
SETTLE_NOTE = "INSERT INTO penstock.note (queue, key) VALUES ('default', %s)"


async def fair(engine: PostgresEngine, **settings: Any) -> None:
    await engine.set_queue("default", QueueSettings(fair=True, **settings))


async def next_ids(engine: PostgresEngine, want: int) -> list[str]:
    return ids(await claim(engine, want=want))


async def rows(other: Connection, sql: str) -> list[Any]:
    return await (await other.execute(sql.encode())).fetchall()


# --- locks ----------------------------------------------------------------------------------------


async def test_a_job_that_was_locked_while_its_line_moved_on_is_next(
    engine: PostgresEngine, other: Connection
) -> None:
    """The transaction that had it changed nothing in the end, and leaves no note."""
    await fair(engine)
    jobs = await enqueue_jobs(engine, 10, key="a")
    await other.execute(LOCK, (jobs[0],))
    assert await next_ids(engine, 3) == jobs[1:3]
    await other.rollback()
    assert await next_ids(engine, 2) == [jobs[0], jobs[3]]


async def test_a_locked_job_in_the_middle_is_not_passed_for_good(
    engine: PostgresEngine, other: Connection
) -> None:
    await fair(engine)
    jobs = await enqueue_jobs(engine, 9, key="a")
    await enqueue_jobs(engine, 9, key="b")
    await other.execute(LOCK, (jobs[2],))
    taken = await next_ids(engine, 10)
    assert jobs[2] not in taken
    await other.rollback()
    assert jobs[2] in await next_ids(engine, 2)


async def test_a_line_whose_only_job_is_locked_stays_active(
    engine: PostgresEngine, other: Connection
) -> None:
    await fair(engine)
    (job,) = await enqueue_jobs(engine, 1, key="a")
    await other.execute(LOCK, (job,))
    assert await next_ids(engine, 2) == []
    await other.rollback()
    assert await next_ids(engine, 2) == [job]


# --- notes against claims -------------------------------------------------------------------------


async def test_a_job_of_a_foreign_transaction_comes_with_its_commit(
    engine: PostgresEngine, other: Connection
) -> None:
    """Its ticket and its note are older than those that claims have read by then."""
    await fair(engine)
    await other.execute(INSERT, ("late", "b"))
    await enqueue_jobs(engine, 10, key="a")
    assert "late" not in await next_ids(engine, 5)
    await other.commit()
    engine._bounds.forget()  # as once a second
    assert "late" in await next_ids(engine, 2)


async def test_a_job_that_comes_after_its_line_became_idle_wakes_it(
    engine: PostgresEngine, other: Connection
) -> None:
    await fair(engine)
    first = await put(engine, key="a")
    await other.execute(INSERT, ("late", "a"))
    assert await next_ids(engine, 5) == [first]
    assert await next_ids(engine, 5) == []
    await other.commit()
    engine._bounds.forget()
    assert await next_ids(engine, 5) == ["late"]


async def test_an_old_ticket_in_an_active_line_is_found(
    engine: PostgresEngine, other: Connection
) -> None:
    """The line has gone on past it: its note brings the line back."""
    await fair(engine)
    await other.execute(INSERT, ("late", "a"))
    await enqueue_jobs(engine, 10, key="a")
    await claim(engine, want=5)
    await other.commit()
    engine._bounds.forget()
    assert await next_ids(engine, 1) == ["late"]


# --- settlements against claims -------------------------------------------------------------------


async def one_running(engine: PostgresEngine) -> tuple[Job, list[str]]:
    await engine.set_queue("default", QueueSettings(max_running_per_key=1))
    jobs = await enqueue_jobs(engine, 2, key="a")
    return await claim_one(engine), jobs


async def test_room_that_is_made_before_the_claim_is_used(engine: PostgresEngine) -> None:
    job, jobs = await one_running(engine)
    await settle(engine, job, "succeeded")
    assert await next_ids(engine, 5) == [jobs[1]]


async def test_room_that_is_made_while_a_claim_looks_is_used_by_the_next_one(
    engine: PostgresEngine, other: Connection
) -> None:
    """The claim finds the key at its limit, the settlement commits after it."""
    job, jobs = await one_running(engine)
    await other.execute(END, (job.id,))
    await other.execute(SETTLE_NOTE, ("a",))
    assert await next_ids(engine, 5) == []
    await other.commit()
    assert await next_ids(engine, 5) == [jobs[1]]


async def test_an_old_ticket_in_a_line_without_room_is_next(
    engine: PostgresEngine, other: Connection
) -> None:
    """Its note is read while the key is full; when a job of it ends, only the key is noted."""
    await fair(engine, max_running_per_key=1)
    await other.execute(INSERT, ("late", "a"))
    await enqueue_jobs(engine, 5, key="a")
    job = await claim_one(engine)
    await other.commit()
    engine._bounds.forget()
    assert await next_ids(engine, 5) == []
    await settle(engine, job, "succeeded")
    assert await next_ids(engine, 5) == ["late"]


# --- what is decided ------------------------------------------------------------------------------


async def test_a_transaction_that_did_not_know_the_queue_to_be_fair_loses_no_job(
    engine: PostgresEngine, other: Connection
) -> None:
    """It stored its job without a line, and commits when all others have theirs."""
    await other.execute(INSERT, ("late", "b"))
    await fair(engine)
    first = await put(engine, key="a")
    assert await next_ids(engine, 5) == [first]
    await other.commit()
    engine._bounds.forget()
    assert await next_ids(engine, 5) == ["late"]


async def test_a_transaction_that_began_while_the_queue_became_fair_loses_no_job(
    engine: PostgresEngine, other: Connection
) -> None:
    """It has a later number than the one that decided, and does not see the decision."""
    async with await psycopg.AsyncConnection.connect(emptied().url) as third:
        await third.execute(
            "INSERT INTO penstock.queue (name, settings, paused, ordered, keyed, weights, moved_to)"
            """ VALUES ('default', '{"fair":true}', false, false, true, '{}', %s)""",
            ([-(1 << 63), -(1 << 63)],),
        )
        await other.execute(INSERT, ("late", "b"))
        await third.commit()
    first = await put(engine, key="a")
    assert await next_ids(engine, 5) == [first]
    await next_ids(engine, 5)
    await other.commit()
    engine._bounds.forget()
    assert await next_ids(engine, 5) == ["late"]


async def test_a_job_that_comes_behind_a_claim_that_moves_jobs_is_not_lost(
    engine: PostgresEngine, other: Connection
) -> None:
    """Its ticket is older than those that have their lines, and all is known to all at the end."""
    await other.execute(INSERT, ("late", "b"))
    await enqueue_jobs(engine, 450, key="a")
    await fair(engine)
    await next_ids(engine, 1)
    await other.commit()
    served: list[str] = []
    for _ in range(6):
        engine._bounds.forget()
        served += await next_ids(engine, 2)
    assert "late" in served


async def test_a_job_that_was_locked_while_the_queue_became_fair_is_not_lost(
    engine: PostgresEngine, other: Connection
) -> None:
    job = await put(engine, key="a")
    await fair(engine)
    await other.execute(LOCK, (job,))
    assert await next_ids(engine, 5) == []
    await other.rollback()
    assert await next_ids(engine, 5) == [job]


async def test_a_transaction_that_never_sees_the_queue_become_fair_loses_no_job(
    engine: PostgresEngine, other: Connection
) -> None:
    """A repair finds what it has left."""
    await other.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await other.execute("SELECT count(*) FROM penstock.queue")
    await fair(engine)
    first = await put(engine, key="a")
    assert await next_ids(engine, 5) == [first]
    await other.execute(INSERT, ("late", "b"))
    await other.commit()
    assert (await engine.repair(100)).lines == 1
    assert await next_ids(engine, 5) == ["late"]


async def test_a_queue_that_is_fair_from_the_start_moves_nothing(
    engine: PostgresEngine, other: Connection
) -> None:
    await fair(engine)
    await claim(engine, want=1)
    assert await rows(other, "SELECT moved_to FROM penstock.queue") == [(None,)]
    await enqueue_jobs(engine, 3, key="a")
    notes = await rows(other, "SELECT priority, key FROM penstock.note")
    assert notes == [(5, "a")], "one for each batch and line"


async def test_idle_lines_are_pruned_but_for_the_last_place(
    engine: PostgresEngine, other: Connection
) -> None:
    await fair(engine)
    for number in range(4):
        await put(engine, key=f"k{number}")
    for job in await claim(engine, want=9):
        await settle(engine, job, "succeeded")
    await claim(engine, want=1)
    await put(engine, key="later")
    for job in await claim(engine, want=9):
        await settle(engine, job, "succeeded")
    await engine.prune(100)
    assert len(await rows(other, "SELECT key FROM penstock.key_line")) == 1


@pytest.mark.parametrize("tenants", [25])
async def test_a_claim_reads_no_more_rows_for_a_hundred_thousand_jobs_of_one_key(
    engine: PostgresEngine, other: Connection, tenants: int
) -> None:
    """Single jobs of other keys are next, however many of the first one wait."""
    await fair(engine)
    await enqueue_jobs(engine, 20_000, key="a")
    singles = [await put(engine, key=f"t{number}") for number in range(tenants)]
    worker = await joined(engine)
    await engine.exchange(ask(worker, "default", want=1, slots=1))
    answer = await engine.exchange(ask(worker, "default", want=50, slots=50))
    assert set(singles) <= set(ids(answer.jobs))
