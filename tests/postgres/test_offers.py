"""A job goes straight to a worker that sleeps: it is a claim like any other, and is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from conformance.steps import (
    ask,
    bury,
    claim,
    claim_one,
    draft,
    ids,
    joined,
    outcome,
    put,
    send,
    settle,
    soon,
    stored,
)
from conformance.waiting import LONG, breathe
from penstock.core.job import Job, State, Verdict
from penstock.engines.postgres import ear
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.offers import Note, Offers
from penstock.engines.postgres.watch import Watch
from penstock.engines.records import QueueSettings
from servers.emptied import emptied
from servers.postgres import Postgres

STANDING = "SELECT worker FROM penstock.offer WHERE until > 0 ORDER BY worker"


@pytest.fixture
async def admin(engine: PostgresEngine) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody at psql."""
    url = emptied().url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nobody hears that a job was given; what was said is kept. Comes before the engine."""
    unheard: list[str] = []
    monkeypatch.setattr(Watch, "_receive", lambda self, what: unheard.append(what))
    return unheard


async def enqueue_one(engine: PostgresEngine, **fields: Any) -> str:
    """As a caller does that waits for it, with nobody else about, and an id that is new."""
    engine._doubted_at = -1.0
    receipt = await asyncio.to_thread(engine.enqueue_now, draft(**fields), 60.0)
    assert receipt is not None
    assert receipt.created
    return receipt.id


async def offered(admin: psycopg.AsyncConnection[Any], *workers: str) -> None:
    """Wait until these workers offer themselves, and nobody else."""
    async with asyncio.timeout(60):
        while await rows(admin, STANDING) != [(worker,) for worker in sorted(workers)]:
            await breathe()


async def said(unheard: list[str]) -> str:
    """What nobody heard."""
    async with asyncio.timeout(60):
        while not unheard:
            await breathe()
    (what,) = unheard
    return what


async def rows(admin: psycopg.AsyncConnection[Any], sql: str) -> list[Any]:
    return await (await admin.execute(sql.encode())).fetchall()


@asynccontextmanager
async def sleeping(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any], *workers: str
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Idle workers that have offered themselves."""
    naps = [
        asyncio.create_task(engine.wait(ask(worker, want=5, is_idle=True), LONG))
        for worker in workers
    ]
    try:
        await offered(admin, *workers)
        yield naps
    finally:
        for nap in naps:
            nap.cancel()
        await asyncio.gather(*naps, return_exceptions=True)


async def next_turn(engine: PostgresEngine, worker: str) -> list[Job]:
    return list((await engine.exchange(ask(worker, want=5))).jobs)


async def test_it_runs_there_before_the_worker_asks(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine, payload=b'{"args":["a \\"quoted\\" \\u20ac"]}')
        given = await stored(engine, id)
        assert (given.state, given.worker, given.attempt) == (State.RUNNING, worker, 1)
        await soon(nap)
    assert ids(await engine.held(worker)) == [id]


async def test_it_is_a_claim_like_any_other(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine, payload=b'{"args":["a \\"quoted\\" \\u20ac"]}', priority=3)
        await soon(nap)
    (job,) = await next_turn(engine, worker)
    assert job == await stored(engine, id)
    assert await next_turn(engine, worker) == []
    other = await joined(engine)
    assert (await send(engine, other, outcome(job, "succeeded"))).verdicts == (Verdict.STALE,)
    assert await settle(engine, job, "succeeded", result=b"1") is Verdict.DONE
    assert (await stored(engine, id)).result == b"1"
    assert await rows(admin, "SELECT * FROM penstock.claim") == []


async def test_the_turn_asks_nobody(
    engine: PostgresEngine,
    admin: psycopg.AsyncConnection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine)
        await soon(nap)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_links", None)
        assert ids(await next_turn(engine, worker)) == [id]


async def test_one_offer_is_for_one_job(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    workers = [await joined(engine), await joined(engine)]
    async with sleeping(engine, admin, *workers):
        given = [await stored(engine, await enqueue_one(engine)) for _ in range(1)]
        await offered(admin, *(each for each in workers if each != given[0].worker))
    assert {job.worker for job in given} < set(workers)


async def test_a_turn_takes_the_offer_back(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker):
        pass
    assert await next_turn(engine, worker) == []
    assert await rows(admin, STANDING) == []
    assert (await stored(engine, await enqueue_one(engine))).state is State.READY


async def test_who_has_something_to_do_offers_nothing(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    busy, idle = await joined(engine), await joined(engine)
    waiting = asyncio.create_task(engine.wait(ask(busy, want=5), LONG))
    async with sleeping(engine, admin, idle):
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.usefixtures("deaf")
async def test_what_was_not_heard_of_comes_with_the_next_turn(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker):
        id = await enqueue_one(engine)
    await put(engine, "in-line")
    (in_line, given) = await next_turn(engine, worker)
    assert (in_line.id, given.id) == ("in-line", id)
    assert given == await stored(engine, id)
    assert await next_turn(engine, worker) == []


async def test_what_was_not_heard_of_ends_the_next_sleep(
    deaf: list[str], engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker):
        id = await enqueue_one(engine)
    engine._offers._offered.clear()  # as if it had lapsed
    await soon(engine.wait(ask(worker, want=5, is_idle=True), LONG))
    assert ids(await next_turn(engine, worker)) == [id]
    await said(deaf)


async def test_what_is_heard_late_is_not_given_twice(
    deaf: list[str], engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker):
        await enqueue_one(engine)
    assert len(await next_turn(engine, worker)) == 1
    assert not engine._offers.receive(await said(deaf))
    assert await next_turn(engine, worker) == []


async def test_what_a_worker_was_told_that_it_holds_is_not_given_again(
    deaf: list[str], engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker):
        id = await enqueue_one(engine)
    assert ids(await engine.held(worker)) == [id]
    assert not engine._offers.receive(await said(deaf))
    assert await next_turn(engine, worker) == []


async def test_a_turn_that_only_settles_is_given_nothing(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    """Nobody would look at it."""
    worker = await joined(engine)
    job = await claim_one(engine, await _queue_with_one(engine), worker=worker)
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine)
        await soon(nap)
    assert (await send(engine, worker, outcome(job, "succeeded"))).jobs == ()
    assert ids(await next_turn(engine, worker)) == [id]


async def _queue_with_one(engine: PostgresEngine) -> str:
    await put(engine, queue="other")
    return "other"


async def test_one_that_leaves_gives_back_what_it_does_not_know_of(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine)
        await soon(nap)
    await engine.leave(worker)
    job = await stored(engine, id)
    assert (job.state, job.crashes) == (State.READY, 0)
    assert ids(await claim(engine)) == [id]
    assert await rows(admin, "SELECT * FROM penstock.offer") == []


async def test_one_that_leaves_keeps_what_it_knows_of(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    """That is rescued: it may have run."""
    worker = await joined(engine)
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine)
        await soon(nap)
    assert ids(await next_turn(engine, worker)) == [id]
    await engine.leave(worker)
    assert (await stored(engine, id)).state is State.RUNNING
    assert ids(await bury(engine)) == [id]


async def test_nothing_is_given_to_one_whose_process_is_gone(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    await admin.execute(
        "INSERT INTO penstock.offer VALUES (%s, 'nobody listens', '{default}', 'infinity')",
        (worker,),
    )
    assert (await stored(engine, await enqueue_one(engine))).state is State.READY
    assert await rows(admin, STANDING) == []


async def test_nothing_is_given_to_one_whose_connection_has_ended(
    engine: PostgresEngine,
    admin: psycopg.AsyncConnection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is when its process was killed; this one would listen again in a moment."""
    monkeypatch.setattr(ear, "AGAIN", (60.0, 60.0))
    worker = await joined(engine)
    listeners = (
        "FROM pg_stat_activity WHERE application_name = 'penstock listener'"
        " AND datname = current_database()"
    )
    async with sleeping(engine, admin, worker):
        assert await rows(admin, f"SELECT pg_terminate_backend(pid) {listeners}") == [(True,)]
        async with asyncio.timeout(60):
            while await rows(admin, f"SELECT pid {listeners}"):
                await breathe()
        assert (await stored(engine, await enqueue_one(engine))).state is State.READY


async def test_nothing_is_given_to_one_that_lost_its_lease(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker):
        await admin.execute("DELETE FROM penstock.worker")
        assert (await stored(engine, await enqueue_one(engine))).state is State.READY


async def test_nothing_is_given_to_one_that_is_being_buried(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    lock = "SELECT pg_advisory_lock(hashtext('penstock.worker'), hashtext(%s))"
    async with sleeping(engine, admin, worker):
        await admin.execute(lock, (worker,))
        assert (await stored(engine, await enqueue_one(engine))).state is State.READY


async def test_a_large_job_waits_in_line(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    """A notification has no room for it."""
    worker = await joined(engine)
    for size, state in ((6500, State.RUNNING), (7500, State.READY)):
        async with sleeping(engine, admin, worker):
            id = await enqueue_one(engine, payload=b'"' + b"x" * size + b'"')
            assert (await stored(engine, id)).state is state
        await next_turn(engine, worker)


@pytest.mark.parametrize(
    "settings", [QueueSettings(paused=True), QueueSettings(max_running=1), QueueSettings(fair=True)]
)
async def test_a_queue_about_which_something_was_decided_has_its_line(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any], settings: QueueSettings
) -> None:
    worker = await joined(engine)
    await engine.set_queue("default", settings)
    async with sleeping(engine, admin, worker):
        assert (await stored(engine, await enqueue_one(engine))).state is State.READY


async def test_another_queue_is_not_offered(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    async with sleeping(engine, admin, worker):
        id = await enqueue_one(engine, queue="other")
        assert (await stored(engine, id)).state is State.READY
        assert await rows(admin, STANDING) == [(worker,)]


async def test_a_worker_waits_for_whoever_gives_it_something(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    """It asks in the middle of that, and is given it."""
    worker = await joined(engine)
    put_one = "SELECT penstock.put_plain_one('given', '{}', 'work', 'default', 5, '', true)"
    async with sleeping(engine, admin, worker), admin.transaction():
        assert await rows(admin, put_one) == [("handed",)]
        turn = asyncio.create_task(next_turn(engine, worker))
        while not await rows(admin, "SELECT FROM pg_locks WHERE NOT granted"):
            await breathe()
    assert ids(await soon(turn)) == ["given"]


async def test_who_gives_up_has_given_nothing(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    put_one = "SELECT penstock.put_plain_one('given', '{}', 'work', 'default', 5, '', true)"
    async with sleeping(engine, admin, worker):
        async with admin.transaction(force_rollback=True):
            assert await rows(admin, put_one) == [("handed",)]
        await offered(admin, worker)
        assert ids([await stored(engine, await enqueue_one(engine))]) != ["given"]
    assert await engine.get(["given"]) == [None]


async def test_who_may_only_enqueue_does_not_learn_where_it_goes(
    engine: PostgresEngine, admin: psycopg.AsyncConnection[Any]
) -> None:
    """Whoever knows the channel can listen there."""
    role = "hands_over_only"
    await admin.execute(f"CREATE ROLE {role} LOGIN; SELECT penstock.allow('{role}', 'enqueue')")
    worker = await joined(engine)
    url = emptied().url.replace("postgres@", f"{role}@")
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
            for what in ("* FROM penstock.offer", "penstock.offer('w', 'c', '{default}', 60, 0)"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await other.execute(f"SELECT {what}".encode())
            async with sleeping(engine, admin, worker) as (nap,):
                put_one = "penstock.put_plain_one('one', '{}', 'work', 'default', 5, '', true)"
                assert await rows(other, f"SELECT {put_one}") == [("handed",)]
                await soon(nap)
            seen = await rows(other, "SELECT query FROM pg_stat_activity")
            assert not [query for (query,) in seen if engine._offers.channel in (query or "")]
    finally:
        await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert ids(await next_turn(engine, worker)) == ["one"]


@pytest.mark.usefixtures("deaf")
async def test_a_server_that_is_killed_forgets_offers_and_not_what_was_given() -> None:
    with Postgres() as server:
        url = server.url(server.new_database())
        engine = PostgresEngine(url)
        await engine.open()
        try:
            worker = await joined(engine)
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
                async with sleeping(engine, admin, worker):
                    id = await enqueue_one(engine)
                    assert (await stored(engine, id)).state is State.RUNNING
            server.kill()
            server.start()
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
                assert await rows(admin, "SELECT * FROM penstock.offer") == []
            assert ids(await next_turn(engine, worker)) == [id]
        finally:
            await engine.close()


# --- what a handle remembers --------------------------------------------------------------------


def note(number: int, worker: str = "w") -> Note:
    return Note(
        number, worker, None, f"job-{number}", "work", "{}", "default", 5, 1.0, "", 1, 1, 1.0
    )


def test_what_is_for_nobody_here_is_passed_over() -> None:
    offers = Offers()
    assert not offers.add([note(7)])
    assert not offers.has("w")


def test_the_same_is_given_once_however_often_it_is_said() -> None:
    offers = Offers()
    offers.offer("w", 0.0)
    assert offers.add([note(7), note(7)])
    assert offers.take("w") == [note(7)]
    assert not offers.add([note(7), note(6)])


def test_an_offer_is_renewed_before_it_lapses() -> None:
    offers = Offers()
    assert offers.is_needed("w", 0.0)
    offers.offer("w", 0.0)
    assert not offers.is_needed("w", 1.0)
    assert offers.is_needed("w", 4.0)


def test_two_handles_are_told_in_different_places() -> None:
    assert Offers().channel != Offers().channel
