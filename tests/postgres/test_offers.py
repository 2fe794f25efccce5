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
from penstock.engines.postgres import wakeup
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.offers import LEASE, Note, Offers
from penstock.engines.postgres.wakeup import Watch
from penstock.engines.records import QueueSettings
from postgres.callers import put_blocking
from servers.emptied import emptied
from servers.postgres import Postgres

Admin = psycopg.AsyncConnection[Any]
"""Somebody at psql."""

GIVE = "SELECT penstock.put_plain_one('given', '{}', 'work', 'default', 5, '', true)"
STANDING = "SELECT worker FROM penstock.offer WHERE until > 0 ORDER BY worker"


@pytest.fixture
async def admin(engine: PostgresEngine) -> AsyncIterator[Admin]:
    """Somebody at psql."""
    url = emptied().url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def worker(engine: PostgresEngine) -> str:
    """One that has a lease."""
    return await joined(engine)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nobody hears that a job was given; what was said is kept. Comes before the engine."""
    unheard: list[str] = []
    monkeypatch.setattr(Watch, "_receive", lambda self, what: unheard.append(what))
    return unheard


async def enqueue_one(engine: PostgresEngine, **fields: Any) -> str:
    """As a caller does that waits for it, with nobody else about, and an id that is new."""
    engine._doubt.since = -1.0
    receipts = await put_blocking(engine, [draft(**fields)])
    assert receipts is not None
    (receipt,) = receipts
    assert receipt.created
    return receipt.id


async def offered(admin: Admin, *workers: str) -> None:
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


async def rows(admin: Admin, sql: str) -> list[Any]:
    return await (await admin.execute(sql.encode())).fetchall()


@asynccontextmanager
async def sleeping(
    engine: PostgresEngine, admin: Admin, *workers: str
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Idle workers that have offered themselves, after a turn that gave them nothing."""
    for worker in workers:
        assert await next_turn(engine, worker) == []
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


async def give(
    engine: PostgresEngine,
    admin: Admin,
    worker: str,
    *,
    is_heard: bool = True,
    **fields: Any,
) -> str:
    """Give a job to a worker that sleeps; if that is heard, it wakes."""
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine, **fields)
        if is_heard:
            await soon(nap)
    return id


async def next_turn(engine: PostgresEngine, worker: str) -> list[Job]:
    return list((await engine.exchange(ask(worker, want=5))).jobs)


async def test_it_runs_there_before_the_worker_asks(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine, payload=b'{"args":["a \\"quoted\\" \\u20ac"]}')
        given = await stored(engine, id)
        assert (given.state, given.worker, given.attempt) == (State.RUNNING, worker, 1)
        await soon(nap)
    assert ids(await engine.held(worker)) == [id]


async def test_it_is_a_claim_like_any_other(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    payload = b'{"args":["a \\"quoted\\" \\u20ac"]}'
    id = await give(engine, admin, worker, payload=payload, priority=3)
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
    admin: Admin,
    worker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    id = await give(engine, admin, worker)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_links", None)
        assert ids(await next_turn(engine, worker)) == [id]


async def test_one_offer_is_for_one_job(engine: PostgresEngine, admin: Admin) -> None:
    workers = [await joined(engine), await joined(engine)]
    async with sleeping(engine, admin, *workers):
        job = await stored(engine, await enqueue_one(engine))
        assert job.worker in workers
        await offered(admin, *(each for each in workers if each != job.worker))


async def test_a_turn_takes_the_offer_back(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    async with sleeping(engine, admin, worker):
        pass
    assert await next_turn(engine, worker) == []
    assert await rows(admin, STANDING) == []
    assert (await stored(engine, await enqueue_one(engine))).state is State.READY


async def test_who_has_something_to_do_offers_nothing(engine: PostgresEngine, admin: Admin) -> None:
    busy, idle = await joined(engine), await joined(engine)
    waiting = asyncio.create_task(engine.wait(ask(busy, want=5), LONG))
    async with sleeping(engine, admin, idle):
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.usefixtures("deaf")
async def test_what_was_not_heard_of_comes_with_the_next_turn(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    id = await give(engine, admin, worker, is_heard=False)
    await put(engine, "in-line")
    (in_line, given) = await next_turn(engine, worker)
    assert (in_line.id, given.id) == ("in-line", id)
    assert given == await stored(engine, id)
    assert await next_turn(engine, worker) == []


async def test_what_was_not_heard_of_ends_the_next_sleep(
    deaf: list[str], engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    id = await give(engine, admin, worker, is_heard=False)
    engine._offers.distrust()
    await soon(engine.wait(ask(worker, want=5, is_idle=True), LONG))
    assert ids(await next_turn(engine, worker)) == [id]
    await said(deaf)


async def test_what_is_heard_late_is_not_given_twice(
    deaf: list[str], engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    await give(engine, admin, worker, is_heard=False)
    assert len(await next_turn(engine, worker)) == 1
    assert not engine._offers.receive(await said(deaf))
    assert await next_turn(engine, worker) == []


async def test_what_a_worker_was_told_that_it_holds_is_not_given_again(
    deaf: list[str], engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    id = await give(engine, admin, worker, is_heard=False)
    assert ids(await engine.held(worker)) == [id]
    assert not engine._offers.receive(await said(deaf))
    assert await next_turn(engine, worker) == []


async def test_a_turn_that_only_settles_is_given_nothing(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    """Nobody would look at it."""
    job = await claim_one(engine, await _queue_with_one(engine), worker=worker)
    id = await give(engine, admin, worker)
    assert (await send(engine, worker, outcome(job, "succeeded"))).jobs == ()
    assert ids(await next_turn(engine, worker)) == [id]


async def _queue_with_one(engine: PostgresEngine) -> str:
    await put(engine, queue="other")
    return "other"


async def test_what_was_heard_of_before_the_sleep_ends_it(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    """Also of one that has something to do by now."""
    id = await give(engine, admin, worker)
    await soon(engine.wait(ask(worker, want=5), LONG))
    assert ids(await next_turn(engine, worker)) == [id]


async def test_one_that_leaves_gives_back_what_it_does_not_know_of(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    id = await give(engine, admin, worker)
    await engine.leave(worker)
    job = await stored(engine, id)
    assert (job.state, job.crashes) == (State.READY, 0)
    assert ids(await claim(engine)) == [id]
    assert await rows(admin, "SELECT * FROM penstock.offer") == []


async def test_one_that_leaves_keeps_what_it_knows_of(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    """That is rescued: it may have run."""
    id = await give(engine, admin, worker)
    assert ids(await next_turn(engine, worker)) == [id]
    await engine.leave(worker)
    assert (await stored(engine, id)).state is State.RUNNING
    assert ids(await bury(engine)) == [id]


async def test_nothing_is_given_to_one_whose_process_is_gone(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    assert await next_turn(engine, worker) == []
    await admin.execute(
        "INSERT INTO penstock.offer SELECT %s, 'nobody listens', 'infinity', '{default}',"
        " last_value + is_called::integer, '{}', '{}', '{}', '{}', '{}' FROM penstock.lowered",
        (worker,),
    )
    assert (await stored(engine, await enqueue_one(engine))).state is State.READY
    assert await rows(admin, STANDING) == []


async def test_nothing_is_given_to_one_whose_connection_has_ended(
    engine: PostgresEngine,
    admin: Admin,
    worker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is when its process was killed; this one would listen again in a moment."""
    monkeypatch.setattr(wakeup, "AGAIN", (60.0, 60.0))
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
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    async with sleeping(engine, admin, worker):
        await admin.execute("DELETE FROM penstock.worker")
        assert (await stored(engine, await enqueue_one(engine))).state is State.READY


async def test_a_large_job_waits_in_line(engine: PostgresEngine, admin: Admin, worker: str) -> None:
    """A notification has no room for it."""
    for size, state in ((6500, State.RUNNING), (7500, State.READY)):
        async with sleeping(engine, admin, worker):
            id = await enqueue_one(engine, payload=b'"' + b"x" * size + b'"')
            assert (await stored(engine, id)).state is state
        await next_turn(engine, worker)


@pytest.mark.parametrize(
    "settings", [QueueSettings(paused=True), QueueSettings(max_running=1), QueueSettings(fair=True)]
)
async def test_a_queue_about_which_something_was_decided_has_its_line(
    engine: PostgresEngine, admin: Admin, worker: str, settings: QueueSettings
) -> None:
    await engine.set_queue("default", settings)
    async with sleeping(engine, admin, worker):
        assert (await stored(engine, await enqueue_one(engine))).state is State.READY


@pytest.mark.parametrize("priority", [0, 5, 9])
async def test_nobody_is_overtaken(
    engine: PostgresEngine, admin: Admin, worker: str, priority: int
) -> None:
    """The worker hears of the first one in a moment."""
    async with sleeping(engine, admin, worker):
        first = await put(engine, priority=5)
        second = await enqueue_one(engine, priority=priority)
    assert {job.id for job in await next_turn(engine, worker)} == {first, second}
    assert [(await stored(engine, id)).state for id in (first, second)] == [State.RUNNING] * 2
    claims = await rows(admin, "SELECT jobs FROM penstock.claim WHERE NOT handed ORDER BY jobs")
    assert sum(jobs for (jobs,) in claims) == 2


async def test_nobody_with_an_old_ticket_is_overtaken(engine: PostgresEngine, admin: Admin) -> None:
    worker, other = await joined(engine), await joined(engine)
    await put(engine, "first")
    (first,) = await claim(engine, worker=other)
    second = await put(engine)
    (job,) = await claim(engine, worker=worker)
    assert job.id == second
    await send(engine, worker, outcome(job, "succeeded"))
    async with sleeping(engine, admin, worker):
        await send(engine, other, outcome(first, "released"))
        assert (await stored(engine, await enqueue_one(engine))).state is State.READY
    assert ids(await next_turn(engine, worker))[0] == "first"


async def test_what_waits_in_a_queue_with_decisions_is_not_in_the_way(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    await engine.set_queue("other", QueueSettings(paused=True))
    await put(engine, queue="other")
    wanted = ask(worker, "other", "default", want=5, is_idle=True)
    assert (await engine.exchange(wanted)).jobs == ()
    nap = asyncio.create_task(engine.wait(wanted, LONG))
    await offered(admin, worker)
    assert (await stored(engine, await enqueue_one(engine))).worker == worker
    await soon(nap)


async def test_who_is_given_a_job_remembers_where_the_line_begins(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    """What is dead before it is not walked again, by nobody who enqueues."""
    id = await give(engine, admin, worker)
    (job,) = await next_turn(engine, worker)
    await send(engine, worker, outcome(job, "succeeded"))
    async with sleeping(engine, admin, worker):
        given = await rows(admin, "SELECT from_seq FROM penstock.offer")
    assert given[0][0].count(job.seq) == 1
    assert job.id == id


async def test_another_queue_is_not_offered(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    async with sleeping(engine, admin, worker):
        id = await enqueue_one(engine, queue="other")
        assert (await stored(engine, id)).state is State.READY
        assert await rows(admin, STANDING) == [(worker,)]


async def test_whoever_is_about_to_give_something_is_not_waited_for(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    """A transaction may stay open for long: the worker goes on, and finds the job later."""
    async with sleeping(engine, admin, worker), admin.transaction():
        assert await rows(admin, GIVE) == [("handed",)]
        await put(engine, "in-line")
        assert ids(await next_turn(engine, worker)) == ["in-line"]
        assert ids(await bury(engine, await joined(engine))) == []
    assert ids(await next_turn(engine, worker)) == ["given"]
    assert await next_turn(engine, worker) == []


async def test_one_that_leaves_waits_for_nobody(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    async with sleeping(engine, admin, worker), admin.transaction():
        assert await rows(admin, GIVE) == [("handed",)]
        await engine.leave(worker)
    assert ids(await bury(engine)) == ["given"]


async def test_who_gives_up_has_given_nothing(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    async with sleeping(engine, admin, worker):
        async with admin.transaction(force_rollback=True):
            assert await rows(admin, GIVE) == [("handed",)]
        await offered(admin, worker)
        assert ids([await stored(engine, await enqueue_one(engine))]) != ["given"]
    assert await engine.get(["given"]) == [None]


async def test_who_may_only_enqueue_does_not_learn_where_it_goes(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    """Whoever knows the channel can listen there."""
    role = "hands_over_only"
    await admin.execute(f"CREATE ROLE {role} LOGIN; SELECT penstock.allow('{role}', 'enqueue')")
    url = emptied().url.replace("postgres@", f"{role}@")
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
            lines = "'{default}', 0, '{}', '{}', '{}', '{}', '{}'"
            for what in ("* FROM penstock.offer", f"penstock.offer('w', 'c', 60, {lines}, 0)"):
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


async def test_two_who_give_at_once_find_that_nobody_listens(
    engine: PostgresEngine, admin: Admin
) -> None:
    worker, other = await joined(engine), await joined(engine)
    async with sleeping(engine, admin, worker, other):
        await admin.execute("UPDATE penstock.offer SET channel = 'nobody listens'")
        async with admin.transaction():
            assert await rows(admin, GIVE) != [("handed",)]
            id = await enqueue_one(engine)
            assert (await stored(engine, id)).state is State.READY


@pytest.mark.usefixtures("deaf")
async def test_what_was_not_heard_of_is_found_when_the_ear_is_deaf(
    engine: PostgresEngine, admin: Admin, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine)
        assert engine._watch is not None
        monkeypatch.setattr(Watch, "hears", False)
        engine._watch._relearn()
        await soon(nap)
    assert ids(await next_turn(engine, worker)) == [id]


@pytest.mark.usefixtures("deaf")
async def test_what_was_not_heard_of_is_found_when_it_hears_again(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    async with sleeping(engine, admin, worker) as (nap,):
        id = await enqueue_one(engine)
        assert engine._watch is not None
        engine._watch._relearn()
        await soon(nap)
    assert ids(await next_turn(engine, worker)) == [id]


@pytest.mark.usefixtures("deaf")
async def test_what_was_not_heard_of_is_found_after_its_queue_was_fair(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    """Running jobs lose their places then, and get claims of their own."""
    id = await give(engine, admin, worker, is_heard=False)
    for fair in (True, False):
        await engine.set_queue("default", QueueSettings(fair=fair))
    assert ids(await next_turn(engine, worker)) == [id]


async def test_what_was_not_heard_of_takes_the_place_of_others(
    deaf: list[str], engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    id = await give(engine, admin, worker, is_heard=False)
    await put(engine)
    assert ids((await engine.exchange(ask(worker, want=1))).jobs) == [id]
    await said(deaf)


async def test_what_was_heard_of_takes_the_place_of_others(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    job = await claim_one(engine, await _queue_with_one(engine), worker=worker)
    id = await give(engine, admin, worker)
    await put(engine)
    wanted = ask(worker, want=1, outcomes=(outcome(job, "succeeded"),))
    assert ids((await engine.exchange(wanted)).jobs) == [id]


@pytest.mark.usefixtures("deaf")
async def test_a_store_that_is_older_than_we_knew_is_asked_again(
    engine: PostgresEngine, admin: Admin, worker: str
) -> None:
    """It was restored from a backup, and its numbers begin before ours."""
    assert await next_turn(engine, worker) == []
    engine._offers.offer(worker)
    engine._offers.knows(worker, 1000)
    await admin.execute("SELECT setval('penstock.claims', 5)")
    await soon(engine.wait(ask(worker, want=5, is_idle=True), LONG))
    id = await give(engine, admin, worker, is_heard=False)
    assert ids(await next_turn(engine, worker)) == [id]


async def test_a_store_with_another_name_gives_jobs_as_well() -> None:
    engine = PostgresEngine(emptied().url, schema="other_hands")
    await engine.open()
    try:
        url = emptied().url
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
            worker = await joined(engine)
            assert await next_turn(engine, worker) == []
            nap = asyncio.create_task(engine.wait(ask(worker, want=5, is_idle=True), LONG))
            async with asyncio.timeout(60):
                while not await rows(admin, STANDING.replace("penstock.", "other_hands.")):
                    await breathe()
            id = await enqueue_one(engine)
            assert (await stored(engine, id)).worker == worker
            await soon(nap)
            await admin.execute("DROP SCHEMA other_hands CASCADE")
    finally:
        await engine.close()


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
    assert not offers.count("w")


@pytest.mark.parametrize("text", ["", "probe", "[]", "[1, 2]", '["7"' + ', "w"' * 12 + "]"])
def test_what_is_no_note_is_passed_over(text: str) -> None:
    offers = Offers()
    offers.offer("w")
    assert not offers.receive(text)
    assert offers.heard("w") == 0


def test_the_same_is_given_once_however_often_it_is_said() -> None:
    offers = Offers()
    offers.offer("w")
    assert offers.add([note(7), note(7)])
    assert offers.take("w") == [note(7)]
    assert not offers.add([note(7), note(6)])


def test_an_offer_is_renewed_before_it_lapses() -> None:
    offers = Offers()
    offers.offer("w")
    assert not offers.is_fresh("w", 1.0)
    offers.offered("w", 1.0)
    assert offers.is_fresh("w", 1.1)
    assert not offers.is_fresh("w", 1.0 + LEASE / 2)
    offers.distrust()
    assert not offers.is_fresh("w", 1.1)
    assert offers.heard("w") == 0


def test_two_handles_are_told_in_different_places() -> None:
    assert Offers().channel != Offers().channel
