"""What a supervisor does in the store for processes that live, and for those that have died."""

from __future__ import annotations

import asyncio

import pytest

from conformance.steps import claim, enqueue_jobs, joined
from penstock.core.job import ErrorRecord, Outcome, OutcomeKind, State
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.errors import EngineReadOnly, ItemRefused
from penstock.testing import Faulty
from penstock.worker.supervisor.leases import ReplicaLeases
from penstock.worker.supervisor.replica_messages import Joined, SettleAfterDeath
from worker.supervisor_rig import LOADED, PlayedProcess


class LeasesRig:
    """A store, seen by a supervisor and by a test."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.memory = MemoryStore()
        self.engine = MemoryEngine(self.memory, clock)
        self.theirs = Faulty(MemoryEngine(self.memory, clock))
        self.urls: list[str] = []
        self.living: list[str] = []
        self.processes: list[PlayedProcess] = []
        self.leases = ReplicaLeases(self.connect, lambda: self.living, clock)

    def connect(self, url: str) -> Faulty:
        self.urls.append(url)
        return self.theirs

    def dead(self, worker: str, *outcomes: Outcome, code: int = -9) -> PlayedProcess:
        process = PlayedProcess(len(self.processes) + 1, lambda: None, self.clock)
        self.processes.append(process)
        process.says(
            LOADED, Joined(worker), *([SettleAfterDeath(worker, outcomes)] if outcomes else [])
        )
        process.dies(code)
        assert process.poll(self.clock.monotonic())
        return process

    async def state_of(self, *ids: str) -> list[tuple[State, int, int]]:
        return [
            (job.state, job.failures, job.crashes)
            for job in await self.engine.get(ids)
            if job is not None
        ]


@pytest.fixture
async def rig(clock):
    rig = LeasesRig(clock)
    await rig.engine.open()
    running = asyncio.create_task(rig.leases.run())
    rig.leases.locate(LOADED)
    await clock.settle()
    yield rig
    running.cancel()
    await asyncio.wait([running])
    await rig.engine.close()
    for process in rig.processes:
        process.close()
    assert rig.theirs.verbs[-1] == "close"


async def test_the_first_process_says_where_the_store_is(rig, clock):
    rig.leases.locate(LOADED)
    await clock.settle()
    assert rig.urls == ["sqlite:////jobs.db"]


async def test_every_living_process_is_beaten_for_every_fifth_of_a_lease(rig, clock):
    rig.living = [await joined(rig.engine), await joined(rig.engine)]
    await clock.elapse(30)
    assert [info.beat for info in await rig.engine.workers()] == [10, 10]


async def test_a_worker_that_the_store_does_not_know_costs_the_others_no_beat(rig, clock):
    rig.living = ["unknown", await joined(rig.engine)]
    await clock.elapse(9)
    assert [info.beat for info in await rig.engine.workers()] == [3]


async def test_beats_go_on_when_the_store_comes_back(rig, clock):
    rig.living = [await joined(rig.engine)]
    rig.theirs.down()
    await clock.elapse(60)
    rig.theirs.up()
    await clock.elapse(3)
    assert next(info.beat for info in await rig.engine.workers()) >= 1


async def test_jobs_of_a_dead_process_are_ready_at_once(rig, clock):
    ids = await enqueue_jobs(rig.engine, 3)
    worker = await joined(rig.engine)
    await claim(rig.engine, worker=worker, want=3)
    rig.leases.clean_up(rig.dead(worker))
    assert await rig.leases.cleaned_up(60.0)
    assert await rig.state_of(*ids) == [(State.READY, 0, 1)] * 3
    assert await rig.engine.workers() == []


async def test_a_job_that_may_have_run_in_a_dead_process_is_an_error_in_the_log(rig, caplog):
    (id,) = await enqueue_jobs(rig.engine, 1, at_most_once=True)
    worker = await joined(rig.engine)
    await claim(rig.engine, worker=worker)
    rig.leases.clean_up(rig.dead(worker))
    assert await rig.leases.cleaned_up(60.0)

    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors == [
        f'job given up job={id} task=work queue=default attempt=1 crashes=1 reason="may have run"'
    ]


async def test_an_outcome_left_is_settled_and_is_no_crash(rig, clock):
    ids = await enqueue_jobs(rig.engine, 2)
    worker = await joined(rig.engine)
    await claim(rig.engine, worker=worker, want=2)
    error = ErrorRecord(attempt=1, at=0.0, kind="timeout", message="too long")
    failed = Outcome(job=ids[0], claim=1, kind=OutcomeKind.FAILED, reason="timeout", error=error)
    rig.leases.clean_up(rig.dead(worker, failed, code=0))
    await clock.settle()
    assert await rig.state_of(*ids) == [(State.FAILED, 1, 0), (State.READY, 0, 1)]


async def test_what_a_dead_process_left_waits_for_a_store_that_is_away(rig, clock):
    ids = await enqueue_jobs(rig.engine, 1)
    worker = await joined(rig.engine)
    await claim(rig.engine, worker=worker)
    rig.theirs.down()
    rig.leases.clean_up(rig.dead(worker))
    await clock.elapse(600)
    assert await rig.state_of(*ids) == [(State.RUNNING, 0, 0)]
    assert not await rig.leases.cleaned_up(0.0)
    rig.theirs.up()
    await clock.elapse(5)
    assert await rig.state_of(*ids) == [(State.READY, 0, 1)]


async def test_an_outcome_left_that_the_store_refuses_does_not_keep_the_rest(rig, clock):
    ids = await enqueue_jobs(rig.engine, 1)
    worker = await joined(rig.engine)
    await claim(rig.engine, worker=worker)
    bad = Outcome(job=ids[0], claim=1, kind=OutcomeKind.FAILED)
    rig.theirs.fail("exchange", ItemRefused("memory", "no"))
    rig.leases.clean_up(rig.dead(worker, bad))
    await clock.settle()
    assert await rig.state_of(*ids) == [(State.READY, 0, 1)]


async def test_a_process_that_left_in_order_leaves_nothing_to_do(rig, clock):
    ids = await enqueue_jobs(rig.engine, 1)
    rig.leases.clean_up(rig.dead("gone", code=0))
    await clock.settle()
    assert await rig.leases.cleaned_up(0.0)
    assert await rig.state_of(*ids) == [(State.READY, 0, 0)]


async def test_a_handle_that_cannot_be_opened_is_tried_again(clock):
    rig = LeasesRig(clock)
    await rig.engine.open()
    rig.theirs.fail("open", EngineReadOnly("memory", "no"))
    rig.living = [await joined(rig.engine)]
    running = asyncio.create_task(rig.leases.run())
    rig.leases.locate(LOADED)
    await clock.elapse(5)
    assert [info.beat for info in await rig.engine.workers()] == [2]
    running.cancel()
    await asyncio.wait([running])
    await rig.engine.close()


async def test_a_store_that_only_the_process_could_reach_has_ended_with_it(clock):
    leases = ReplicaLeases(lambda url: pytest.fail(url), list, clock)
    running = asyncio.create_task(leases.run())
    process = PlayedProcess(1, lambda: None, clock)
    process.joins()
    process.dies()
    process.poll(clock.monotonic())
    leases.clean_up(process)
    await clock.settle()
    assert await leases.cleaned_up(0.0)
    running.cancel()
    process.close()
