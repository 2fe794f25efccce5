"""Where sweeps need not begin before, and that nothing stays behind there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import suppress
from random import Random
from typing import Any

import psycopg
import pytest

from conformance.steps import ask, claim, draft, enqueue_jobs, ids, joined, outcome, put, send
from penstock.core.job import Draft, Hold, Job
from penstock.engines.postgres import bounds, floors
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.entry import to_json
from penstock.engines.postgres.floors import DEAR, FIRST, PACE, Floors
from penstock.errors import EngineUnavailable
from penstock.testing.clock import FakeClock
from servers.emptied import emptied

LINE = ("default", 5)
PUT = "SELECT penstock.put(%s)"
LAST = "SELECT last_value FROM penstock.ticket"


# --- what a claimer knows -----------------------------------------------------------------------


class Real:
    """What the time is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Real:
    made = Real()
    monkeypatch.setattr(floors, "SystemClock", made)
    return made


def sought() -> Floors:
    made = Floors()
    made.judge(DEAR)
    return made


def test_they_are_sought_where_a_look_at_whole_lines_is_dear(real: Real) -> None:
    made = Floors()
    assert not made.is_time
    made.judge(DEAR)
    assert made.is_time
    made.question([LINE])
    assert not made.is_time
    real.now += PACE
    assert made.is_time
    made.judge(DEAR / 2)
    assert not made.is_time


def test_the_first_answer_is_a_note_and_the_second_a_floor(real: Real) -> None:
    made = sought()
    first = made.question([LINE])
    assert first.values == (["default"], [5], [FIRST], None, [])
    made.learn(first, (100, ["3/7"], None))
    assert not made
    second = made.question([LINE])
    assert second.values == (["default"], [5], [FIRST], 100, ["3/7"])
    made.learn(second, (200, ["4/1"], [90]))
    assert made
    assert made[LINE] == 90
    assert made.question([LINE]).values == (["default"], [5], [90], 200, ["4/1"])


def test_a_note_stands_while_somebody_who_was_there_is_not_done(real: Real) -> None:
    made = sought()
    made.learn(made.question([LINE]), (100, ["3/7", "5/5"], None))
    made.learn(made.question([LINE]), (200, ["3/7", "9/9"], None))
    assert made.question([LINE]).values[3:] == (100, ["3/7"])


def test_an_answer_that_comes_after_something_was_forgotten_says_nothing(real: Real) -> None:
    """A job with an old ticket is ready again since it was asked."""
    made = sought()
    made.learn(made.question([LINE]), (100, [], None))
    late = made.question([LINE])
    made.forget()
    made.learn(late, (200, [], [100]))
    assert made[LINE] == FIRST
    assert made.question([LINE]).values[3] is None


def test_where_whole_lines_are_cheap_again_there_are_none(real: Real) -> None:
    made = sought()
    made.learn(made.question([LINE]), (100, [], None))
    made.learn(made.question([LINE]), (200, [], [100]))
    made.judge(DEAR / 2)
    assert not made


# --- what the store says ------------------------------------------------------------------------


@pytest.fixture
async def other() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody else, in a transaction."""
    async with await psycopg.AsyncConnection.connect(emptied().url) as connection:
        yield connection
        await connection.rollback()


async def ask_floors(engine: PostgresEngine, made: Floors, *lines: tuple[str, int]) -> None:
    question = made.question(lines or (LINE,))
    (answer,) = await engine._call(
        "SELECT * FROM penstock.floors(%s, %s, %s::bigint[], %s, %s::text[])", question.values
    )
    made.learn(question, answer)


async def last(engine: PostgresEngine) -> int:
    ((ticket,),) = await engine._call(LAST, ())
    return int(ticket)


async def end_all(engine: PostgresEngine, worker: str, count: int) -> list[Job]:
    jobs = await claim(engine, worker=worker, want=count)
    await send(engine, worker, *(outcome(job, "succeeded") for job in jobs))
    return jobs


async def test_a_floor_is_right_before_the_first_that_is_ready(engine: PostgresEngine) -> None:
    worker = await joined(engine)
    await enqueue_jobs(engine, 10)
    (_, *_, tenth) = await end_all(engine, worker, 10)
    await enqueue_jobs(engine, 3)
    made = sought()
    await ask_floors(engine, made)
    assert made[LINE] == FIRST
    await ask_floors(engine, made)
    assert made[LINE] == tenth.seq


async def test_where_nothing_is_ready_it_is_the_ticket_that_was_noted(
    engine: PostgresEngine,
) -> None:
    worker = await joined(engine)
    await enqueue_jobs(engine, 10)
    await end_all(engine, worker, 10)
    made = sought()
    await ask_floors(engine, made)
    noted = await last(engine)
    await enqueue_jobs(engine, 3)
    await ask_floors(engine, made, LINE, ("other", 5), ("default", 1))
    assert made[LINE] == made["other", 5] == made["default", 1] == noted


async def test_one_that_runs_does_not_stop_it(engine: PostgresEngine) -> None:
    """If it is ready again, that is told."""
    await enqueue_jobs(engine, 3)
    await claim(engine, want=2)
    (third,) = await claim(engine)
    made = sought()
    await ask_floors(engine, made)
    await ask_floors(engine, made)
    assert made[LINE] == third.seq


async def test_who_has_a_ticket_and_has_not_committed_stops_it(
    engine: PostgresEngine, other: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    await other.execute(PUT, (to_json([draft("late")]),))
    await enqueue_jobs(engine, 10)
    await end_all(engine, worker, 10)
    made = sought()
    for _ in range(3):
        await ask_floors(engine, made)
        assert made[LINE] == FIRST
    await other.commit()
    await ask_floors(engine, made)
    assert made[LINE] < await last(engine) - 9
    assert ids(await claim(engine)) == ["late"]


async def test_who_comes_after_the_note_does_not_stop_it(
    engine: PostgresEngine, other: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    await enqueue_jobs(engine, 10)
    jobs = await end_all(engine, worker, 10)
    made = sought()
    await ask_floors(engine, made)
    await other.execute(PUT, (to_json([draft("late")]),))
    await ask_floors(engine, made)
    assert made[LINE] == jobs[-1].seq


async def test_a_transaction_elsewhere_does_not_stop_it(
    engine: PostgresEngine, other: psycopg.AsyncConnection[Any]
) -> None:
    """It keeps vacuums away: that is what floors are for."""
    await other.execute("SELECT pg_current_xact_id(), count(*) FROM penstock.live")
    worker = await joined(engine)
    await enqueue_jobs(engine, 10)
    jobs = await end_all(engine, worker, 10)
    made = sought()
    await ask_floors(engine, made)
    await ask_floors(engine, made)
    assert made[LINE] == jobs[-1].seq


async def test_one_that_somebody_has_locked_is_not_passed(
    engine: PostgresEngine, other: psycopg.AsyncConnection[Any]
) -> None:
    """Who claims passes it over; if its lock is all there was, it is ready as before."""
    mine = await put(engine)
    await other.execute("SELECT FROM penstock.live WHERE id = %s FOR UPDATE", (mine,))
    await enqueue_jobs(engine, 3)
    worker = await joined(engine)
    jobs = await end_all(engine, worker, 3)
    assert len(jobs) == 3
    made = sought()
    await ask_floors(engine, made)
    await ask_floors(engine, made)
    assert made[LINE] < jobs[0].seq
    await other.rollback()
    assert ids(await claim(engine)) == [mine]


# --- sweeps from there --------------------------------------------------------------------------


@pytest.fixture
def only_from_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at a whole line is so dear that it is done once; from its floor, whenever."""
    for name, value in (("FEW", -1), ("SHARE", 1e12), ("REST", 1e9), ("FLOOR_SHARE", 0.0)):
        monkeypatch.setattr(bounds, name, value)
    monkeypatch.setattr(bounds, "SAFE_SHARE", 1e12)
    monkeypatch.setattr(bounds, "SAFE_REST", 1e9)
    monkeypatch.setattr(floors, "DEAR", 0.0)
    monkeypatch.setattr(floors, "PACE", 0.0)


async def turn(engine: PostgresEngine, worker: str, *outcomes: Any, want: int = 5) -> list[Job]:
    return list((await engine.exchange(ask(worker, want=want, outcomes=outcomes))).jobs)


async def warm(engine: PostgresEngine, worker: str) -> None:
    """Claim until there are floors."""
    for _ in range(4):
        await enqueue_jobs(engine, 2)
        jobs = await turn(engine, worker)
        await send(engine, worker, *(outcome(job, "succeeded") for job in jobs))
    assert engine._bounds.floors[LINE] > FIRST
    assert engine._bounds.rests


@pytest.mark.usefixtures("only_from_floors")
async def test_a_job_that_was_committed_late_is_found(
    engine: PostgresEngine, clock: FakeClock, other: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    await warm(engine, worker)
    await other.execute(PUT, (to_json([draft("late")]),))
    mine = await enqueue_jobs(engine, 3)
    for _ in range(3):
        jobs = await turn(engine, worker)
        await send(engine, worker, *(outcome(job, "succeeded") for job in jobs))
        mine = [id for id in mine if id not in ids(jobs)]
    assert not mine
    await other.commit()
    assert engine._bounds.floors
    # The line seems to end after its bound.
    assert ids(await turn(engine, worker)) == ["late"]


@pytest.mark.usefixtures("only_from_floors")
async def test_so_it_is_each_second_while_there_is_enough_to_do(
    engine: PostgresEngine, clock: FakeClock, other: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    await warm(engine, worker)
    await other.execute(PUT, (to_json([draft("late")]),))
    await enqueue_jobs(engine, 20)
    assert len(await turn(engine, worker, want=1)) == 1
    await other.commit()
    assert ids(await turn(engine, worker, want=1)) != ["late"]
    clock.advance(bounds.SWEEP)
    assert ids(await turn(engine, worker, want=1)) == ["late"]


@pytest.mark.usefixtures("only_from_floors")
async def test_who_is_about_to_sleep_finds_it_too(
    engine: PostgresEngine, clock: FakeClock, other: psycopg.AsyncConnection[Any]
) -> None:
    worker = await joined(engine)
    await warm(engine, worker)
    await other.execute(PUT, (to_json([draft("late")]),))
    await put(engine)
    assert len(await turn(engine, worker)) == 1
    await other.commit()
    assert await engine._look_before_sleep(ask(worker)) == 0
    assert ids(await turn(engine, worker, want=1)) == ["late"]


@pytest.mark.usefixtures("only_from_floors")
async def test_an_old_ticket_that_is_ready_again_is_found(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    worker = await joined(engine)
    old = await put(engine)
    (job,) = await turn(engine, worker)
    await warm(engine, worker)
    await send(engine, worker, outcome(job, "released"))
    assert ids(await turn(engine, worker, want=1)) == [old]


@pytest.mark.usefixtures("only_from_floors")
async def test_one_that_is_held_no_longer_is_given_by_the_turn_that_lifts_the_hold(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    """It keeps its ticket, which is older than what the turn would look at."""
    worker = await joined(engine)
    old = await put(engine)
    (job,) = await turn(engine, worker)
    hold: dict[str, Any] = {"hold": Hold.RATE, "hold_cause": "mail", "delay": 60.0}
    await send(engine, worker, outcome(job, "released", **hold))
    await warm(engine, worker)
    clock.advance(61)
    assert ids(await turn(engine, worker, want=1)) == [old]


@pytest.mark.usefixtures("only_from_floors")
async def test_who_is_about_to_sleep_is_told_of_an_old_ticket(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    worker, another = await joined(engine), await joined(engine)
    old = await put(engine)
    (job,) = await turn(engine, another)
    await warm(engine, worker)
    assert await engine._look_before_sleep(ask(worker)) is None
    twin = PostgresEngine(emptied().url, clock, follows_clock=True)
    await twin.open()
    await send(twin, another, outcome(job, "released"))
    await twin.close()
    assert await engine._look_before_sleep(ask(worker)) == 0
    assert ids(await turn(engine, worker, want=1)) == [old]


@pytest.mark.usefixtures("only_from_floors")
async def test_after_a_broken_connection_nothing_is_known(
    engine: PostgresEngine, clock: FakeClock, other: psycopg.AsyncConnection[Any]
) -> None:
    """Another server may answer, where tickets are older."""
    worker = await joined(engine)
    await warm(engine, worker)
    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'"
        " AND datname = current_database()"
    )
    await other.execute("SELECT setval('penstock.ticket', 1)")
    await other.commit()
    mine = await until_it_answers(put(engine) for _ in range(10))
    assert ids(await turn(engine, worker)) == [mine]


async def until_it_answers(attempts: Iterable[Awaitable[str]]) -> str:
    """Whether a broken connection is noticed before it is used is up to the system."""
    for attempt in attempts:
        with suppress(EngineUnavailable):
            return await attempt
    raise AssertionError("it never answers")


@pytest.mark.usefixtures("only_from_floors")
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_committed_when_nothing_stays_behind(
    engine: PostgresEngine, clock: FakeClock, seed: int
) -> None:
    """Transactions that take tickets and end later, or never; locks that come to nothing; jobs that
    are released; two claimers, in several queues and priorities.
    """
    random = Random(seed)
    url = emptied().url
    workers = [await joined(engine) for _ in range(2)]
    twin = PostgresEngine(url, clock, follows_clock=True)
    await twin.open()
    others = [await psycopg.AsyncConnection.connect(url) for _ in range(4)]
    pending: dict[int, list[str]] = {}
    expected: set[str] = set()
    done: list[str] = []
    known: list[bool] = []
    queues = ("default", "other")

    def some() -> Draft:
        return draft(queue=random.choice(queues), priority=random.choice((1, 5)))

    async def work(number: int) -> None:
        claimer, worker = ((engine, workers[0]), (twin, workers[1]))[number]
        want = random.choice((1, 5, 50))
        jobs = (await claimer.exchange(ask(worker, *queues, want=want))).jobs
        back = [job for job in jobs if random.random() < 0.05]
        ended = [job for job in jobs if job not in back]
        outcomes = [outcome(job, "released") for job in back]
        outcomes += [outcome(job, "succeeded") for job in ended]
        await send(claimer, worker, *outcomes)
        done.extend(ids(ended))
        known.append(bool(claimer._bounds.floors))

    for _ in range(150):
        number = random.randrange(len(others))
        connection = others[number]
        match random.randrange(5):
            case 0 if number not in pending:
                drafts = [some() for _ in range(random.randrange(1, 4))]
                await connection.execute(PUT, (to_json(drafts),))
                pending[number] = [each.id for each in drafts]
            case 1 if number not in pending:
                await connection.execute(
                    "SELECT FROM penstock.live WHERE state = 'ready' LIMIT 2 FOR UPDATE SKIP LOCKED"
                )
                pending[number] = []
            case 2 if number in pending:
                if random.random() < 0.8:
                    await connection.commit()
                    expected.update(pending.pop(number))
                else:
                    await connection.rollback()
                    del pending[number]
            case 3:
                drafts = [some() for _ in range(random.randrange(1, 6))]
                await engine.enqueue(drafts)
                expected.update(each.id for each in drafts)
            case _:
                await work(random.randrange(2))
        clock.advance(random.choice((0.0, 0.0, 0.5)))
    for connection in others:
        await connection.close()
    async with asyncio.timeout(60):
        while len(done) < len(expected):
            await work(random.randrange(2))
            clock.advance(0.5)
    assert sorted(done) == sorted(expected)
    assert any(known)
    await twin.close()
