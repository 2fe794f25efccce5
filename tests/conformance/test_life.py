"""``open``, ``close``, ``migrate``, ``now``: a handle's own life."""

from __future__ import annotations

import asyncio

import pytest

from conformance.steps import ask, draft, joined, put, soon, stored
from conformance.waiting import LONG, work
from penstock.core.job import State
from penstock.engines import changes, reads
from penstock.engines.records import Filter, News, QueueSettings, WorkerInfo
from penstock.engines.waiting import wait_for_results
from penstock.errors import EngineClosed

VERBS = {
    "enqueue": lambda engine: engine.enqueue([draft()]),
    "join": lambda engine: engine.join(WorkerInfo(id="w")),
    "leave": lambda engine: engine.leave("w"),
    "beat": lambda engine: engine.beat("w"),
    "exchange": lambda engine: engine.exchange(ask("w")),
    "held": lambda engine: engine.held("w"),
    "cancel": lambda engine: changes.cancel(engine, ["a"], "enough"),
    "retry": lambda engine: changes.retry(engine, ["a"]),
    "purge": lambda engine: engine.purge(Filter(), 1),
    "set_queue": lambda engine: engine.set_queue("q", QueueSettings()),
    "queues": lambda engine: engine.queues(),
    "promote": lambda engine: engine.promote(1),
    "rescue": lambda engine: changes.rescue(engine, [], 1),
    "prune": lambda engine: engine.prune(1),
    "repair": lambda engine: engine.repair(1),
    "repair_holds": lambda engine: changes.repair_holds(engine, 1),
    "cells": lambda engine: engine.cells("", None, 1),
    "cell": lambda engine: engine.cell("c"),
    "set_cell": lambda engine: engine.set_cell("c", b"", 0),
    "get": lambda engine: engine.get(["a"]),
    "find": lambda engine: engine.find(Filter(), None, 1),
    "counts": lambda engine: engine.counts(Filter()),
    "workers": lambda engine: engine.workers(),
    "hands": lambda engine: engine.running(),
    "line": lambda engine: reads.standing(engine, "a"),
    "version": lambda engine: engine.version(News.CHANGED),
    "listen": lambda engine: engine.listen(News.CHANGED, 0, 60),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_handle_cannot_be_used_before_it_is_open(store, verb):
    with pytest.raises(EngineClosed):
        await soon(VERBS[verb](store.handle()))


@pytest.mark.parametrize("verb", VERBS)
async def test_a_handle_cannot_be_used_after_it_was_closed(store, verb):
    engine = await store.open()
    await engine.close()
    with pytest.raises(EngineClosed):
        await soon(VERBS[verb](engine))


async def test_a_store_that_does_not_exist_yet_is_made(store):
    engine = await store.open()
    assert (await stored(engine, await put(engine))).state is State.READY


async def test_closing_twice_is_no_error(engine):
    await engine.close()
    await engine.close()


async def test_closing_a_handle_that_was_never_open_is_no_error(store):
    await store.handle().close()


async def test_a_closed_handle_may_be_opened_again(store):
    keeper, engine = await store.open(), await store.open()
    id = await put(engine)
    await engine.close()
    await engine.open()
    assert (await stored(engine, id)).id == id
    assert (await stored(keeper, id)).id == id


async def test_closing_one_handle_leaves_the_others_open(store):
    first, second = await store.open(), await store.open()
    id = await put(first)
    await first.close()
    assert (await stored(second, id)).id == id


@pytest.mark.parametrize("verb", ["wait", "listen", "results"])
async def test_what_a_handle_still_awaited_ends_when_it_is_closed(engine, store, verb):
    worker, id = await joined(engine), await put(engine, queue="elsewhere")
    sleeps = {
        "wait": lambda: work(engine, ask(worker), LONG),
        "results": lambda: wait_for_results(engine, [id], LONG),
    }
    seen = await engine.version(News.CHANGED)
    sleep = sleeps.get(verb, lambda: engine.listen(News.CHANGED, seen, LONG))
    nap = asyncio.create_task(sleep())
    await store.clock.settle()
    assert not nap.done()
    await engine.close()
    try:
        await soon(asyncio.wait({nap}))
    finally:
        nap.cancel()
        await asyncio.gather(nap, return_exceptions=True)


async def test_migrating_again_changes_nothing(engine):
    id = await put(engine)
    schema = await engine.migrate()
    assert await engine.migrate() == schema
    assert schema.found == schema.newest >= 1
    assert (await stored(engine, id)).id == id


async def test_the_schema_is_the_newest_once_the_store_is_open(engine):
    schema = await engine.migrate(check=True)
    assert schema.found == schema.newest
    assert await engine.migrate() == schema


async def test_asking_for_the_schema_opens_and_makes_nothing(store):
    """A store that lives in memory needs none."""
    handle = store.handle()
    first, second = await handle.migrate(check=True), await handle.migrate(check=True)
    assert first == second
    assert first.found in (0, first.newest)
    with pytest.raises(EngineClosed):
        await handle.counts(Filter())


async def test_any_number_of_handles_may_migrate_at_once(store):
    engines = [await store.open() for _ in range(4)]
    versions = await asyncio.gather(*(engine.migrate() for engine in engines))
    assert len(set(versions)) == 1


async def test_any_number_of_handles_may_open_a_new_store_at_once(store):
    engines = [store.handle() for _ in range(4)]
    await asyncio.gather(*(engine.open() for engine in engines))
    ids = [await put(engine) for engine in engines]
    assert None not in await engines[0].get(ids)


async def test_the_traits_are_complete(engine):
    traits = engine.traits
    assert traits.name
    assert traits.max_batch >= 1
    assert engine.clock.monotonic() <= engine.clock.monotonic()


async def test_a_close_that_is_cancelled_still_leaves_nothing_open(store):
    """The store's teardown sees a thread or a file that is left."""
    engine = await store.open()
    put_something = asyncio.create_task(put(engine))
    await asyncio.sleep(0)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(put_something, closing, return_exceptions=True)
    other = await store.open()
    await put(other)


async def test_opening_waits_for_a_close_under_way(engine):
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    await engine.open()
    await closing
    await put(engine)


async def test_a_handle_that_two_open_at_once_is_open_for_both(store):
    engine = store.handle()

    async def use():
        await engine.open()
        await engine.version(News.CHANGED)

    await asyncio.gather(use(), use())
