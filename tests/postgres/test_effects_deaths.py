"""Whoever dies around the COMMIT of a transactional task: its effects are there once, or never."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conformance.steps import put
from penstock import Penstock
from penstock.clock import SystemClock
from penstock.core.job import Job, Outcome, OutcomeKind, State, Verdict
from penstock.core.transactions import Effect, Need
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.task_transaction import PostgresEffects
from penstock.engines.records import Ask, WorkerInfo
from penstock.errors import CommitLost, EngineUnavailable
from penstock.worker.transactional_tasks import stepped
from servers.messages import runs
from servers.postgres import quick
from servers.proxy import Proxy

TESTS = Path(__file__).parent.parent
PATHS = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
PATIENCE = 60.0
HISTORY = """
SELECT row_to_json(job) FROM (
  SELECT state, started, failures, attempt, worker, unique_key, unique_until, name, key, tags, note,
         correlation_id, priority, queue, task, hold, reason, cancel_reason, enqueued_by, signed_by,
         convert_from(payload, 'UTF8') AS payload, convert_from(result, 'UTF8') AS result,
         claimed_at IS NOT NULL AS claimed, entry = seq AS same
    FROM penstock.history WHERE id = %s) AS job
"""


class Place:
    """A store with one worker, and the way to it that a test can cut."""

    def __init__(self, url: str, proxy: Proxy) -> None:
        self.url = url
        self.proxy = proxy
        self.engine = PostgresEngine(url, SystemClock())
        self.effects = PostgresEffects(proxy.url(url), connect_timeout=2.0)
        self.db = psycopg.connect(url, autocommit=True)
        self.db.execute("CREATE TABLE payment (number integer)")

    async def claim(self, id: str = "job", **details: Any) -> Job:
        await put(self.engine, id, **details)
        await self.engine.join(WorkerInfo(id="w", tasks=("work",)))
        (job,) = (
            await self.engine.exchange(Ask(worker="w", queues=("default",), want=1, slots=1))
        ).jobs
        return job

    async def state(self, id: str = "job") -> State:
        (job,) = await self.engine.get([id])
        assert job is not None
        return job.state

    @property
    def payments(self) -> int:
        ((count,),) = self.db.execute("SELECT count(*) FROM payment")
        return int(count)


@pytest.fixture
async def place(postgres_url: str) -> AsyncIterator[Place]:
    with Proxy(quick().port) as proxy:
        place = Place(postgres_url, proxy)
        await place.engine.open()
        yield place
        await place.engine.close()
        place.db.close()


class Payer:
    """What a worker does with an attempt, blocking or awaited."""

    def __init__(self, place: Place, *, is_async: bool) -> None:
        self._place = place
        self._need = Need(is_async, 30.0)

    async def begin(self, job: Job) -> Effect:
        beginning = self._place.effects.begin(job, self._need)
        effect = await beginning if self._need.is_async else stepped(beginning)
        paying = effect.connection.execute("INSERT INTO payment VALUES (7)")
        if self._need.is_async:
            await paying
        return effect

    async def settle(self, effect: Effect) -> bool:
        settling = effect.settle(b"null")
        return await (settling if self._need.is_async else asyncio.to_thread(stepped, settling))

    async def undo(self, effect: Effect) -> None:
        undoing = effect.undo()
        await undoing if self._need.is_async else stepped(undoing)


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def payer(place: Place, request: pytest.FixtureRequest) -> Payer:
    return Payer(place, is_async=request.param)


# --- the fence ----------------------------------------------------------------------------------


async def test_a_worker_that_has_lost_its_job_leaves_nothing(place: Place, payer: Payer) -> None:
    job = await place.claim()
    effect = await payer.begin(job)
    place.db.execute("UPDATE penstock.live SET claim = claim + 1")

    assert await payer.settle(effect) is False

    assert place.payments == 0
    assert await place.state() is State.RUNNING


async def test_a_worker_that_has_lost_its_lease_leaves_nothing(place: Place, payer: Payer) -> None:
    job = await place.claim()
    effect = await payer.begin(job)
    await place.engine.leave("w")

    assert await payer.settle(effect) is False

    assert place.payments == 0
    assert await place.state() is State.RUNNING


async def test_a_job_ends_as_by_any_other_success(place: Place, payer: Payer) -> None:
    """Each column of the history says the same, and the unique key is free again."""
    details: dict[str, Any] = {
        "unique": "only", "key": "k", "tags": ("a",), "correlation_id": "c", "name": "n"
    }  # fmt: skip
    told = await place.claim("told", **details)
    outcome = Outcome(job="told", claim=1, kind=OutcomeKind.SUCCEEDED, result=b"null")
    await place.engine.exchange(Ask(worker="w", outcomes=(outcome,)))

    job = await place.claim("done", **details)
    effect = await payer.begin(job)
    assert await payer.settle(effect) is True

    assert told.payload == job.payload
    ends = [place.db.execute(HISTORY, (id,)).fetchone() for id in ("told", "done")]
    assert ends[0] == ends[1]
    assert place.db.execute("SELECT * FROM penstock.unique_key").fetchall() == []


async def test_its_worker_may_tell_of_the_success_afterwards(place: Place, payer: Payer) -> None:
    """As one that is settled, which costs nothing, or as any other: it is done, and stays."""
    effect = await payer.begin(await place.claim())
    await payer.settle(effect)
    success = Outcome(job="job", claim=1, kind=OutcomeKind.SUCCEEDED, result=b"null")
    told = Outcome(job="job", claim=1, kind=OutcomeKind.SUCCEEDED, is_settled=True)
    retry = Outcome(job="job", claim=1, kind=OutcomeKind.RETRY)

    reply = await place.engine.exchange(Ask(worker="w", outcomes=(told, success, told, retry)))

    assert reply.verdicts == (Verdict.DONE,) * 4
    assert await place.state() is State.SUCCEEDED
    assert place.payments == 1


async def test_the_day_it_ends_on_is_made_if_it_is_missing(place: Place, payer: Payer) -> None:
    days = place.db.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits"
        " WHERE inhparent = 'penstock.history'::regclass"
    ).fetchall()
    effect = await payer.begin(await place.claim())
    for (day,) in days:
        place.db.execute(f"DROP TABLE {day}")

    assert await payer.settle(effect) is True
    assert await place.state() is State.SUCCEEDED


# --- the way to the server ----------------------------------------------------------------------


async def test_a_commit_whose_answer_is_lost_is_found_in_the_store(
    place: Place, payer: Payer
) -> None:
    effect = await payer.begin(await place.claim())
    fault = place.proxy.cut_after(runs("commit"))

    assert await payer.settle(effect) is True

    assert fault.has_happened
    assert place.payments == 1
    assert await place.state() is State.SUCCEEDED


async def test_a_commit_that_never_arrived_is_a_failure_that_knows(
    place: Place, payer: Payer
) -> None:
    effect = await payer.begin(await place.claim())
    place.proxy.cut_before(runs("commit"))

    with pytest.raises(CommitLost) as caught:
        await payer.settle(effect)

    assert str(caught.value) == ("work lost its connection at the COMMIT; nothing was committed")
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert place.payments == 0
    assert await place.state() is State.RUNNING


async def test_a_server_that_is_away_at_the_commit_is_awaited(place: Place, payer: Payer) -> None:
    effect = await payer.begin(await place.claim())
    fault = place.proxy.cut_after(runs("commit"))
    place.proxy.refuse()

    def come_back() -> None:
        fault.wait()
        place.proxy.accept()

    returning = threading.Thread(target=come_back)
    returning.start()
    assert await payer.settle(effect) is True
    returning.join()
    assert place.payments == 1


async def test_the_last_word_is_read_after_the_open_transaction_has_ended(
    place: Place, payer: Payer
) -> None:
    """The first connection is lost to us while the server still has its COMMIT before it."""
    effect = await payer.begin(await place.claim())
    other = psycopg.connect(place.url)
    other.execute("DELETE FROM penstock.live WHERE id = 'job'")
    asking = threading.Event()
    answer: list[Any] = []

    def ask() -> None:
        with psycopg.connect(place.url, autocommit=True) as db:
            asking.set()
            row = db.execute("SELECT penstock.has_succeeded('job', 1, 'w')").fetchone()
            answer.extend(row or ())

    thread = threading.Thread(target=ask)
    thread.start()
    asking.wait(PATIENCE)
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while place.db.execute(waits).fetchone() == (0,):
        assert thread.is_alive(), "it did not wait"
    other.rollback()
    thread.join(PATIENCE)
    other.close()

    assert answer == [False]
    await payer.undo(effect)


async def test_a_connection_that_broke_while_it_was_kept_is_replaced(
    place: Place, payer: Payer
) -> None:
    place.effects.join()
    await payer.undo(await payer.begin(await place.claim()))
    place.proxy.cut()

    effect = await payer.begin(await place.claim("other"))

    assert await payer.settle(effect) is True
    assert place.payments == 1
    await place.effects.leave()


async def test_a_server_that_is_away_lets_nothing_begin(place: Place, payer: Payer) -> None:
    job = await place.claim()
    place.proxy.refuse()
    with pytest.raises(EngineUnavailable):
        await payer.begin(job)


async def test_nothing_is_kept_when_the_last_worker_has_left(place: Place, payer: Payer) -> None:
    place.effects.join()
    place.effects.join()
    await payer.undo(await payer.begin(await place.claim()))
    await place.effects.leave()
    assert connections(place) == 1
    await place.effects.leave()
    await gone(place)
    # One that comes back late is closed, too.
    await payer.undo(await payer.begin(await place.claim("other")))
    await gone(place)


def connections(place: Place) -> int:
    row = place.db.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'penstock transaction' AND datname = current_database()"
    ).fetchone()
    return int(row[0]) if row else 0


async def gone(place: Place) -> None:
    """The server hears of the end of a connection a little later."""
    async with asyncio.timeout(PATIENCE):
        while connections(place):
            await asyncio.to_thread(place.db.execute, "SELECT pg_sleep(0.01)")


async def test_a_forked_child_opens_its_own(place: Place) -> None:
    place.effects.join()
    payer = Payer(place, is_async=False)
    kept = await payer.begin(await place.claim())
    mine = kept.connection.info.backend_pid
    await payer.undo(kept)
    reading, writing = os.pipe()
    job = await place.claim("other")
    child = os.fork()
    if child == 0:
        try:
            theirs = stepped(place.effects.begin(job, Need(False, 30.0)))
            os.write(writing, str(theirs.connection.info.backend_pid).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 100)) != mine
    again = await payer.begin(job)
    assert again.connection.info.backend_pid == mine
    await payer.undo(again)
    await place.effects.leave()
    os.close(reading)
    os.close(writing)


# --- processes that are killed ------------------------------------------------------------------


@pytest.fixture
def bank(postgres_url: str) -> Iterator[tuple[Penstock, Any]]:
    app, db = Penstock(postgres_url), psycopg.connect(postgres_url, autocommit=True)
    db.execute("CREATE TABLE payment (number integer)")
    db.execute("CREATE TABLE run (number integer, pid integer)")
    yield app, db
    app.close()
    db.close()


def serve(url: str, **environment: str) -> int:
    """Be a worker process until nothing is left to do; return how it exits."""
    done = subprocess.run(
        [sys.executable, "-m", "postgres.bank"],
        env={**os.environ, "PYTHONPATH": PATHS, "BANK_URL": url, **environment},
        timeout=PATIENCE,
        capture_output=True,
    )
    assert done.returncode <= 0, done.stderr.decode()
    return done.returncode


def count(db: Any, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_killed_right_before_the_commit_it_runs_again(
    bank: tuple[Penstock, Any], postgres_url: str
) -> None:
    """As a suspect, in a child process, which has a transaction of its own."""
    app, db = bank
    job = app.enqueue("postgres.bank.pay", {"number": 7})

    assert serve(postgres_url, BANK_DIES="before") == -signal.SIGKILL
    assert (count(db, "run"), count(db, "payment")) == (1, 0)
    assert job.status().state is State.RUNNING

    assert serve(postgres_url) == 0
    assert job.result(timeout=0) == 7
    assert (count(db, "run"), count(db, "payment")) == (2, 1)
    assert (job.status().attempt, job.status().crashes) == (2, 1)


def test_killed_right_after_the_commit_nothing_runs_again(
    bank: tuple[Penstock, Any], postgres_url: str
) -> None:
    app, db = bank
    job = app.enqueue("postgres.bank.pay", {"number": 7})

    assert serve(postgres_url, BANK_DIES="after") == -signal.SIGKILL
    assert job.status().state is State.SUCCEEDED

    assert serve(postgres_url) == 0
    assert job.result(timeout=0) == 7
    assert (count(db, "run"), count(db, "payment")) == (1, 1)
    assert (job.status().attempt, job.status().crashes) == (1, 0)


def test_isolated_attempts_have_transactions_too(
    bank: tuple[Penstock, Any], postgres_url: str
) -> None:
    app, db = bank
    jobs = [
        app.enqueue(f"postgres.bank.{task}", {"number": 7})
        for task in ("pay_apart", "pay_apart_async")
    ]

    assert serve(postgres_url) == 0

    assert all(job.result(timeout=0) for job in jobs)
    assert count(db, "payment") == 2
