"""``enqueue_now`` and ``enqueue_soon``: ways in from any thread, blocking and not.

Where a store has none, ``enqueue`` does as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conformance.steps import claim, draft, everything, put, soon
from penstock.core.job import Draft, Hold, State
from penstock.engines.engine import Engine
from penstock.engines.records import QueueSettings, Receipt
from penstock.errors import ItemRefused

Way = Callable[[Engine, Draft], Awaitable[Receipt]]


async def now(engine: Engine, job: Draft) -> Receipt:
    """Store one job from a thread of its own, as a blocking caller does."""
    return (await all_now(engine, [job]))[0]


async def all_now(engine: Engine, jobs: list[Draft]) -> list[Receipt]:
    """Store several jobs so, with one call."""
    receipts = await asyncio.to_thread(engine.enqueue_now, jobs, 60.0)
    return await engine.enqueue(jobs) if receipts is None else receipts


async def handed_in(engine: Engine, job: Draft) -> Receipt:
    """Hand one job in, as a coroutine does that does not block its loop."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[tuple[Receipt | None, Exception | None]] = loop.create_future()

    def answer(*what: Any) -> None:
        loop.call_soon_threadsafe(answered.set_result, what)

    if engine.enqueue_soon(job, answer) is not None:
        receipt, error = await soon(answered)
        if error is not None:
            raise error
        if receipt is not None:
            return receipt
    (receipt,) = await engine.enqueue([job])
    return receipt


@pytest.fixture(params=[now, handed_in], ids=["now", "soon"])
def enqueued(request) -> Way:
    """Both ways in."""
    return request.param


async def test_what_is_stored_there_is_what_enqueue_stores(store, enqueued):
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
        before = await engine.now()
        receipt = await enqueued(engine, job)
        assert receipt == Receipt(job.id, True)
        (stored,) = await engine.get([job.id])
        assert stored is not None
        for field in ("task", "payload", "queue", "priority", "key", "unique", "unique_until"):
            assert getattr(stored, field) == getattr(job, field)
        for field in ("at_most_once", "name", "tags", "correlation_id", "enqueued_by"):
            assert getattr(stored, field) == getattr(job, field)
        assert stored.enqueued_at == pytest.approx(before, abs=60)
        assert stored.state is (State.SCHEDULED if job is rich else State.READY)


async def test_it_is_committed_when_the_call_returns(store, enqueued):
    engine, other = await store.open(), await store.open()
    receipt = await enqueued(engine, draft())

    assert [job.id for job in await claim(other)] == [receipt.id]


async def test_a_known_id_stores_nothing(store, enqueued):
    engine = await store.open()
    job = draft("mine", remember=60.0)
    await enqueued(engine, job)

    assert await enqueued(engine, job) == Receipt("mine", False, "id")
    assert len(await everything(engine)) == 1


async def test_a_taken_unique_key_names_its_owner(store, enqueued):
    engine = await store.open()
    owner = await put(engine, unique="only")

    assert await enqueued(engine, draft(unique="only")) == Receipt(owner, False, "unique")


async def test_in_a_fair_queue_a_job_enters_unplaced(store, enqueued):
    engine = await store.open()
    await engine.set_queue("default", QueueSettings(fair=True))
    receipt = await enqueued(engine, draft())

    (job,) = await engine.get([receipt.id])
    assert job is not None
    assert (job.state, job.hold) == (State.READY, Hold.UNPLACED)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"delay": float("inf")}, id="time"),
        pytest.param({"priority": 1 << 70}, id="number"),
        pytest.param({"key": "a\0b"}, id="nul"),
        pytest.param({"key": "\ud800"}, id="surrogate"),
    ],
)
async def test_what_no_store_can_hold_is_refused_and_its_neighbours_are_not(store, enqueued, bad):
    engine = await store.open()
    jobs = [draft() for _ in range(6)]
    answers = await asyncio.gather(
        *(enqueued(engine, job) for job in jobs),
        enqueued(engine, draft(**bad)),
        return_exceptions=True,
    )

    assert isinstance(answers.pop(), ItemRefused)
    assert answers == [Receipt(job.id, True) for job in jobs]


async def test_many_threads_at_once_store_each_job_once(store):
    engine = await store.open()
    jobs = [draft() for _ in range(200)]

    def store_some(share: list[Draft]) -> list[list[Receipt] | None]:
        return [engine.enqueue_now([job], 60.0) for job in share]

    with ThreadPoolExecutor(8) as pool:
        shares = [jobs[start::8] for start in range(8)]
        calls = [asyncio.wrap_future(pool.submit(store_some, share)) for share in shares]
        answers = await asyncio.gather(*calls)

    stored = [receipts[0] for share in answers for receipts in share if receipts is not None]
    assert all(receipt.created for receipt in stored)
    found = await engine.get([job.id for job in jobs])
    # None: it did not happen. A store may know a shorter way only while few come at once.
    assert {receipt.id for receipt in stored} == {job.id for job in found if job is not None}


async def test_several_are_stored_with_one_call_in_their_order(store):
    engine = await store.open()
    before, *jobs, after = [draft() for _ in range(12)]
    await now(engine, before)
    assert await all_now(engine, jobs) == [Receipt(job.id, True) for job in jobs]
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
        Receipt(plain.id, True),
        Receipt("mine", False, "id"),
        Receipt(owner, False, "unique"),
        Receipt(plain.id, False, "id"),
    ]
    assert len(await everything(engine)) == 3


async def test_of_several_one_that_no_store_can_hold_lets_none_be_stored(store):
    engine = await store.open()
    with pytest.raises(ItemRefused):
        await all_now(engine, [draft(), draft(key="a\0b"), draft()])
    assert await everything(engine) == ()


async def test_each_thread_keeps_its_order(store, enqueued):
    engine = await store.open()
    first, second = draft(), draft()
    await enqueued(engine, first)
    await enqueued(engine, second)

    assert [job.id for job in await claim(engine, want=2)] == [first.id, second.id]
