"""A caller's transaction that stays open keeps nobody from working, but who wants the very same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors as driver_errors

from conformance.steps import claim, claim_one, draft, joined, outcome, put, running, send, settle
from penstock import Penstock
from penstock.core.job import Verdict
from penstock.engines import changes
from penstock.engines.engine import Engine
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import News, QueueSettings, Sighting
from penstock.errors import EngineBusy, ItemContested
from servers.emptied import emptied

PATIENCE = 60.0
"""Real seconds after which something counts as never coming; nothing waits for them to pass."""


@pytest.fixture
def url() -> str:
    database = emptied()
    database.empty()
    return database.url


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    engine = PostgresEngine(url)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def app(url: str) -> Iterator[Penstock]:
    with Penstock(url) as app:
        yield app


@pytest.fixture
async def connection(url: str, engine: Engine) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A caller's connection; the store is there."""
    connection = await psycopg.AsyncConnection.connect(url)
    yield connection
    await connection.close()


async def patiently(awaited: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaited


async def waits_for_a_lock(connection: psycopg.AsyncConnection[Any], url: str) -> None:
    """Return when the connection's statement waits for somebody else's lock."""
    pid, deadline = connection.info.backend_pid, time.monotonic() + PATIENCE
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watcher:
        while True:
            found = await watcher.execute(
                "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", (pid,)
            )
            if await found.fetchone() == ("Lock",):
                return
            assert time.monotonic() < deadline, "it waits for nobody"


# --- everybody else ------------------------------------------------------------------------------


async def test_while_a_transaction_is_open_every_other_verb_works(app, engine, connection, url):
    """Nothing waits: each step would fail after a tenth of a second if it did."""
    await engine.set_queue("fair", QueueSettings(fair=True))
    await engine.set_queue("one", QueueSettings(max_running=1, ordered=True))
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as past:
        # What is to be pruned, and is taken into use again just now.
        await past.execute("INSERT INTO penstock.ledger VALUES ('mine-0', 1, 'work')")
        await past.execute("INSERT INTO penstock.unique_key VALUES ('mine-0', 'old', 1, false)")
    mine: dict[str, Any] = {"connection": connection}
    for number, queue in enumerate(["default", "fair", "one"]):
        await app.aenqueue("work", queue=queue, key="ada", id=f"mine-{number}", **mine)
        await app.aenqueue("work", queue=queue, key="ada", unique=f"mine-{number}", **mine)
        await app.aenqueue("work", queue=queue, delay="1h", expires_in="2h", **mine)

    for queue in ("default", "fair", "one"):
        unique = f"other-{queue}"
        await put(engine, queue=queue, key="ada", unique=unique, remember=60.0, keep=0.0)
        await app.aenqueue("work", queue=queue, key="ada", id=f"other-{queue}")
    done = await claim_one(engine, "default")
    again = await claim_one(engine, "fair")
    ended = await claim_one(engine, "one")
    assert await settle(engine, done, "succeeded", result=b"1") is Verdict.DONE
    assert await settle(engine, again, "retry", delay=0.0) is Verdict.DONE
    assert await settle(engine, ended, "failed", reason="no") is Verdict.DONE
    assert (await changes.retry(engine, [ended.id]))[0].changed
    assert (await changes.cancel(engine, [ended.id], "enough"))[0].changed
    assert await changes.cancel(engine, ["mine-0"], "it is not there") != []
    await engine.promote(100)
    await changes.rescue(engine, [], 100)
    await engine.repair(100)
    assert (await engine.prune(100)).jobs == 2
    await engine.set_queue("fair", QueueSettings(paused=True, fair=True))
    assert {job.task for job in (await app.afind()).jobs} == {"work"}

    await connection.commit()
    assert None not in await engine.get([f"mine-{number}" for number in range(3)])


async def test_what_is_enqueued_first_and_committed_last_is_claimed(app, engine, connection):
    """Claimers have gone past its place in line by then."""
    late = await app.aenqueue("work", connection=connection)
    worker = await joined(engine)
    for _ in range(5):
        await put(engine)
        (job,) = await claim(engine, worker=worker)
        await settle(engine, job, "succeeded")
    await connection.commit()

    async with asyncio.timeout(PATIENCE):
        while not (jobs := await claim(engine, worker=worker)):
            await engine.listen(News.CHANGED, await engine.version(News.CHANGED), 1.0)
    assert [job.id for job in jobs] == [late.id]


async def test_who_waited_for_a_key_and_lost_does_not_keep_its_owner_from_ending(
    app, engine, connection, url
):
    """Its transaction is still open when the owner's job is done, and gives the key back."""
    first = await app.aenqueue("work", unique="key", connection=connection)
    async with await psycopg.AsyncConnection.connect(url) as other:
        waiting = asyncio.create_task(app.aenqueue("work", unique="key", connection=other))
        await waits_for_a_lock(other, url)
        await connection.commit()
        second = await patiently(waiting)
        assert (second.id, second.because) == (first.id, "unique")

        job = await claim_one(engine)
        assert await settle(engine, job, "succeeded") is Verdict.DONE
        assert (await first.astatus()).state == "succeeded"
        assert (await app.aenqueue("work", unique="key")).created


# --- who wants the same --------------------------------------------------------------------------

SAME = [{"id": "order-7"}, {"unique": "order:7"}]


@pytest.mark.parametrize("same", SAME, ids=str)
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_contested_job_waits_for_the_transaction_and_nobody_waits_for_it(
    app, connection, same, ends
):
    """It is held until all others have returned, however long that takes."""
    mine = await app.aenqueue("work", connection=connection, **same)
    contested = asyncio.create_task(app.aenqueue("work", **same))
    others = [asyncio.create_task(app.aenqueue("work", unique=f"u{n}")) for n in range(50)]
    again = [asyncio.create_task(app.aenqueue("work", **same)) for _ in range(5)]
    others += [asyncio.create_task(app.aenqueue("work", id=f"i{n}")) for n in range(50)]

    handles = await patiently(asyncio.gather(*others))
    assert all(handle.created for handle in handles)
    for _ in range(3):
        assert (await patiently(app.aenqueue("work"))).created
    assert not any(task.done() for task in (contested, *again))

    await getattr(connection, ends)()
    first, *rest = await patiently(asyncio.gather(contested, *again))
    assert first.created is (ends == "rollback")
    assert not any(handle.created for handle in rest)
    owner = {mine.id} if ends == "commit" else {first.id}
    assert {handle.id for handle in (first, *rest)} == owner


@pytest.mark.parametrize("same", SAME, ids=str)
async def test_blocking_callers_wait_apart_too(app, connection, same):
    await app.aenqueue("work", connection=connection, **same)
    contested = asyncio.create_task(asyncio.to_thread(app.enqueue, "work", **same))
    others = [asyncio.to_thread(app.enqueue, "work", id=f"i{n}") for n in range(5)]

    assert all(handle.created for handle in await patiently(asyncio.gather(*others)))
    assert not contested.done()
    await connection.rollback()
    assert (await patiently(contested)).created


async def test_many_jobs_wait_together_for_the_contested_one_among_them(app, connection):
    await app.aenqueue("work", id="order-2", connection=connection)
    calls = [("work", None, {"id": f"order-{number}"}) for number in range(5)]
    many = asyncio.create_task(app.aenqueue_many(calls))
    assert (await patiently(app.aenqueue("work"))).created
    await connection.commit()

    handles = await patiently(many)
    assert [handle.created for handle in handles] == [True, True, False, True, True]


async def test_a_caller_of_many_whose_patience_ends_is_told_why(url, connection):
    with Penstock(url, enqueue_timeout=0.3) as app:
        await app.aenqueue("work", id="order-2", connection=connection)
        calls = [("work", None, {"id": f"order-{number}"}) for number in range(5)]
        with pytest.raises(ItemContested) as caught:
            await app.aenqueue_many(calls)
        assert await app.acount() == 0
    assert str(caught.value) == (
        "postgresql cannot store this yet: an open transaction has this id or unique key; try "
        "again when that transaction has ended, or look for one that was left open"
    )
    assert caught.value.__notes__ == ["0 of 5 jobs were stored before this"]


async def test_the_engine_names_the_contested_draft(app, engine, connection):
    await app.aenqueue("work", id="order-2", connection=connection)
    drafts = [draft(f"order-{number}", remember=60.0) for number in range(5)]
    with pytest.raises(ItemContested) as caught:
        await engine.enqueue(drafts)
    assert caught.value.index == 2
    assert await engine.get([each.id for each in drafts]) == [None] * 5


async def test_transactions_of_callers_wait_for_one_another_as_long_as_they_say(
    app, connection, url
):
    """As for any unique index: by default to the end, with lock_timeout no longer than that."""
    await app.aenqueue("work", id="order-7", connection=connection)
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(driver_errors.LockNotAvailable):
            await app.aenqueue("work", id="order-7", connection=other)
        await other.rollback()

        waiting = asyncio.create_task(app.aenqueue("work", id="order-7", connection=other))
        await waits_for_a_lock(other, url)
        # Longer than we would wait on connections of our own.
        assert not (await asyncio.wait([waiting], timeout=0.3))[0]
        await connection.rollback()
        assert (await patiently(waiting)).created


async def test_a_retry_that_needs_a_contested_key_keeps_no_other_outcome_waiting(
    app, engine, connection
):
    """The key was free while the job ran; a transaction that is still open has taken it."""
    job = await running(engine, unique="key", unique_until="start")
    await put(engine, "neighbour")
    neighbour = await claim_one(engine, worker=job.worker)
    await app.aenqueue("work", unique="key", connection=connection)

    turn = await send(
        engine, job.worker, outcome(job, "retry", delay=0.0), outcome(neighbour, "succeeded")
    )
    assert turn.verdicts == (Verdict.LATER, Verdict.DONE)

    await connection.rollback()
    assert await settle(engine, job, "retry", delay=0.0) is Verdict.DONE


async def test_a_callback_that_needs_a_contested_key_keeps_no_other_outcome_waiting(
    app, engine, connection
):
    """Neither it nor the end of its job is stored until the transaction has ended."""
    job = await running(engine)
    for each in ("neighbour", "other"):
        await put(engine, each)
    first, second = await claim(engine, worker=job.worker, want=2)
    await app.aenqueue("work", unique="refresh", connection=connection)

    next = draft(task="work", unique="refresh")
    contested = outcome(job, "succeeded", then=(next,))
    plain = outcome(second, "succeeded", then=(draft(id="its own", task="tell"),))
    turn = await send(engine, job.worker, contested, outcome(first, "succeeded"), plain)
    assert turn.verdicts == (Verdict.LATER, Verdict.DONE, Verdict.DONE)
    assert [each.id for each in turn.followers] == ["its own"]
    assert [each.id for each in await engine.held(job.worker or "")] == [job.id]

    await connection.rollback()
    turn = await send(engine, job.worker, contested)
    assert turn.verdicts == (Verdict.DONE,)
    assert [(each.id, each.created) for each in turn.followers] == [(next.id, True)]


async def test_an_orphan_that_needs_a_contested_key_keeps_no_other_from_its_rescue(
    app, engine, connection
):
    job = await running(engine, unique="key", unique_until="start")
    await put(engine, "neighbour")
    await claim_one(engine, worker=job.worker)
    await app.aenqueue("work", unique="key", connection=connection)

    rescued = await changes.rescue(engine, [Sighting(job.worker or "", 0)], 100)
    assert [each.id for each in rescued] == ["neighbour"]

    await connection.rollback()
    assert [each.id for each in await changes.rescue(engine, [], 100)] == [job.id]


async def test_a_person_who_retries_a_job_whose_key_is_contested_is_told(app, engine, connection):
    job = await running(engine, unique="key")
    await settle(engine, job, "failed", reason="no")
    await app.aenqueue("work", unique="key", connection=connection)

    with pytest.raises(EngineBusy, match="an open transaction has job .* or its unique key"):
        await changes.retry(engine, [job.id])

    await connection.rollback()
    assert (await changes.retry(engine, [job.id]))[0].changed
