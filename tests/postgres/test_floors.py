"""Where sweeps need not begin before, and that nothing stays behind there."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from conformance.steps import claim, draft, enqueue_jobs, ids, joined, outcome, put, send
from penstock.core.job import Job
from penstock.engines.postgres import floors
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.enqueue import to_json
from penstock.engines.postgres.floors import DEAR, FIRST, PACE, Floors
from postgres.real import Real

LINE = ("default", 5)
PUT = "SELECT penstock.put(%s)"
LAST = "SELECT last_value FROM penstock.ticket"


# --- what a claimer knows -----------------------------------------------------------------------


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


def test_of_two_questions_the_answer_that_comes_first_counts(real: Real) -> None:
    made = sought()
    first, second = made.question([LINE]), made.question([LINE])
    made.learn(second, (200, ["3/7"], None))
    made.learn(first, (100, [], None))
    assert made.question([LINE]).values[3:] == (200, ["3/7"])


def test_where_whole_lines_are_cheap_again_there_are_none(real: Real) -> None:
    made = sought()
    made.learn(made.question([LINE]), (100, [], None))
    made.learn(made.question([LINE]), (200, [], [100]))
    made.judge(DEAR / 2)
    assert not made


# --- what the store says ------------------------------------------------------------------------


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


async def test_one_that_is_prepared_for_two_steps_stops_it(
    engine: PostgresEngine, other: psycopg.AsyncConnection[Any]
) -> None:
    """It has another name by then."""
    worker = await joined(engine)
    await other.execute(PUT, (to_json([draft("late")]),))
    await enqueue_jobs(engine, 10)
    await end_all(engine, worker, 10)
    made = sought()
    await ask_floors(engine, made)
    await other.execute("PREPARE TRANSACTION 'late'")
    try:
        await ask_floors(engine, made)
        assert made[LINE] == FIRST
    finally:
        await other.set_autocommit(True)
        await other.execute("COMMIT PREPARED 'late'")
        await other.set_autocommit(False)
    await ask_floors(engine, made)
    assert made[LINE] < await last(engine) - 9
    assert ids(await claim(engine)) == ["late"]
