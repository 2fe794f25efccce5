"""Forced interleavings: one connection is stopped inside a step while another one acts.

A step of the first connection stops right before the statement that writes what it decided. Then
a second connection wants to change the very thing the decision was about. On the real engine it has
to wait; on one torn into single statements it gets in between, and each test is seen to fail.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import pytest

from conformance.steps import draft, joined, put, settle, soon
from penstock.core.job import Job, State
from penstock.engines import changes
from penstock.engines.records import Ask, QueueSettings
from penstock.engines.sqlite.engine import SqliteEngine

BETWEEN = 0.05
"""Real seconds in which a step that need not wait would surely have got in between."""


class TornEngine(SqliteEngine):
    """Each statement commits alone, and nobody takes turns."""

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        assert self._connection.raw is not None
        yield self._connection.raw


class Stop:
    """Stops an engine's thread before the first statement that contains ``text``."""

    def __init__(self, engine: SqliteEngine, text: str) -> None:
        self._text = text
        self._go_on = threading.Event()
        self._is_used = False
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        assert engine._connection.raw is not None
        engine._connection.raw.set_trace_callback(self._trace)

    def _trace(self, statement: str) -> None:
        if self._text in statement and not self._is_used:
            self._is_used = True
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self._go_on.wait(30)

    def go_on(self) -> None:
        self._go_on.set()


Handles = tuple[SqliteEngine, SqliteEngine]
Meet = Callable[[Handles], Awaitable[None]]


@pytest.fixture
async def open_handles(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Handles]]]:
    opened: list[SqliteEngine] = []

    async def open_two(kind: type[SqliteEngine]) -> Handles:
        pair = (kind(str(tmp_path / "jobs.db")), kind(str(tmp_path / "jobs.db")))
        for engine in pair:
            await engine.open()
            opened.append(engine)
        return pair

    yield open_two
    for engine in opened:
        await engine.close()


async def between(
    handles: Handles, statement: str, first: Awaitable[Any], second: Awaitable[Any]
) -> tuple[Any, Any]:
    """Let ``second`` act while ``first`` stands before ``statement``; return both answers."""
    stop = Stop(handles[0], statement)
    one = asyncio.ensure_future(first)
    await soon(stop.reached.wait())
    two = asyncio.ensure_future(second)
    await asyncio.wait({two}, timeout=BETWEEN)
    stop.go_on()
    return await soon(one), await soon(two)


async def ledger_against_ledger(handles: Handles) -> None:
    """Two callers give the same id: only one of them creates the job."""
    here, there = handles
    first = here.enqueue([draft("order-7", remember=60.0)])
    second = there.enqueue([draft("order-7", remember=60.0)])
    (one,), (two,) = await between(handles, "INSERT INTO job", first, second)
    assert [one.created, two.created].count(True) == 1


async def ledger_against_settlement(handles: Handles) -> None:
    """A settlement ends a job and gives its key back; its id is not free for that."""
    here, there = handles
    await put(here, "order-7", remember=60.0, unique="order")
    worker = await joined(here)
    (job,) = await _claim(here, worker)
    first = settle(here, job, "succeeded")
    second = there.enqueue([draft("order-8", unique="order"), draft("order-7", remember=60.0)])
    _, (fresh, known) = await between(handles, "SET held = 0", first, second)
    jobs = await here.get(["order-7", "order-8"])
    assert not known.created
    assert known.because == "id"
    # Whoever was told that the key is free finds its job finished.
    assert fresh.created
    assert jobs[0] is not None
    assert jobs[0].state is State.SUCCEEDED


async def unique_against_retry(handles: Handles) -> None:
    """A person's retry and a new job want the same key: only one of them gets it."""
    here, there = handles
    await put(here, "old", unique="report")
    await changes.cancel(here, ["old"], "not now")
    first = changes.retry(here, ["old"])
    second = there.enqueue([draft("new", unique="report")])
    (revived,), (receipt,) = await between(handles, "INSERT INTO unique_key", first, second)
    assert [revived.changed, receipt.created].count(True) == 1


async def limit_counting(handles: Handles) -> None:
    """Two workers count the same running attempts: the limit holds all the same."""
    here, there = handles
    await here.set_queue("default", QueueSettings(max_running=1))
    await put(here)
    await put(here)
    workers = [await joined(here), await joined(there)]
    statement = "UPDATE job SET state = 'running'"
    jobs = await between(handles, statement, _claim(here, workers[0]), _claim(there, workers[1]))
    assert len(jobs[0]) + len(jobs[1]) == 1


async def limit_of_a_key(handles: Handles) -> None:
    """Two workers count the same running attempts of a key: its limit holds all the same."""
    here, there = handles
    await here.set_queue("default", QueueSettings(max_running_per_key=1))
    await put(here, key="a")
    await put(here, key="a")
    workers = [await joined(here), await joined(there)]
    statement = "UPDATE job SET state = 'running'"
    jobs = await between(handles, statement, _claim(here, workers[0]), _claim(there, workers[1]))
    assert len(jobs[0]) + len(jobs[1]) == 1


async def notes_against_enqueue(handles: Handles) -> None:
    """A claim has looked at an empty line and drops its note: a job that enters is found."""
    here, there = handles
    await here.set_queue("default", QueueSettings(fair=True))
    gone = await put(here, key="a")
    await changes.cancel(here, [gone], "not needed")
    worker = await joined(here)
    first, second = _claim(here, worker), there.enqueue([draft("new", key="a")])
    await between(handles, "DELETE FROM note", first, second)
    assert [job.id for job in await _claim(there, worker)] == ["new"]


async def claim_against_cancel(handles: Handles) -> None:
    """A job is claimed and cancelled at once: it is cancelled, or runs and is asked to end."""
    here, there = handles
    id = await put(here)
    worker = await joined(here)
    statement = "UPDATE job SET state = 'running'"
    first, second = _claim(here, worker), changes.cancel(there, [id], "not needed")
    jobs, (control,) = await between(handles, statement, first, second)
    (stored,) = await there.get([id])
    assert stored is not None
    assert control.changed
    assert (stored.state is State.CANCELLED) == (not jobs)
    assert stored.state is State.CANCELLED or stored.cancel_reason == "not needed"


async def claim_against_claim(handles: Handles) -> None:
    """Two workers look at the same line: no attempt is given out twice."""
    here, there = handles
    await put(here)
    workers = [await joined(here), await joined(there)]
    statement = "UPDATE job SET state = 'running'"
    jobs = await between(handles, statement, _claim(here, workers[0]), _claim(there, workers[1]))
    assert len(jobs[0]) + len(jobs[1]) == 1


async def _claim(engine: SqliteEngine, worker: str) -> tuple[Job, ...]:
    ask = Ask(worker=worker, queues=("default",), want=1, slots=1)
    return (await engine.exchange(ask)).jobs


MEETINGS = [
    ledger_against_ledger,
    ledger_against_settlement,
    unique_against_retry,
    limit_counting,
    limit_of_a_key,
    notes_against_enqueue,
    claim_against_cancel,
    claim_against_claim,
]


@pytest.mark.parametrize("meet", MEETINGS)
async def test_nobody_gets_in_between(meet: Meet, open_handles: Any) -> None:
    await meet(await open_handles(SqliteEngine))


@pytest.mark.parametrize("meet", MEETINGS)
async def test_the_same_meeting_goes_wrong_on_a_torn_engine(meet: Meet, open_handles: Any) -> None:
    with pytest.raises(AssertionError):
        await meet(await open_handles(TornEngine))
