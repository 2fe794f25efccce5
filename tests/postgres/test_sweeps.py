"""Bounds and sweeps: whatever is committed when, nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from random import Random
from typing import Any

import psycopg
import pytest

from conformance.steps import ask, draft, enqueue_jobs, ids, joined, outcome, put, send
from penstock.core.job import Draft, Hold, Job
from penstock.engines.postgres import bounds
from penstock.engines.postgres.engine import PostgresEngine
from penstock.errors import EngineUnavailable
from penstock.testing.clock import FakeClock
from postgres.puts import PUT, columns
from servers.emptied import emptied

LATE = columns(draft("late"))
LAST = "SELECT last_value FROM penstock.ticket"


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep is so dear that there is no second one."""
    for name, value in (("FEW", -1), ("SHARE", 1e12), ("REST", 1e9)):
        monkeypatch.setattr(bounds, name, value)


async def turn(engine: PostgresEngine, worker: str, *outcomes: Any, want: int = 5) -> list[Job]:
    return list((await engine.exchange(ask(worker, want=want, outcomes=outcomes))).jobs)


async def warmed(engine: PostgresEngine) -> str:
    """A worker whose claimer has bounds."""
    worker = await joined(engine)
    await warm(engine, worker)
    return worker


async def warm(engine: PostgresEngine, worker: str) -> None:
    """Claim until there are bounds."""
    for _ in range(4):
        await enqueue_jobs(engine, 2)
        jobs = await turn(engine, worker, want=2)
        await send(engine, worker, *(outcome(job, "succeeded") for job in jobs))
    assert not engine._bounds.ranges(["default"]).is_whole


async def test_a_job_that_was_committed_late_is_found(
    engine: PostgresEngine, clock: FakeClock, other: psycopg.AsyncConnection[Any]
) -> None:
    worker = await warmed(engine)
    await other.execute(PUT, LATE)
    mine = await enqueue_jobs(engine, 3)
    for _ in range(3):
        jobs = await turn(engine, worker)
        await send(engine, worker, *(outcome(job, "succeeded") for job in jobs))
        mine = [id for id in mine if id not in ids(jobs)]
    assert not mine
    await other.commit()
    # The line seems to end after its bound.
    assert ids(await turn(engine, worker)) == ["late"]


async def test_so_it_is_each_second_while_there_is_enough_to_do(
    engine: PostgresEngine, clock: FakeClock, other: psycopg.AsyncConnection[Any]
) -> None:
    worker = await warmed(engine)
    await other.execute(PUT, LATE)
    await enqueue_jobs(engine, 20)
    assert len(await turn(engine, worker, want=1)) == 1
    await other.commit()
    assert ids(await turn(engine, worker, want=1)) != ["late"]
    clock.advance(bounds.SWEEP)
    assert ids(await turn(engine, worker, want=1)) == ["late"]


async def test_who_is_about_to_sleep_finds_it_too(
    engine: PostgresEngine, clock: FakeClock, other: psycopg.AsyncConnection[Any]
) -> None:
    worker = await warmed(engine)
    await other.execute(PUT, LATE)
    await put(engine)
    assert len(await turn(engine, worker)) == 1
    await other.commit()
    assert ids(await turn(engine, worker, want=1)) == ["late"]


@pytest.mark.usefixtures("dear")
async def test_an_old_ticket_that_is_ready_again_is_found(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    worker = await joined(engine)
    old = await put(engine)
    (job,) = await turn(engine, worker)
    await warm(engine, worker)
    await send(engine, worker, outcome(job, "released"))
    assert ids(await turn(engine, worker, want=1)) == [old]


@pytest.mark.usefixtures("dear")
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


@pytest.mark.usefixtures("dear")
async def test_who_is_about_to_sleep_is_told_of_an_old_ticket(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    another = await joined(engine)
    old = await put(engine)
    (job,) = await turn(engine, another)
    worker = await warmed(engine)
    assert await turn(engine, worker, want=1) == []
    twin = PostgresEngine(emptied().url, clock, follows_clock=True)
    await twin.open()
    await send(twin, another, outcome(job, "released"))
    await twin.close()
    assert ids(await turn(engine, worker, want=1)) == [old]


@pytest.mark.usefixtures("dear")
async def test_after_a_broken_connection_nothing_is_known(
    engine: PostgresEngine, clock: FakeClock, other: psycopg.AsyncConnection[Any]
) -> None:
    """Another server may answer, where tickets are older."""
    worker = await warmed(engine)
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

    for _ in range(150):
        number = random.randrange(len(others))
        connection = others[number]
        match random.randrange(5):
            case 0 if number not in pending:
                drafts = [some() for _ in range(random.randrange(1, 4))]
                await connection.execute(PUT, columns(*drafts))
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
    await twin.close()
