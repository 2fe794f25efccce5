"""The server is killed again and again under load: nothing is lost, nothing settled twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import EngineUnavailable
from processes.conftest import Shop
from servers.postgres import Postgres

JOBS = 6_000
KILLS = 3
CALLERS = 40
"""Who enqueue at the same time, one job after the other."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def server() -> Iterator[Postgres]:
    """As people run it: what is committed is on disk."""
    with Postgres() as server:
        yield server


@pytest.fixture
def shop(tmp_path: Path, server: Postgres) -> Iterator[Shop]:
    shop = Shop(tmp_path, server.url())
    yield shop
    shop.close()


def tally(shop: Shop) -> list[tuple[str, int]]:
    """The runs so far: of which job, which attempt."""
    try:
        lines = (shop.place / "tally").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(id, int(attempt)) for id, _, attempt in (line.partition(" ") for line in lines)]


async def enqueues(shop: Shop, numbers: Iterator[int]) -> None:
    """Enqueue one job after the other, each until it is stored."""
    for number in numbers:
        while True:
            try:
                await shop.app.aenqueue("postgres.tally.note", id=f"note-{number}")
                break
            except EngineUnavailable:
                await asyncio.sleep(0.05)


def until_ran(shop: Shop, count: int) -> None:
    """Wait until so many attempts have run, as long as there are more and more."""
    while (ran := len(tally(shop))) < count:
        shop.until(lambda: len(tally(shop)) > ran, "another attempt")


async def kills(shop: Shop, server: Postgres) -> list[int]:
    """Kill the server each time another share of the jobs has run; return how many had then."""
    ran = []
    for kill in range(1, KILLS + 1):
        await asyncio.to_thread(until_ran, shop, kill * JOBS // (KILLS + 1))
        await asyncio.to_thread(server.kill)
        ran.append(len(tally(shop)))
        await asyncio.to_thread(server.start)
    return ran


async def under_load(shop: Shop, server: Postgres) -> list[int]:
    numbers = iter(range(JOBS))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(enqueues(shop, numbers))
        killing = tasks.create_task(kills(shop, server))
    return killing.result()


def test_a_server_that_is_killed_again_and_again_loses_nothing_and_settles_nothing_twice(
    shop: Shop, server: Postgres
) -> None:
    worker = shop.supervisor("--processes", "2", "--concurrency", "20", module="postgres.tally:app")
    shop.until(lambda: len(shop.pids()) == 2, "both processes")
    ran_when_killed = asyncio.run(under_load(shop, server))
    until_ran(shop, JOBS)

    with server.connect() as connection:
        left = "SELECT count(*) FROM penstock.live"
        shop.until(lambda: connection.execute(left).fetchone() == (0,), "the end of all jobs")
        ended = connection.execute(
            "SELECT id, attempt, state::text, failures, crashes FROM penstock.history"
        ).fetchall()

    runs = Counter(tally(shop))
    assert len(ran_when_killed) == KILLS
    assert max(ran_when_killed) < JOBS, "the server was killed when all was over"
    assert Counter(id for id, *_ in ended) == {f"note-{number}": 1 for number in range(JOBS)}
    assert {tuple(facts) for _, _, *facts in ended} == {("succeeded", 0, 0)}
    # What was settled ran, and no attempt ran twice; one that ran and was not settled is an earlier
    # one of a job that ran again.
    last = {id: attempt for id, attempt, *_ in ended}
    assert set(runs.values()) == {1}
    assert all((id, attempt) in runs for id, attempt in last.items())
    assert all(attempt <= last[id] for id, attempt in runs)
    assert worker.process.poll() is None, worker.text()
