"""What a supervisor does in the store for processes that live, and for those that have died."""

from __future__ import annotations

import asyncio

import pytest

from conformance.steps import claim, enqueue_jobs, joined
from penstock.core.job import ErrorRecord, Outcome, OutcomeKind, State
from penstock.engines.memory.engine import MemoryEngine, MemoryStore
from penstock.errors import EngineReadOnly, ItemRefused
from penstock.testing import Faulty
from penstock.worker.supervisor.leases import StaffStore
from penstock.worker.supervisor.log import StaffJournal
from penstock.worker.supervisor.replica_messages import Joined, Will
from worker.staff_rig import LOADED, Played


class House:
    """A store, seen by a supervisor and by a test."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.memory = MemoryStore()
        self.engine = MemoryEngine(self.memory, clock)
        self.theirs = Faulty(MemoryEngine(self.memory, clock))
        self.urls: list[str] = []
        self.living: list[str] = []
        self.members: list[Played] = []
        self.staff = StaffStore(self.connect, lambda: self.living, clock, StaffJournal())

    def connect(self, url: str) -> Faulty:
        self.urls.append(url)
        return self.theirs

    def dead(self, worker: str, *will: Outcome, code: int = -9) -> Played:
        member = Played(len(self.members) + 1, lambda: None, self.clock)
        self.members.append(member)
        member.says(LOADED, Joined(worker), *([Will(worker, will)] if will else []))
        member.dies(code)
        assert member.look(self.clock.monotonic())
        return member

    async def state_of(self, *ids: str) -> list[tuple[State, int, int]]:
        return [
            (job.state, job.failures, job.crashes)
            for job in await self.engine.get(ids)
            if job is not None
        ]


@pytest.fixture
async def house(clock):
    house = House(clock)
    await house.engine.open()
    running = asyncio.create_task(house.staff.run())
    house.staff.locate(LOADED)
    await clock.settle()
    yield house
    running.cancel()
    await asyncio.wait([running])
    await house.engine.close()
    for member in house.members:
        member.close()
    assert house.theirs.verbs[-1] == "close"


async def test_the_first_process_says_where_the_store_is(house, clock):
    house.staff.locate(LOADED)
    await clock.settle()
    assert house.urls == ["sqlite:////jobs.db"]


async def test_everybody_who_lives_is_beaten_for_every_fifth_of_a_lease(house, clock):
    house.living = [await joined(house.engine), await joined(house.engine)]
    await clock.elapse(30)
    assert [info.beat for info in await house.engine.workers()] == [10, 10]


async def test_a_worker_that_the_store_does_not_know_costs_the_others_no_beat(house, clock):
    house.living = ["unknown", await joined(house.engine)]
    await clock.elapse(9)
    assert [info.beat for info in await house.engine.workers()] == [3]


async def test_beats_go_on_when_the_store_comes_back(house, clock):
    house.living = [await joined(house.engine)]
    house.theirs.down()
    await clock.elapse(60)
    house.theirs.up()
    await clock.elapse(3)
    assert next(info.beat for info in await house.engine.workers()) >= 1


async def test_jobs_of_a_dead_process_are_ready_at_once(house, clock):
    ids = await enqueue_jobs(house.engine, 3)
    worker = await joined(house.engine)
    await claim(house.engine, worker=worker, want=3)
    house.staff.bury(house.dead(worker))
    assert await house.staff.settled(60.0)
    assert await house.state_of(*ids) == [(State.READY, 0, 1)] * 3
    assert await house.engine.workers() == []


async def test_a_will_is_settled_and_is_no_crash(house, clock):
    ids = await enqueue_jobs(house.engine, 2)
    worker = await joined(house.engine)
    await claim(house.engine, worker=worker, want=2)
    error = ErrorRecord(attempt=1, at=0.0, kind="timeout", message="too long")
    failed = Outcome(job=ids[0], attempt=1, kind=OutcomeKind.FAILED, reason="timeout", error=error)
    house.staff.bury(house.dead(worker, failed, code=0))
    await clock.settle()
    assert await house.state_of(*ids) == [(State.FAILED, 1, 0), (State.READY, 0, 1)]


async def test_what_a_dead_process_left_waits_for_a_store_that_is_away(house, clock):
    ids = await enqueue_jobs(house.engine, 1)
    worker = await joined(house.engine)
    await claim(house.engine, worker=worker)
    house.theirs.down()
    house.staff.bury(house.dead(worker))
    await clock.elapse(600)
    assert await house.state_of(*ids) == [(State.RUNNING, 0, 0)]
    assert not await house.staff.settled(0.0)
    house.theirs.up()
    await clock.elapse(5)
    assert await house.state_of(*ids) == [(State.READY, 0, 1)]


async def test_a_will_that_the_store_refuses_does_not_keep_the_rest(house, clock):
    ids = await enqueue_jobs(house.engine, 1)
    worker = await joined(house.engine)
    await claim(house.engine, worker=worker)
    bad = Outcome(job=ids[0], attempt=1, kind=OutcomeKind.FAILED)
    house.theirs.fail("exchange", ItemRefused("memory", "no"))
    house.staff.bury(house.dead(worker, bad))
    await clock.settle()
    assert await house.state_of(*ids) == [(State.READY, 0, 1)]


async def test_a_process_that_left_in_order_leaves_nothing_to_do(house, clock):
    ids = await enqueue_jobs(house.engine, 1)
    house.staff.bury(house.dead("gone", code=0))
    await clock.settle()
    assert await house.staff.settled(0.0)
    assert await house.state_of(*ids) == [(State.READY, 0, 0)]


async def test_a_handle_that_cannot_be_opened_is_tried_again(clock):
    house = House(clock)
    await house.engine.open()
    house.theirs.fail("open", EngineReadOnly("memory", "no"))
    house.living = [await joined(house.engine)]
    running = asyncio.create_task(house.staff.run())
    house.staff.locate(LOADED)
    await clock.elapse(5)
    assert [info.beat for info in await house.engine.workers()] == [2]
    running.cancel()
    await asyncio.wait([running])
    await house.engine.close()


async def test_a_store_that_only_the_process_could_reach_has_ended_with_it(clock):
    staff = StaffStore(lambda url: pytest.fail(url), list, clock, StaffJournal())
    running = asyncio.create_task(staff.run())
    member = Played(1, lambda: None, clock)
    member.joins()
    member.dies()
    member.look(clock.monotonic())
    staff.bury(member)
    await clock.settle()
    assert await staff.settled(0.0)
    running.cancel()
    member.close()
