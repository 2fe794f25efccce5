"""The chores: each a bounded step, harmless when two leaders do it."""

from __future__ import annotations

from math import inf

import pytest

from penstock.core.ids import new_id
from penstock.core.job import KEEP, Draft, Hold, State
from penstock.engines import changes
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.records import Ask, Pruned, Sighting, WorkerInfo
from penstock.errors import EngineUnavailable
from penstock.leader.chores import Repair, Rescue, all_chores, promote, prune
from penstock.testing import Faulty


@pytest.fixture
async def engine(clock):
    engine = Faulty(MemoryEngine(MemoryStore(), clock))
    await engine.open()
    yield engine
    await engine.close()


async def put(engine, count: int = 1, **fields) -> list[str]:
    drafts = [Draft(id=new_id(), task="work", **fields) for _ in range(count)]
    return [receipt.id for receipt in await engine.enqueue(drafts)]


async def claim(engine, worker: str, want: int = 1) -> None:
    await engine.join(WorkerInfo(id=worker))
    await engine.exchange(Ask(worker=worker, queues=("default",), want=want, slots=want))


async def states(engine, ids) -> list[State]:
    return [job.state for job in await engine.get(ids)]


# --- promote ------------------------------------------------------------------------------------


async def test_promote_makes_due_jobs_ready_and_sleeps_until_the_next(engine, clock):
    (soon,) = await put(engine, delay=2.0)
    await put(engine, delay=4.5)

    assert await promote(engine) == pytest.approx(2.0)
    clock.advance(2)
    assert await promote(engine) == pytest.approx(2.5)
    assert await states(engine, [soon]) == [State.READY]


async def test_promote_goes_on_at_once_after_a_full_batch(engine, clock):
    ids = await put(engine, 3, delay=1.0)
    clock.advance(1)

    assert await promote(engine, 2) == 0.0
    assert await promote(engine, 2) == inf
    assert await states(engine, ids) == [State.READY] * 3


# --- rescue -------------------------------------------------------------------------------------


async def look(rescue: Rescue, engine, clock) -> None:
    """Look at the workers, as a candidate does."""
    asked = clock.monotonic()
    beats = [Sighting(each.id, each.beat) for each in await engine.workers()]
    rescue.saw(asked, clock.monotonic(), beats)


async def live(rescue: Rescue, engine, clock, seconds: float, *beating: str) -> None:
    """Let time pass with a look whenever one is due, and beats of some workers."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        for worker in beating:
            await engine.beat(worker)
        await look(rescue, engine, clock)
        await rescue.run(engine)
        clock.advance(3.0)


async def test_a_dead_workers_jobs_are_ready_again_within_a_lease_and_a_look(engine, clock):
    ids = await put(engine, 3)
    await claim(engine, "dead", want=2)
    await claim(engine, "alive")
    rescue = Rescue(15.0, clock, clock.monotonic)

    await live(rescue, engine, clock, 14, "alive")
    assert await states(engine, ids) == [State.RUNNING] * 3
    await live(rescue, engine, clock, 6, "alive")
    assert await states(engine, ids) == [State.READY, State.READY, State.RUNNING]
    assert [info.id for info in await engine.workers()] == ["alive"]


async def test_jobs_of_a_worker_that_left_are_rescued_at_the_next_look(engine, clock):
    (id,) = await put(engine)
    await claim(engine, "gone")
    rescue = Rescue(15.0, clock, clock.monotonic)
    await live(rescue, engine, clock, 3)
    await engine.leave("gone")
    await live(rescue, engine, clock, 3)

    assert await states(engine, [id]) == [State.READY]


async def test_what_a_former_leader_left_half_done_is_rescued_at_the_first_look(engine, clock):
    (id,) = await put(engine)
    await claim(engine, "gone")
    await engine.leave("gone")
    rescue = Rescue(15.0, clock, clock.monotonic)
    await look(rescue, engine, clock)
    await rescue.run(engine)

    assert await states(engine, [id]) == [State.READY]


async def test_an_outage_gives_everybody_a_fresh_lease(engine, clock):
    (id,) = await put(engine)
    await claim(engine, "w")
    rescue = Rescue(15.0, clock, clock.monotonic)
    await live(rescue, engine, clock, 12)
    rescue.missed()
    clock.advance(3)
    await live(rescue, engine, clock, 12)
    assert await states(engine, [id]) == [State.RUNNING]
    await engine.beat("w")


async def test_without_a_reason_nobody_is_asked_to_rescue(engine, clock):
    await engine.join(WorkerInfo(id="w"))
    rescue = Rescue(15.0, clock, clock.monotonic)
    await live(rescue, engine, clock, 12, "w")

    assert engine.verbs.count("running") == 1


async def test_two_observers_rescue_a_job_once(engine, clock):
    (id,) = await put(engine)
    await claim(engine, "dead")
    first, second = Rescue(15.0, clock, clock.monotonic), Rescue(15.0, clock, clock.monotonic)
    for _ in range(8):
        for rescue in (first, second):
            await look(rescue, engine, clock)
        for rescue in (first, second):
            await rescue.run(engine)
        clock.advance(3)

    (job,) = await engine.get([id])
    assert (job.state, job.crashes, job.rescues) == (State.READY, 1, 1)


async def test_many_orphans_are_rescued_batch_by_batch(engine, clock):
    ids = await put(engine, 5)
    await claim(engine, "gone", want=5)
    await engine.leave("gone")
    rescue = Rescue(15.0, clock, clock.monotonic, 2)
    await look(rescue, engine, clock)
    while await rescue.run(engine) == 0.0:
        pass

    assert await states(engine, ids) == [State.READY] * 5


# --- what a rescue writes to the log ------------------------------------------------------------


def lines(caplog) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


async def test_each_worker_found_dead_is_a_warning_that_says_what_it_had(engine, clock, caplog):
    await put(engine, 3)
    for worker, want in (("idle", 0), ("busy", 2)):
        await engine.join(WorkerInfo(id=worker, host="web1", pid=4711))
        await engine.exchange(Ask(worker=worker, queues=("default",), want=want, slots=want))
    await claim(engine, "alive")
    await live(Rescue(15.0, clock, clock.monotonic), engine, clock, 30, "alive")

    assert sorted(lines(caplog)) == [
        ("WARNING", "worker found dead worker=busy host=web1 pid=4711 jobs=2 silent=15.0"),
        ("WARNING", "worker found dead worker=idle host=web1 pid=4711 jobs=0 silent=15.0"),
    ]
    fields = caplog.records[0].__dict__["fields"]
    assert {name: type(value) for name, value in fields.items()} == {
        "worker": str,
        "host": str,
        "pid": int,
        "jobs": int,
        "silent": float,
    }


async def test_a_dead_worker_with_many_jobs_is_told_once_with_all_of_them(
    engine, clock, caplog, monkeypatch
):
    await put(engine, 5)
    await claim(engine, "dead", want=5)
    await live(Rescue(15.0, clock, clock.monotonic, 2), engine, clock, 40)

    (line,) = lines(caplog)
    assert line == ("WARNING", 'worker found dead worker=dead host="" pid=0 jobs=5 silent=15.0')


async def test_a_worker_that_beats_at_last_is_not_told_dead(engine, clock, caplog):
    await put(engine)
    await claim(engine, "late")
    rescue = Rescue(15.0, clock, clock.monotonic)
    for _ in range(6):
        await look(rescue, engine, clock)
        clock.advance(3.0)
    await engine.beat("late")
    await rescue.run(engine)

    assert lines(caplog) == []
    assert [info.id for info in await engine.workers()] == ["late"]


async def test_a_job_that_has_crashed_too_often_is_an_error(engine, clock, caplog):
    (id,) = await put(engine, correlation_id="order-7")
    rescue = Rescue(15.0, clock, clock.monotonic)
    for attempt in (1, 2, 3):
        worker = f"victim-{attempt}"
        await claim(engine, worker)
        await engine.exchange(Ask(worker=worker, begun=((id, attempt),)))
        await look(rescue, engine, clock)
        await rescue.run(engine)
        await engine.leave(worker)
        await look(rescue, engine, clock)
        await rescue.run(engine)

    (job,) = await engine.get([id])
    assert job.state is State.FAILED
    assert lines(caplog) == [
        (
            "ERROR",
            f"job given up job={id} task=work queue=default attempt=3 crashes=3 "
            'correlation_id=order-7 reason="crashed its worker 3 times"',
        )
    ]


async def test_a_job_that_may_have_run_is_an_error_and_one_to_be_cancelled_is_none(
    engine, clock, caplog
):
    (once,) = await put(engine, at_most_once=True)
    (unwanted,) = await put(engine)
    await claim(engine, "gone", want=2)
    await changes.cancel(engine, [unwanted], "no more")
    await engine.leave("gone")
    rescue = Rescue(15.0, clock, clock.monotonic)
    await look(rescue, engine, clock)
    await rescue.run(engine)

    assert await states(engine, [once, unwanted]) == [State.FAILED, State.CANCELLED]
    assert lines(caplog) == [
        (
            "ERROR",
            f"job given up job={once} task=work queue=default attempt=1 crashes=1 "
            'reason="may have run"',
        )
    ]


# --- prune and repair ---------------------------------------------------------------------------


async def test_prune_deletes_what_ended_long_ago_batch_by_batch(engine, clock):
    ids = await put(engine, 3)
    await changes.cancel(engine, ids, "no")
    clock.advance(KEEP + 1)
    (fresh,) = await put(engine)
    await changes.cancel(engine, [fresh], "no")

    assert await prune(engine, 2) < 1.0
    assert await prune(engine, 2) == inf
    assert await engine.get(ids) == [None] * 3
    assert await states(engine, [fresh]) == [State.CANCELLED]


async def test_repair_lifts_holds_without_a_cause_and_asks_the_engine_for_the_rest(engine):
    (id,) = await put(engine)
    await changes.hold(engine, [id], Hold.UNKNOWN_TASK, "work")
    await engine.join(WorkerInfo(id="w", tasks=("work",)))

    assert await Repair().run(engine) == inf
    assert engine.verbs[-1] == "repair"
    (job,) = await engine.get([id])
    assert job.hold is None


async def test_repair_goes_on_at_once_until_all_holds_and_keys_were_looked_at(engine):
    held = await put(engine, 5)
    await changes.hold(engine, held, Hold.UNKNOWN_TASK, "work")
    for number in range(3):
        await put(engine, unique=f"key-{number}")
    await engine.join(WorkerInfo(id="w", tasks=("work",)))
    repair = Repair(batch=2)

    assert [await repair.run(engine) for _ in range(4)] == [0.0, 0.0, 0.0, inf]
    assert {job.hold for job in await engine.get(held)} == {None}


async def test_repair_that_fails_goes_on_where_it_was(engine):
    held = await put(engine, 3)
    await changes.hold(engine, held, Hold.UNKNOWN_TASK, "work")
    await engine.join(WorkerInfo(id="w", tasks=("work",)))
    repair = Repair(batch=2)

    assert await repair.run(engine) == 0.0
    engine.fail("find")
    with pytest.raises(EngineUnavailable):
        await repair.run(engine)
    assert await repair.run(engine) == inf
    assert {job.hold for job in await engine.get(held)} == {None}


async def test_prune_comes_again_when_the_store_says(engine, monkeypatch):
    async def soon(limit):
        return Pruned(again_in=7.0)

    assert await prune(engine) == inf
    monkeypatch.setattr(engine.inner, "prune", soon)
    assert await prune(engine) == 7.0


def test_a_leader_has_all_chores_each_with_a_name_and_a_time_limit():
    found = all_chores(60.0)

    assert {chore.name for chore in found} == {"promote", "prune", "repair"}
    assert all(chore.timeout > 0 and chore.period > 0 for chore in found)


async def test_what_a_candidate_watched_is_proven_when_it_is_elected(engine, clock):
    """A leader dies with a job; the next one watched it all along and need not begin anew."""
    (id,) = await put(engine)
    await claim(engine, "old leader")
    rescue = Rescue(15.0, clock, clock.monotonic)
    for _ in range(6):
        await look(rescue, engine, clock)
        clock.advance(3)
    assert await states(engine, [id]) == [State.RUNNING]
    await look(rescue, engine, clock)
    await rescue.run(engine)
    assert await states(engine, [id]) == [State.READY]


async def test_a_candidate_that_missed_a_look_proves_nothing(engine, clock):
    (id,) = await put(engine)
    await claim(engine, "old leader")
    rescue = Rescue(15.0, clock, clock.monotonic)
    await look(rescue, engine, clock)
    clock.advance(60)
    await look(rescue, engine, clock)
    await rescue.run(engine)
    assert await states(engine, [id]) == [State.RUNNING]
