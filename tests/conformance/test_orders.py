"""Orders to one worker: each of its beats brings them."""

from __future__ import annotations

import asyncio

from conformance.steps import joined
from penstock.engines import orders
from penstock.engines.orders import DrainOrder


async def test_a_beat_brings_nothing_unless_there_is_an_order(engine):
    worker = await joined(engine)
    assert await engine.beat(worker) is None


async def test_every_beat_brings_the_order_to_this_worker_and_to_no_other(store):
    person, machine = await store.open(), await store.open()
    worker, other = await joined(machine), await joined(machine)
    assert await orders.drain(person, worker, 12.5)
    assert orders.read(await machine.beat(worker)) == DrainOrder(12.5)
    assert orders.read(await machine.beat(worker)) == DrainOrder(12.5)
    assert await machine.beat(other) is None
    assert await orders.draining(person) == {worker}


async def test_a_later_order_takes_the_place_of_an_earlier_one(engine):
    worker = await joined(engine)
    await orders.drain(engine, worker, 60)
    await orders.drain(engine, worker)
    assert orders.read(await engine.beat(worker)) == DrainOrder(None)


async def test_of_two_orders_at_once_one_stands(store):
    first, second = await store.open(), await store.open()
    worker = await joined(first)
    told = await asyncio.gather(orders.drain(first, worker, 1), orders.drain(second, worker, 2))
    assert all(told)
    assert orders.read(await first.beat(worker)) in (DrainOrder(1.0), DrainOrder(2.0))


async def test_a_worker_without_a_lease_is_given_no_order(engine):
    assert not await orders.drain(engine, "nobody")
    assert await orders.draining(engine) == frozenset()


async def test_what_is_no_order_is_ignored(engine):
    worker = await joined(engine)
    await engine.set_cell(orders.cell_of(worker), b"nonsense", 0)
    assert orders.read(await engine.beat(worker)) is None
    assert await orders.draining(engine) == frozenset()
