"""Key lines in an SQLite file: no step reads them all, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conformance.steps import (
    ask,
    claim,
    draft,
    enqueue_jobs,
    ids,
    joined,
    outcome,
    put,
    send,
    settle,
)
from penstock.core.fairness import STRIDE
from penstock.engines import changes
from penstock.engines.records import QueueSettings, Repaired
from penstock.engines.sqlite.engine import SqliteEngine
from penstock.engines.sqlite.key_line_batches import BATCH
from penstock.engines.sqlite.key_lines import NOTES

FAIR = QueueSettings(fair=True)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    yield engine
    await engine.close()


def rows(engine: SqliteEngine, sql: str) -> list[Any]:
    assert engine._connection.raw is not None
    return engine._connection.raw.execute(sql).fetchall()


async def drained_of_notes(engine: SqliteEngine) -> None:
    """Let claims that find no room look at all lines that have notes."""
    paused = QueueSettings(fair=True, paused=True)
    await engine.set_queue("default", paused)
    worker = await joined(engine)
    while (await engine.exchange(ask(worker, "default", want=1, slots=1))).due_in == 0.0:
        pass
    await engine.set_queue("default", FAIR)


async def steps_of_a_claim(engine: SqliteEngine, want: int) -> int:
    """How many hundreds of instructions SQLite needs for it."""
    worker = await joined(engine)
    assert engine._connection.raw is not None
    seen: Counter[str] = Counter()
    engine._connection.raw.set_progress_handler(lambda: seen.update(["hundred"]), 100)
    jobs = await claim(engine, worker=worker, want=want)
    engine._connection.raw.set_progress_handler(None, 0)
    assert len(jobs) == want
    return seen["hundred"]


async def test_a_claim_costs_with_many_keys_what_it_costs_with_some(tmp_path: Path) -> None:
    costs = []
    for keys in (20, 4000):
        engine = SqliteEngine(str(tmp_path / f"{keys}.db"))
        await engine.open()
        await engine.set_queue("default", FAIR)
        await engine.enqueue([draft(key=f"k{number % keys}") for number in range(4000)])
        await drained_of_notes(engine)
        costs.append(await steps_of_a_claim(engine, 20))
        await engine.close()
    assert costs[1] < 2 * costs[0]


async def test_a_claim_looks_at_a_batch_of_notes_and_says_that_there_are_more(
    engine: SqliteEngine,
) -> None:
    await engine.set_queue("default", FAIR)
    await engine.enqueue([draft(key=f"k{number}") for number in range(2 * NOTES + 10)])
    worker = await joined(engine)
    turn = ask(worker, "default", want=1, slots=1)
    assert (await engine.exchange(turn)).due_in == 0.0
    assert rows(engine, "SELECT count(*) FROM key_line") == [(2 * NOTES,)]
    assert (await engine.exchange(turn)).due_in is None
    assert rows(engine, "SELECT count(*) FROM note") == [(0,)]


async def test_a_queue_that_becomes_fair_is_labelled_in_batches(engine: SqliteEngine) -> None:
    waited = await enqueue_jobs(engine, 2 * BATCH + 10, key="a")
    await engine.set_queue("default", FAIR)
    labelled = "SELECT count(*) FROM job WHERE line IS NOT NULL"
    assert rows(engine, labelled) == [(0,)]
    new = await put(engine, key="b")
    worker = await joined(engine)
    turn = ask(worker, "default", want=2, slots=2)

    first = await engine.exchange(turn)
    assert (sorted(ids(first.jobs)), first.due_in) == (sorted([waited[0], new]), 0.0)
    assert rows(engine, labelled) == [(BATCH + 1,)]
    await engine.exchange(turn)
    last = await engine.exchange(turn)
    assert last.due_in is None
    assert rows(engine, labelled) == [(2 * BATCH + 11,)]
    assert rows(engine, "SELECT moving FROM queue") == [(None,)]


async def test_a_queue_without_jobs_becomes_fair_at_once(engine: SqliteEngine) -> None:
    await engine.set_queue("default", FAIR)
    await engine.enqueue([draft(key="a") for _ in range(2 * BATCH)])
    worker = await joined(engine)
    assert rows(engine, "SELECT moving FROM queue") == [(None,)]
    assert (await engine.exchange(ask(worker, "default", want=1, slots=1))).due_in is None


async def test_what_enters_while_a_queue_is_not_fair_is_found_when_it_is_again(
    engine: SqliteEngine,
) -> None:
    await engine.set_queue("default", FAIR)
    jobs = [await put(engine, key="a"), await put(engine, key="b")]
    await engine.set_queue("default", QueueSettings())
    jobs += [await put(engine, key="a"), await put(engine, key="c")]
    await engine.set_queue("default", FAIR)
    assert sorted(ids(await claim(engine, want=9))) == sorted(jobs)


async def test_a_limit_that_is_raised_is_looked_at_in_batches(engine: SqliteEngine) -> None:
    keys = BATCH + 10
    await engine.set_queue("default", QueueSettings(max_running_per_key=0))
    await engine.enqueue([draft(key=f"k{number:04}") for number in range(keys)])
    worker = await joined(engine)
    turn = ask(worker, "default", want=keys, slots=keys)
    assert (await engine.exchange(turn)).jobs == ()
    await engine.set_queue("default", QueueSettings(max_running_per_key=1))
    answers = [await engine.exchange(turn) for _ in range(2)]
    assert [(len(answer.jobs), answer.due_in) for answer in answers] == [(BATCH, 0.0), (10, None)]


async def test_a_pause_makes_no_claim_look_at_all_lines_again(engine: SqliteEngine) -> None:
    await engine.set_queue("default", FAIR)
    await engine.enqueue([draft(key=f"k{number}") for number in range(10)])
    await claim(engine, want=1)
    for settings in (QueueSettings(fair=True, paused=True), FAIR):
        await engine.set_queue("default", settings)
        assert rows(engine, "SELECT moving FROM queue") == [(None,)]


async def test_a_lost_note_is_found_by_repair(engine: SqliteEngine) -> None:
    await engine.set_queue("default", FAIR)
    for key in "abcde":
        await put(engine, key=key)
    rows(engine, "DELETE FROM note WHERE key IN ('b', 'd')")

    assert await engine.repair(10, rehearse=True) == Repaired(lines=2)
    assert rows(engine, "SELECT count(*) FROM note") == [(3,)]
    assert await engine.repair(10) == Repaired(lines=2)
    assert await engine.repair(10) == Repaired()
    assert sorted(job.key or "" for job in await claim(engine, want=9)) == list("abcde")


async def test_repair_looks_at_a_batch_of_lines_and_keys_at_a_time(engine: SqliteEngine) -> None:
    for queue in ("one", "two"):
        await engine.set_queue(queue, FAIR)
        for key in "abc":
            await put(engine, key=key, queue=queue, unique=f"{queue}-{key}")
    await changes.cancel(engine, ids(await claim(engine, "one", want=1)), "enough")
    rows(engine, "DELETE FROM note")
    rows(engine, "UPDATE unique_key SET owner = 'gone' WHERE key LIKE '%two-c'")
    found: list[tuple[int, int]] = []
    cursor = None
    while not found or cursor is not None:
        repaired = await engine.repair(2, cursor)
        cursor = repaired.cursor
        found.append((repaired.lines, repaired.keys))
    assert found == [(0, 0), (2, 0), (1, 1)]


async def test_a_key_that_has_no_room_is_not_lost(engine: SqliteEngine) -> None:
    await engine.set_queue("default", QueueSettings(max_running_per_key=1))
    await enqueue_jobs(engine, 2, key="a")
    await put(engine, key="a", priority=9)
    (job,) = await claim(engine, want=9)
    assert await engine.repair(10) == Repaired()
    await settle(engine, job, "succeeded")
    assert await engine.repair(10) == Repaired()
    assert len(await claim(engine, want=9)) == 1


async def test_successes_settled_together_make_room_for_their_keys(engine: SqliteEngine) -> None:
    await engine.set_queue("default", QueueSettings(max_running_per_key=1))
    for key in "aabbcc":
        await put(engine, key=key)
    worker = await joined(engine)
    jobs = await claim(engine, worker=worker, want=9)
    assert len(jobs) == 3
    await send(engine, worker, *(outcome(job, "succeeded") for job in jobs))
    assert sorted(job.key or "" for job in await claim(engine, want=9)) == list("abc")


async def test_idle_lines_are_forgotten_but_not_the_virtual_time(engine: SqliteEngine) -> None:
    await engine.set_queue("default", FAIR)
    for number in range(20):
        await put(engine, key=f"k{number}")
    await enqueue_jobs(engine, 5, key="a")
    await claim(engine, want=25)
    places = "SELECT max(place) FROM key_line"
    before = rows(engine, places)
    await engine.prune(8)
    assert rows(engine, "SELECT count(*) FROM key_line") == [(13,)]
    for _ in range(2):
        await engine.prune(8)
    assert rows(engine, "SELECT key FROM key_line") == [("a",)]
    assert rows(engine, places) == before


async def test_a_line_that_waits_for_room_is_not_forgotten(engine: SqliteEngine) -> None:
    await engine.set_queue("default", QueueSettings(max_running_per_key=1))
    for key in ("a", "a", "b"):
        await put(engine, key=key)
    await claim(engine, want=9)
    await engine.prune(100)
    assert rows(engine, "SELECT key FROM key_line ORDER BY key") == [("a",), ("b",)]


async def test_a_line_moves_on_by_what_was_taken(engine: SqliteEngine) -> None:
    await engine.set_queue("default", QueueSettings(fair=True, weights={"a": 2.0}))
    await enqueue_jobs(engine, 10, key="a")
    await enqueue_jobs(engine, 10, key="b")
    await claim(engine, want=9)
    assert rows(engine, "SELECT key, place FROM key_line ORDER BY key") == [
        ("a", STRIDE // 4 + 6 * STRIDE // 2),
        ("b", STRIDE // 2 + 3 * STRIDE),
    ]
