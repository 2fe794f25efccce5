"""The lease and its beats: what is trusted, from when, and who is told."""

from __future__ import annotations

import asyncio

import pytest

from penstock.engines.records import WorkerInfo
from penstock.engines.retrying import open_patiently
from penstock.worker.lease import Lease, keep_beating, new_worker_id
from penstock.worker.log import WorkerLog
from penstock.worker.pool import StartGate
from penstock.worker.settings import WorkerSettings
from worker.rig import soon


class Watched:
    """A lease on the test's own loop, and what it told."""

    def __init__(self, clock) -> None:
        self.gate = StartGate(clock)
        self.lost: list[str] = []
        self.regained = 0
        self.lease = Lease(WorkerSettings(), self.gate, clock, self.lost.append, self._regained)

    def _regained(self) -> None:
        self.regained += 1


@pytest.fixture
async def watched(clock):
    return Watched(clock)


async def beating(rig, lease: Lease) -> None:
    """Beat on a handle of one's own, as a worker does."""
    engine, log = rig.connect(), WorkerLog()
    try:
        await open_patiently(engine, rig.clock, log.unavailable)
        await keep_beating(engine, lease, 3.0, rig.clock, log, lambda order: None)
    finally:
        await engine.close()


@pytest.fixture
async def beats(rig, watched):
    """Beats for a worker that has joined, in a task of the test's loop."""
    await rig.engine.join(WorkerInfo(id=watched.lease.worker))
    watched.lease.renew(watched.lease.worker, rig.clock.monotonic())
    task = asyncio.create_task(beating(rig, watched.lease))
    await rig.clock.asleep()
    yield rig.main
    task.cancel()
    await asyncio.wait([task])


async def beat_of(rig) -> int:
    (info,) = await rig.engine.workers()
    return info.beat


def test_two_ids_of_one_process_differ_and_name_it():
    first, second = new_worker_id("mill"), new_worker_id("mill")

    assert first != second
    assert first.startswith("mill-")


async def test_trust_counts_from_when_the_beat_was_sent(clock, watched):
    asked_at = clock.monotonic()
    clock.advance(5)  # the beat was that slow
    watched.lease.renew(watched.lease.worker, asked_at)

    clock.advance(6.9)
    assert watched.gate.is_trusted
    clock.advance(0.2)
    assert not watched.gate.is_trusted


async def test_a_late_answer_never_shortens_the_trust(clock, watched):
    now = clock.monotonic()
    watched.lease.renew(watched.lease.worker, now)
    watched.lease.renew(watched.lease.worker, now - 10)

    clock.advance(11.9)
    assert watched.gate.is_trusted


async def test_an_answer_for_the_old_name_is_not_for_the_new_one(clock, watched):
    old = watched.lease.worker
    watched.lease.rename()
    watched.lease.renew(old, clock.monotonic())
    watched.lease.lose(old)
    await clock.settle()

    assert not watched.gate.is_trusted
    assert (watched.lost, watched.regained) == ([], 0)


async def test_who_waits_for_trust_is_told_when_it_is_back_and_only_then(clock, watched):
    worker = watched.lease.worker
    for _ in range(3):
        watched.lease.renew(worker, clock.monotonic())
        clock.advance(3)
    await clock.settle()
    assert watched.regained == 1

    clock.advance(20)
    watched.lease.renew(worker, clock.monotonic())
    await clock.settle()
    assert watched.regained == 2


async def test_it_beats_every_fifth_of_a_lease(rig, beats, clock):
    for beat in range(1, 4):
        assert await beat_of(rig) == beat
        clock.advance(3)
        await clock.settle()


async def test_a_beat_that_failed_is_repeated_sooner_than_the_next_one_is_due(rig, beats, clock):
    beats.fail("beat")
    clock.advance(3)
    await clock.settle()
    assert await beat_of(rig) == 1
    clock.advance(0.05)
    await clock.settle()
    assert await beat_of(rig) == 2


async def test_a_beat_of_an_unknown_worker_tells_of_the_loss(rig, beats, watched, clock):
    await rig.engine.leave(watched.lease.worker)
    clock.advance(3)
    await clock.settle()

    assert watched.lost == [watched.lease.worker]
    assert not watched.gate.is_trusted


async def test_nobody_beats_for_a_worker_that_has_not_joined_yet(rig, beats, watched, clock):
    watched.lease.rename()
    calls = len(beats.calls)
    clock.advance(3)
    await clock.settle()

    assert len(beats.calls) == calls
    assert watched.lost == []


async def test_beats_wait_for_a_store_that_is_away_at_the_start(rig, watched, clock):
    rig.down()
    await rig.engine.join(WorkerInfo(id=watched.lease.worker))
    watched.lease.renew(watched.lease.worker, clock.monotonic())
    task = asyncio.create_task(beating(rig, watched.lease))
    await soon(clock.asleep())
    rig.up()
    clock.advance(5)
    await clock.settle()
    assert await beat_of(rig) == 1
    task.cancel()
    await asyncio.wait([task])
