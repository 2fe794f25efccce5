"""The inlet, a blocking way in from any thread; where a store has none, ``enqueue`` does."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from conformance.steps import claim, created, draft, enqueue_jobs, everything, ids, known, put
from penstock.core.job import Draft, State
from penstock.engines import reads
from penstock.engines.engine import Engine
from penstock.engines.records import QueueSettings, Receipt
from penstock.errors import ItemRefused


async def now(engine: Engine, job: Draft) -> Receipt:
    """Store one job from a thread of its own, as a blocking caller does."""
    return (await all_now(engine, [job]))[0]


async def all_now(engine: Engine, jobs: list[Draft]) -> list[Receipt]:
    """Store several jobs so, with one call."""
    receipts = await asyncio.to_thread(put_here, engine, jobs)
    return await engine.enqueue(jobs) if receipts is None else receipts


def put_here(engine: Engine, jobs: list[Draft]) -> list[Receipt] | None:
    """Store jobs on this thread; None: nothing was stored, for there is no way or it is taken."""
    return None if engine.inlet is None else engine.inlet.put(jobs, 60.0)


async def test_what_is_stored_there_is_what_enqueue_stores(store):
    engine = await store.open()
    plain = draft(payload=b'{"to":"a"}', queue="mail", priority=3, enqueued_by="me:1")
    rich = draft(
        delay=60.0,
        expires_in=600.0,
        key="tenant",
        unique="one",
        unique_until="start",
        at_most_once=True,
        name="a name",
        tags=("x", "y"),
        correlation_id="c",
    )
    for job in (plain, rich):
        before = await reads.now(engine)
        receipt = await now(engine, job)
        assert receipt == created(job.id)
        (stored,) = await engine.get([job.id])
        assert stored is not None
        for field in ("task", "payload", "queue", "priority", "key", "unique", "unique_until"):
            assert getattr(stored, field) == getattr(job, field)
        for field in ("at_most_once", "name", "tags", "correlation_id", "enqueued_by"):
            assert getattr(stored, field) == getattr(job, field)
        assert stored.enqueued_at == pytest.approx(before, abs=60)
        assert stored.state is (State.SCHEDULED if job is rich else State.READY)


async def test_it_is_committed_when_the_call_returns(store):
    engine, other = await store.open(), await store.open()
    receipt = await now(engine, draft())

    assert [job.id for job in await claim(other)] == [receipt.id]


async def test_a_known_id_stores_nothing(store):
    engine = await store.open()
    job = draft("mine", remember=60.0)
    await now(engine, job)

    assert await now(engine, job) == known("mine")
    assert len(await everything(engine)) == 1


async def test_a_taken_unique_key_names_its_owner(store):
    engine = await store.open()
    owner = await put(engine, unique="only")

    assert await now(engine, draft(unique="only")) == Receipt(owner, False, "unique")


async def test_a_job_that_enters_a_fair_queue_takes_its_turn(store):
    engine = await store.open()
    await engine.set_queue("default", QueueSettings(fair=True))
    await enqueue_jobs(engine, 5, key="a")
    receipt = await now(engine, draft(key="b"))

    assert receipt.id in ids(await claim(engine, want=2))


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"delay": float("inf")}, id="time"),
        pytest.param({"priority": 1 << 70}, id="number"),
        pytest.param({"key": "a\0b"}, id="nul"),
        pytest.param({"key": "\ud800"}, id="surrogate"),
    ],
)
async def test_what_no_store_can_hold_is_refused_and_its_neighbours_are_not(store, bad):
    engine = await store.open()
    jobs = [draft() for _ in range(6)]
    answers = await asyncio.gather(
        *(now(engine, job) for job in jobs),
        now(engine, draft(**bad)),
        return_exceptions=True,
    )

    assert isinstance(answers.pop(), ItemRefused)
    assert answers == [created(job.id) for job in jobs]


async def test_many_threads_at_once_store_each_job_once(store):
    engine = await store.open()
    jobs = [draft() for _ in range(200)]

    def store_some(share: list[Draft]) -> list[list[Receipt] | None]:
        return [put_here(engine, [job]) for job in share]

    with ThreadPoolExecutor(8) as pool:
        shares = [jobs[start::8] for start in range(8)]
        calls = [asyncio.wrap_future(pool.submit(store_some, share)) for share in shares]
        answers = await asyncio.gather(*calls)

    stored = [receipts[0] for share in answers for receipts in share if receipts is not None]
    assert all(receipt.created for receipt in stored)
    found = await engine.get([job.id for job in jobs])
    # None: it did not happen, for another thread had the connection.
    assert {receipt.id for receipt in stored} == {job.id for job in found if job is not None}


async def test_several_are_stored_with_one_call_in_their_order(store):
    engine = await store.open()
    before, *jobs, after = [draft() for _ in range(12)]
    await now(engine, before)
    assert await all_now(engine, jobs) == [created(job.id) for job in jobs]
    await now(engine, after)

    claimed = await claim(engine, want=20)
    assert [job.id for job in claimed] == [job.id for job in (before, *jobs, after)]


async def test_of_several_that_are_stored_with_one_call_each_has_its_own_receipt(store):
    engine = await store.open()
    owner = await put(engine, unique="only")
    mine = draft("mine", remember=60.0)
    await now(engine, mine)
    plain, special = draft(), draft(unique="only")

    assert await all_now(engine, [plain, mine, special, draft(plain.id)]) == [
        created(plain.id),
        known("mine"),
        Receipt(owner, False, "unique"),
        known(plain.id),
    ]
    assert len(await everything(engine)) == 3


async def test_of_several_one_that_no_store_can_hold_lets_none_be_stored(store):
    engine = await store.open()
    with pytest.raises(ItemRefused):
        await all_now(engine, [draft(), draft(key="a\0b"), draft()])
    assert await everything(engine) == ()


async def test_each_thread_keeps_its_order(store):
    engine = await store.open()
    first, second = draft(), draft()
    await now(engine, first)
    await now(engine, second)

    assert [job.id for job in await claim(engine, want=2)] == [first.id, second.id]
