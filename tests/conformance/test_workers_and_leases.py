"""``join``, ``leave``, ``beat``, ``workers``: who has a lease."""

from __future__ import annotations

import pytest

from conformance.steps import about, ask, bury, claim, joined, put, rejoined, running, stored
from penstock.core.job import State
from penstock.engines import changes, reads
from penstock.engines.records import WorkerInfo
from penstock.errors import LeaseLost

INFO = WorkerInfo(id="w", queues=("a", "b"), tasks=("t", "u"), host="web-1", pid=4711, slots=8)


async def known(engine, id="w"):
    (info,) = [info for info in await engine.workers() if info.id == id]
    return info


async def test_a_worker_that_joined_is_known_with_all_it_said(engine):
    await engine.join(INFO)
    info = await known(engine)
    same = ("id", "queues", "tasks", "host", "pid", "slots")
    assert [getattr(info, name) for name in same] == [getattr(INFO, name) for name in same]
    assert info.joined_at == about(await reads.now(engine))


async def test_nobody_has_a_lease_at_first(engine):
    assert await engine.workers() == []


async def test_every_worker_with_a_lease_is_known_to_every_handle(store):
    first, second = await store.open(), await store.open()
    workers = [await joined(first), await joined(second), await joined(first)]
    assert sorted(info.id for info in await second.workers()) == sorted(workers)


async def test_workers_are_listed_in_the_order_they_joined_then_by_id(engine, store):
    for id in "cb":
        await engine.join(WorkerInfo(id=id))
    store.clock.advance(60)
    await engine.join(WorkerInfo(id="a"))
    await engine.join(WorkerInfo(id="c", slots=2))
    assert [info.id for info in await engine.workers()] == ["b", "c", "a"]


async def test_joining_again_changes_what_is_known_but_not_the_beat(engine):
    await engine.join(INFO)
    await engine.beat("w")
    beat = (await known(engine)).beat
    await engine.join(WorkerInfo(id="w", queues=("c",), slots=2))
    info = await known(engine)
    assert (info.queues, info.slots, info.beat) == (("c",), 2, beat)


async def test_a_joining_worker_cannot_choose_its_beat(engine):
    await engine.join(INFO)
    await engine.join(WorkerInfo(id="w", beat=99))
    assert (await known(engine)).beat == 0


async def test_joining_again_keeps_the_jobs(engine):
    job = await running(engine)
    await rejoined(engine, job.worker)
    assert await engine.held(job.worker) == [job]


async def test_a_worker_that_left_is_not_known(engine):
    worker = await joined(engine)
    await engine.leave(worker)
    assert await engine.workers() == []
    for call in (engine.beat(worker), engine.held(worker), engine.exchange(ask(worker))):
        with pytest.raises(LeaseLost):
            await call


async def test_leaving_twice_is_no_error(engine):
    worker = await joined(engine)
    await engine.leave(worker)
    await engine.leave(worker)
    await engine.leave("stranger")


async def test_leaving_does_not_touch_the_jobs(engine):
    job = await running(engine)
    await engine.leave(job.worker)
    assert await stored(engine, job.id) == job


async def test_what_a_worker_left_is_rescued_by_the_next_rescue(engine):
    job = await running(engine)
    await engine.leave(job.worker)
    (rescued,) = await changes.rescue(engine, [], 10)
    assert (rescued.id, rescued.state) == (job.id, State.READY)


async def test_a_beat_of_an_unknown_worker_is_refused(engine):
    with pytest.raises(LeaseLost) as caught:
        await engine.beat("stranger")
    assert caught.value.worker == "stranger"
    assert await engine.workers() == []


async def test_a_refused_beat_does_not_bring_a_buried_worker_back(engine):
    worker = await joined(engine)
    await bury(engine, worker)
    with pytest.raises(LeaseLost):
        await engine.beat(worker)
    assert await engine.workers() == []


async def test_a_buried_worker_may_join_again_and_work(engine):
    job = await running(engine)
    await bury(engine, job.worker)
    await rejoined(engine, job.worker)
    assert await engine.held(job.worker) == []
    await put(engine)
    assert len(await claim(engine, worker=job.worker)) == 1
