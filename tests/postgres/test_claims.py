"""How the store finds what runs and what is next, whatever others do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import psycopg
import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    draft,
    enqueue_jobs,
    ids,
    joined,
    outcome,
    put,
    send,
    settle,
)
from conformance.waiting import breathe
from penstock.core.job import Job, Verdict
from penstock.engines import changes, reads
from penstock.engines.postgres.bounds import Bounds
from penstock.engines.postgres.claim import NOTHING, exchange_statement, to_exchange
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import QueueSettings, WorkerInfo
from penstock.errors import ItemRefused, LeaseLost
from penstock.testing.clock import FakeClock
from servers.emptied import emptied

RUNNING = "SELECT id FROM penstock.live WHERE state = 'running' ORDER BY id"
FOUND = """
SELECT job.id FROM (SELECT DISTINCT worker FROM penstock.pairs()) AS mine
 CROSS JOIN LATERAL penstock.running_of(mine.worker) AS job ORDER BY job.id
"""
WALKS = """
SELECT FROM pg_locks
 WHERE relation = 'penstock.live'::regclass AND mode = 'RowShareLock' AND granted
"""


class Eye:
    """Somebody who looks at the tables themselves."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    async def rows(self, sql: str) -> list[Any]:
        return await (await self.connection.execute(sql.encode())).fetchall()

    async def check(self) -> None:
        """Nothing that runs can get lost."""
        assert await self.rows(FOUND) == await self.rows(RUNNING)


@pytest.fixture
async def eye(engine: PostgresEngine) -> AsyncIterator[Eye]:
    url = emptied().url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(f"SET penstock_clock.now = '{await reads.now(engine)!r}'")
        yield Eye(connection)


async def test_where_nothing_is_due_no_turn_waits_for_another(
    engine: PostgresEngine, eye: Eye
) -> None:
    """What a turn locks until its commit, any number of others can lock as well."""
    await enqueue_jobs(engine, 2)
    values = to_exchange(
        ask(await joined(engine), want=2), NOTHING, Bounds(engine.clock).ranges(["default"])
    )
    turn = [value and value.decode() for value in values]
    async with eye.connection.transaction():
        cursor = psycopg.AsyncRawCursor(eye.connection)
        sql = exchange_statement("penstock").sql
        found = await (await cursor.execute(sql.encode(), turn)).fetchall()
        locks = "SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
        assert len(found) == 3
        assert await eye.rows(locks) == [("ShareLock",)]


async def test_every_queue_and_priority_of_a_claim_is_found(
    engine: PostgresEngine, eye: Eye
) -> None:
    for number in range(30):
        await put(engine, queue=f"queue-{number % 3}", priority=number % 4)
    worker = await joined(engine)
    jobs = await claim(engine, "queue-0", "queue-1", "queue-2", worker=worker, want=30)
    assert len(jobs) == 30
    await eye.check()
    assert ids(await engine.held(worker)) == [
        job.id for job in sorted(jobs, key=lambda job: job.order)
    ]
    assert {hand.queue: hand.jobs for hand in await engine.running() if hand.priority == 0} == {
        "queue-0": 3,
        "queue-1": 3,
        "queue-2": 2,
    }


async def fair_ones(engine: PostgresEngine) -> tuple[str, list[Job]]:
    """Jobs of a fair queue that a worker runs, while others wait there."""
    await engine.set_queue("fair", QueueSettings(fair=True))
    for number in range(12):
        await put(engine, queue="fair", key=f"key-{number % 3}")
    worker = await joined(engine)
    jobs = await claim(engine, "fair", worker=worker, want=7)
    assert len(jobs) == 7
    return worker, jobs


async def test_what_runs_is_found_when_a_fair_queue_becomes_a_plain_one(
    engine: PostgresEngine, eye: Eye
) -> None:
    worker, _ = await fair_ones(engine)
    await eye.check()
    await engine.set_queue("fair", QueueSettings())
    await eye.check()
    assert len(await engine.held(worker)) == 7
    assert len(await bury(engine, worker)) == 7


async def test_a_row_that_has_grown_and_moved_is_found(engine: PostgresEngine, eye: Eye) -> None:
    """Then its page was full, and it is another row for every index."""
    await enqueue_jobs(engine, 200)
    worker = await joined(engine)
    jobs = await claim(engine, worker=worker, want=200)
    await eye.rows("UPDATE penstock.live SET note = repeat('long ', 300) RETURNING id")
    await eye.check()
    assert len(await engine.held(worker)) == 200
    given = await send(engine, worker, *(outcome(job, "succeeded") for job in jobs))
    assert set(given.verdicts) == {Verdict.DONE}
    assert await eye.rows(RUNNING) == []


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_that_runs_gets_lost_whatever_happens(
    engine: PostgresEngine, eye: Eye, clock: FakeClock, seed: int
) -> None:
    """Any order of claims and ends, by several workers, some of whom die."""
    random = Random(seed)
    queues = ("plain", "fair", "limited", "ordered")
    await engine.set_queue("fair", QueueSettings(fair=True))
    await engine.set_queue("limited", QueueSettings(max_running=3))
    await engine.set_queue("ordered", QueueSettings(ordered=True))
    workers = [await joined(engine) for _ in range(3)]
    held: dict[str, list[Job]] = {worker: [] for worker in workers}
    kinds = ("succeeded", "failed", "retry", "snooze", "released", "cancelled")
    for _ in range(60):
        worker = random.choice(workers)
        match random.randrange(9):
            case 0 | 1:
                drafts = [
                    draft(
                        queue=random.choice(queues),
                        priority=random.choice((1, 5)),
                        key=random.choice((None, "a", "b")),
                        delay=random.choice((0, 0, 0, 5)),
                        expires_in=random.choice((None, None, 8)),
                    )
                    for _ in range(random.randrange(1, 12))
                ]
                await engine.enqueue(drafts)
            case 2 | 3 | 4:
                some = random.sample(queues, random.randrange(1, 5))
                given = await engine.exchange(ask(worker, *some, want=random.randrange(1, 9)))
                held[worker] += given.jobs
            case 5 | 6:
                count = random.randrange(0, len(held[worker]) + 1)
                ended = [held[worker].pop() for _ in range(count)]
                results = [
                    outcome(job, random.choice(kinds) if random.random() < 0.5 else "succeeded")
                    for job in ended
                ]
                await send(engine, worker, *results)
            case 7:
                clock.advance(random.choice((0.5, 3.0)))
                await engine.promote(100)
                if random.random() < 0.3:
                    fair = random.random() < 0.5
                    await engine.set_queue("fair", QueueSettings(fair=fair))
                if held[worker] and random.random() < 0.5:
                    await changes.cancel(engine, [held[worker][0].id], "enough")
            case _:
                lost = ids(held.pop(worker))
                workers.remove(worker)
                assert sorted(ids(await bury(engine, worker))) == sorted(lost)
                with pytest.raises(LeaseLost):
                    await engine.exchange(ask(worker, *queues))
                workers.append(await joined(engine))
                held[workers[-1]] = []
        await eye.check()
        limited = [hand for hand in await engine.running() if hand.queue in ("limited", "ordered")]
        for queue, most in (("limited", 3), ("ordered", 1)):
            assert sum(hand.jobs for hand in limited if hand.queue == queue) <= most
    for worker in workers:
        assert sorted(ids(await engine.held(worker))) == sorted(ids(held[worker]))
    await engine.repair(100)
    await eye.check()


async def test_two_who_claim_at_once_get_different_jobs_and_both_are_found(
    engine: PostgresEngine, eye: Eye
) -> None:
    await enqueue_jobs(engine, 400)
    workers = [await joined(engine) for _ in range(4)]
    asks = [engine.exchange(ask(worker, want=100)) for worker in workers]
    given = await asyncio.gather(*asks)
    got = [job.id for each in given for job in each.jobs]
    assert len(set(got)) == len(got)
    await eye.check()


# --- what others do meanwhile --------------------------------------------------------------------


async def test_a_job_that_got_another_ticket_while_it_was_claimed_is_found(
    engine: PostgresEngine, eye: Eye, clock: FakeClock
) -> None:
    """Whoever walks the line meets a row where it stood, and gets it as it is by now. The walk
    takes so long because of all that it has to avoid.
    """
    await engine.enqueue([draft(task="slow") for _ in range(300)])
    await enqueue_jobs(engine, 3)
    worker, other = await joined(engine), await joined(engine)
    avoid = (*(f"no-{number}" for number in range(100_000)), "slow")
    theirs = PostgresEngine(emptied().url, clock, follows_clock=True)
    await theirs.open()
    walk = asyncio.ensure_future(engine.exchange(ask(worker, want=5, avoid=avoid)))
    while not await eye.rows(WALKS):
        await breathe()
    found = (await theirs.exchange(ask(other, want=1, avoid=("slow",)))).jobs
    for job in found:
        await send(theirs, other, outcome(job, "retry", delay=0.0))
    await theirs.promote(10)
    await theirs.close()
    jobs = (await walk).jobs
    await eye.check()
    assert sorted(ids(await engine.held(worker))) == sorted(ids(jobs))
    await engine.leave(worker)
    assert sorted(ids(await changes.rescue(engine, [], 100))) == sorted(ids(jobs))


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_a_transactional_job_ends_though_its_neighbour_did_meanwhile(
    engine: PostgresEngine, eye: Eye, level: str
) -> None:
    """A transaction that sees the past may not change what others have changed since."""
    await enqueue_jobs(engine, 2)
    worker = await joined(engine)
    one, two = await claim(engine, worker=worker, want=2)
    with psycopg.connect(emptied().url) as theirs:
        theirs.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        theirs.execute("SET LOCAL plpgsql.extra_errors = 'all'")
        theirs.execute("SET LOCAL penstock_effect.mark = 'mark'")
        theirs.execute(f"SET LOCAL penstock_clock.now = '{await reads.now(engine)!r}'".encode())
        theirs.execute("SELECT count(*) FROM penstock.worker")
        assert await settle(engine, two, "succeeded") is Verdict.DONE
        ends = "SELECT penstock.succeed(%s, %s, %s, NULL, 'mark')"
        assert theirs.execute(ends, (one.id, one.attempt, worker)).fetchall() == [(True,)]
    await eye.check()
    assert await engine.held(worker) == []


async def test_what_runs_is_in_no_index_of_what_waits(engine: PostgresEngine, eye: Eye) -> None:
    """A claim takes a job out of the claim index and the one of what expires; only the indexes of
    ids and of what runs have it.
    """
    await engine.enqueue([draft(expires_in=5, key=f"{n}") for n in range(300)])
    waiting = await rows_in(eye, "live_claim"), await rows_in(eye, "live_expiry")
    assert waiting == (300, 300)
    worker = await joined(engine)
    jobs = await claim(engine, worker=worker, want=300)
    names = ("live_claim", "live_expiry", "live_running", "live_cancels")
    assert [await rows_in(eye, name) for name in names] == [0, 0, 300, 0]
    await changes.cancel(engine, [jobs[0].id], "enough")
    assert await rows_in(eye, "live_cancels") == 1
    assert (await engine.exchange(ask(worker, "nothing"))).cancels == (jobs[0].id,)


async def rows_in(eye: Eye, index: str) -> int:
    """How many jobs an index has."""
    ((where,),) = await eye.rows(
        "SELECT pg_get_expr(indpred, indrelid) FROM pg_index"
        f" WHERE indexrelid = 'penstock.{index}'::regclass"
    )
    ((found,),) = await eye.rows(f"SELECT count(*) FROM penstock.live WHERE {where}")
    return int(found)


@pytest.mark.parametrize("name", ["w\0x", "w\ud800"])
async def test_a_name_that_is_no_text_is_refused_and_means_nobody_else(
    engine: PostgresEngine, name: str
) -> None:
    await engine.join(WorkerInfo(id="w"))
    await put(engine)
    with pytest.raises(ItemRefused):
        await engine.exchange(ask(name))
    assert await engine.held("w") == []
