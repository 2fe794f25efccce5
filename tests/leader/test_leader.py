"""The leader: chores run while it is trusted, each on its own, and only then."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from conformance.steps import elect
from penstock.core.job import Draft, State
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.records import Ask, WorkerInfo
from penstock.errors import EngineTimeout, EngineUnavailable
from penstock.leader.chores import Chore, Rescue, all_chores
from penstock.leader.election import Election, present_term
from penstock.leader.leader import Leader
from penstock.testing import Faulty

LEASE = 15.0


class Counted:
    """Counts the runs of a chore, and fails or hangs when told."""

    def __init__(self, name: str, period: float = 5.0, timeout: float = 10.0) -> None:
        self.chore = Chore(name, self._run, period, timeout)
        self.runs = 0
        self.fails = 0
        self.fails_with: Exception | None = None
        self.hangs = False
        self.due_in = period

    async def _run(self, engine) -> float:
        self.runs += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails_with is not None:
            raise self.fails_with
        if self.fails:
            self.fails -= 1
            raise ZeroDivisionError("a chore may raise anything")
        return self.due_in


class House:
    """One store, and candidates that can be started and ended."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.store = MemoryStore()
        self.engine = MemoryEngine(self.store, clock)
        self.handles: dict[str, Faulty] = {}
        self.wrote_at = clock.monotonic

    def connect(self, name: str) -> Faulty:
        self.handles[name] = Faulty(MemoryEngine(self.store, self.clock))
        return self.handles[name]

    @asynccontextmanager
    async def candidate(self, name: str, *counted: Counted):
        """A candidate that runs; at the end it is cancelled, as on shutdown."""
        handle = self.connect(name)
        await handle.open()
        chores = [each.chore for each in counted]
        leader = Leader(
            Election(name, self.clock),
            Rescue(LEASE, self.clock, lambda: self.wrote_at()),
            chores,
            self.clock,
        )
        task = asyncio.create_task(leader.run(handle))
        await self.clock.settle()
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])
            await handle.close()

    async def holder(self) -> str | None:
        term = await present_term(self.engine)
        return term.holder if term else None


@pytest.fixture
async def house(clock):
    house = House(clock)
    await house.engine.open()
    yield house
    await house.engine.close()


async def test_only_the_elected_one_does_the_chores(house, clock):
    mine, theirs = Counted("mine"), Counted("theirs")
    async with house.candidate("a", mine), house.candidate("b", theirs):
        await clock.elapse(12)

    assert mine.runs == 3
    assert theirs.runs == 0


async def test_a_chore_runs_again_when_it_asked_to_but_at_least_once_per_period(house, clock):
    chore = Counted("soon", period=5.0)
    chore.due_in = 0.5
    async with house.candidate("a", chore):
        await clock.elapse(2.1)
        assert chore.runs == 5
        chore.due_in = 1000.0
        await clock.elapse(0.5)
        runs = chore.runs
        await clock.elapse(5.0)
        assert chore.runs == runs + 1


async def test_a_shutdown_lets_the_next_one_lead_within_a_third_of_the_ttl(house, clock):
    mine, theirs = Counted("mine"), Counted("theirs")
    async with house.candidate("b", mine):
        async with house.candidate("a", theirs):
            assert await house.holder() == "b"
        assert await house.holder() == "b"
    assert await house.holder() is None

    async with house.candidate("c", mine):
        assert await house.holder() == "c"


async def test_a_leader_that_dies_is_replaced_within_its_ttl_and_a_try(house, clock):
    await elect(house.engine, "dead", 10.0)
    chore = Counted("chore")
    async with house.candidate("a", chore):
        await clock.elapse(9.9)
        assert chore.runs == 0
        await clock.elapse(3.5)
        assert chore.runs >= 1
        assert await house.holder() == "a"


async def test_a_chore_that_fails_is_tried_again_alone(house, clock, caplog):
    bad, good = Counted("bad"), Counted("good")
    bad.fails = 2
    async with house.candidate("a", bad, good):
        await clock.elapse(0.5)
        assert bad.runs == 3
        assert good.runs == 1

    messages = [record.getMessage() for record in caplog.records]
    assert sum("chore failed chore=bad" in message for message in messages) == 1


async def test_a_chore_that_fails_is_said_once_when_it_begins_and_once_when_it_ends(
    house, clock, caplog
):
    caplog.set_level("INFO", "penstock.leader")
    bad = Counted("bad")
    bad.fails = 12
    async with house.candidate("a", bad):
        await clock.elapse(200)
        assert bad.runs > 12

    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "elected leader=a epoch=1",
        'chore failed chore=bad error=ZeroDivisionError why="a chore may raise anything"',
        "chore works again chore=bad",
    ]


async def test_an_outage_is_no_news_of_the_leader_whose_worker_tells_of_it(house, clock, caplog):
    caplog.set_level("INFO", "penstock.leader")
    chores = [Counted(name, period=1.0) for name in ("promote", "prune", "repair")]
    async with house.candidate("a", *chores):
        for chore in chores:
            chore.fails_with = EngineUnavailable("memory", "away")
        house.handles["a"].down()
        await clock.elapse(75)
        for chore in chores:
            chore.fails_with = None
        house.handles["a"].up()
        await clock.elapse(75)

    assert [record.event for record in caplog.records] == ["elected"]
    assert all(chore.runs > 60 for chore in chores)


async def test_a_chore_that_fails_while_the_store_answers_others_is_news(house, clock, caplog):
    caplog.set_level("INFO", "penstock.leader")
    slow = Counted("slow", period=1.0)
    slow.fails_with = EngineTimeout("memory", "prune took more than 10 s")
    async with house.candidate("a", slow):
        await clock.elapse(75)
        slow.fails_with = None
        await clock.elapse(10)

    assert [record.event for record in caplog.records] == [
        "elected",
        "chore failed",
        "chore works again",
    ]


async def test_a_chore_that_hangs_is_ended_by_its_timeout_and_delays_nobody(house, clock):
    hung, good = Counted("hung", timeout=20.0), Counted("good")
    hung.hangs = True
    async with house.candidate("a", hung, good):
        await clock.elapse(19)
        assert (hung.runs, good.runs) == (1, 4)
        assert await house.holder() == "a"
        hung.hangs = False
        await clock.elapse(2)
        assert hung.runs == 2


async def test_a_leader_that_was_stopped_does_nothing_before_it_is_elected_again(house, clock):
    chore = Counted("chore", period=5.0)
    async with house.candidate("a", chore):
        await clock.elapse(1)
        runs = chore.runs
        handle = house.handles["a"]
        # Stopped for a minute; meanwhile another one leads. On waking, the chore is due.
        gate = handle.block("set_cell")
        clock.advance(60)
        await elect(house.engine, "b", 1000.0)
        await clock.settle()
        assert chore.runs == runs
        gate.open()
        await clock.elapse(60)
        assert chore.runs == runs


async def test_a_store_that_is_away_ends_the_trust_and_a_return_restores_it(house, clock):
    chore = Counted("chore", period=1.0)
    async with house.candidate("a", chore):
        handle = house.handles["a"]
        await clock.elapse(1)
        handle.down()
        await clock.elapse(10)
        runs = chore.runs
        await clock.elapse(10)
        assert chore.runs == runs
        handle.up()
        await clock.elapse(4)
        assert chore.runs > runs


async def test_a_resignation_that_hangs_does_not_keep_the_process(house, clock):
    async with house.candidate("a") as task:
        house.handles["a"].block("set_cell")
        task.cancel()
        await clock.asleep()
        await clock.elapse(2.1)
        await asyncio.wait([task])


async def test_two_leaders_by_accident_do_no_harm(house, clock, monkeypatch):
    """Both believe that they lead; every job still has exactly one life."""
    engine = house.engine
    ids = [f"job-{n}" for n in range(6)]
    await engine.enqueue([Draft(id=id, task="t", delay=2.0 * n) for n, id in enumerate(ids)])
    await engine.join(WorkerInfo(id="dead"))
    await engine.exchange(Ask(worker="dead", queues=("default",), want=1, slots=1))
    elections = [Election(name, clock) for name in "ab"]
    for election in elections:
        election._trusted_until = clock.monotonic() + 1000
    leaders = [
        Leader(election, Rescue(LEASE, clock, clock.monotonic), all_chores(1e6), clock)
        for election in elections
    ]

    async def stand(engine) -> None: ...

    for election in elections:
        monkeypatch.setattr(election, "stand", stand)
    tasks = [asyncio.create_task(leader.run(engine)) for leader in leaders]
    await clock.elapse(60)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    jobs = await engine.get(ids)
    assert {job.state for job in jobs if job} == {State.READY}
    assert jobs[0] is not None
    assert (jobs[0].rescues, jobs[0].crashes) == (1, 1)


# --- the workers --------------------------------------------------------------------------------


async def started(house, worker: str) -> str:
    """A job that a worker has; the worker's death is not known yet."""
    (receipt,) = await house.engine.enqueue([Draft(id=f"job of {worker}", task="t")])
    await house.engine.join(WorkerInfo(id=worker))
    await house.engine.exchange(Ask(worker=worker, queues=("default",), want=1, slots=1))
    return receipt.id


async def state_of(house, id: str) -> State:
    (job,) = await house.engine.get([id])
    return job.state


async def test_a_leader_that_dies_with_a_worker_costs_one_lease_not_a_lease_and_an_election(
    house, clock
):
    """The next leader has looked at the workers while it was a candidate."""
    await elect(house.engine, "w", 10.0)
    id = await started(house, "w")
    async with house.candidate("next"):
        for _ in range(4):
            await clock.elapse(3.0)
            await house.engine.beat("w")
            await elect(house.engine, "w", 10.0)
        # It dies here, as a worker and as the leader.
        await clock.elapse(LEASE - 0.1)
        assert await state_of(house, id) is State.RUNNING
        assert await house.holder() == "next"
        await clock.elapse(2 * 10.0 / 3 + 0.2)
        assert await state_of(house, id) is State.READY


async def test_a_candidate_reads_the_term_and_the_beats_and_nothing_else(house, clock):
    await elect(house.engine, "other", 1000.0)
    async with house.candidate("a", Counted("chore")):
        handle = house.handles["a"]
        before = len(handle.verbs)
        await clock.elapse(10.0)
        asked = handle.verbs[before:]
    assert asked == ["cell", "workers"] * 3


async def test_a_store_that_can_only_be_read_looks_like_no_death(house, clock):
    """Beats cannot be written for two leases while reads go on answering: nobody is dead."""
    id = await started(house, "blocked")
    async with house.candidate("a"):
        await clock.elapse(10)
        wrote_at = clock.monotonic()
        house.wrote_at = lambda: wrote_at
        await clock.elapse(35)
        assert await state_of(house, id) is State.RUNNING
        await house.engine.beat("blocked")


async def test_a_call_for_the_term_that_hangs_proves_no_death(house, clock):
    id = await started(house, "w")
    async with house.candidate("a"):
        await clock.elapse(10)
        house.handles["a"].block("set_cell")
        await clock.elapse(4 * LEASE)
        assert await state_of(house, id) is State.RUNNING


async def test_a_leader_says_once_that_it_leads_and_once_that_it_lost(house, clock, caplog):
    caplog.set_level("INFO", "penstock.leader")
    async with house.candidate("a", Counted("chore")):
        house.handles["a"].down()
        await clock.elapse(12.0)
        await elect(house.engine, "b", 1000.0)
        house.handles["a"].up()
        await clock.elapse(12.0)
    said = [record.getMessage().partition(" leader")[0] for record in caplog.records]
    assert said == ["elected", "leadership lost"]


async def test_a_row_that_cannot_be_read_ends_no_candidate(house, clock, caplog):
    """One row that no version of ours wrote must not end every worker process at once."""
    async with house.candidate("a", chore := Counted("chore")) as task:
        house.handles["a"].fail("workers", ValueError("no worker"))
        await clock.elapse(4)
        house.handles["a"].fail("set_cell", ValueError("no cell"))
        await clock.elapse(15)
        assert not task.done()
        assert await house.holder() == "a"
        assert chore.runs
    assert "election failed" in caplog.text
