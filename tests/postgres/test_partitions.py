"""The days of the history: there when a job ends, and gone as a whole when all of one is old."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from conformance.steps import (
    bury,
    claim,
    draft,
    finished,
    outcome,
    put,
    running,
    send,
    settle,
    soon,
    stored,
)
from penstock.core.job import KEEP, Job, State, Verdict
from penstock.engines import changes
from penstock.engines.postgres import history
from penstock.engines.postgres.connection import Values
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.history import BIG, Day, sort_out, to_days
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.transaction import TRIES, Transaction
from penstock.engines.records import Control, Pruned
from penstock.testing.clock import FakeClock

DAY = 86_400.0

ENDED = """
INSERT INTO penstock.history (entry, seq, priority, enqueued_at, finished_at, keep, id, task,
                              queue, state, payload)
SELECT n, n, 5, %(at)s, %(at)s, %(keep)s, 'ended-' || n, 'work', 'default', 'succeeded', ''
  FROM generate_series(1, %(many)s) AS n
"""


class Admin:
    """A person at psql."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)

    def run(self, sql: str, *values: object, **named: object) -> list[Any]:
        cursor = self.connection.execute(sql.encode(), named or values or None)
        return cursor.fetchall() if cursor.description else []

    def end_many(self, at: float, many: int = 3000, keep: float = KEEP) -> None:
        """Let many jobs have ended at an instant."""
        self.run("SELECT penstock.make_day(%s)", at + keep)
        self.run(ENDED, at=at, many=many, keep=keep)

    def days(self) -> dict[str, str]:
        """Each day's table and its place."""
        return dict(self.run("SELECT name, place FROM penstock.days()"))

    def day(self, at: float, keep: float = KEEP) -> str:
        """The table of jobs that end at an instant and are kept for so long."""
        forget_at = at + keep
        ((name,),) = self.run(
            "SELECT name FROM penstock.days() WHERE begins_at <= %s AND ends_at > %s",
            forget_at,
            forget_at,
        )
        return str(name)

    def tables(self) -> set[str]:
        found = self.run("SELECT tablename FROM pg_tables WHERE schemaname = 'penstock'")
        return {name for (name,) in found}

    def drop_days(self) -> None:
        for name in self.days():
            self.run(f"DROP TABLE penstock.{name}")


@pytest.fixture
def admin(postgres_url: str) -> Iterator[Admin]:
    made = Admin(postgres_url)
    yield made
    made.connection.close()


@pytest.fixture
async def engine(admin: Admin, clock: FakeClock) -> AsyncIterator[PostgresEngine]:
    async with opened(admin.url, clock) as engine:
        yield engine


@asynccontextmanager
async def opened(
    url: str, clock: FakeClock | None, *, listens: bool = True
) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(url, clock, follows_clock=clock is not None, listens=listens)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def small_is_big(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day with a few thousand jobs goes as a whole."""
    monkeypatch.setattr(history, "BIG", 64 * 1024)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock is waited for longer than a moment."""
    monkeypatch.setattr(history, "SQL", {**history.SQL, "patience": "SET lock_timeout = '20ms'"})


# --- made ahead, and when missed ----------------------------------------------------------------


async def test_a_new_store_has_the_days_of_a_week(admin: Admin) -> None:
    """Those on which jobs that end within a week may be forgotten."""
    async with opened(admin.url, None):
        found = admin.run("SELECT begins_at, ends_at FROM penstock.days()")
        ((now,),) = admin.run("SELECT penstock.now()")
    first = found[0][0]
    assert found == [(first + n * DAY, first + (n + 1) * DAY) for n in range(9)]
    # It may be midnight.
    assert first + DAY <= now + KEEP < first + 3 * DAY


async def test_pruning_makes_days_ahead(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    await engine.prune(100)
    clock.advance(5 * DAY)
    await engine.prune(100)
    assert [admin.day(clock.now() + number * DAY) for number in range(8)]


async def succeeds(engine: PostgresEngine, job: Job) -> None:
    await settle(engine, job, "succeeded", result=b"1")


async def has_no_plain_result(engine: PostgresEngine, job: Job) -> None:
    await settle(engine, job, "succeeded", result=b"\xff")


async def fails(engine: PostgresEngine, job: Job) -> None:
    await settle(engine, job, "failed")


async def is_cancelled(engine: PostgresEngine, job: Job) -> None:
    await settle(engine, job, "released")
    await changes.cancel(engine, [job.id], "enough")


async def expires_before_a_promotion(engine: PostgresEngine, job: Job) -> None:
    await settle(engine, job, "released")
    assert isinstance(engine.clock, FakeClock)
    engine.clock.advance(2 * DAY)
    await engine.promote(10)


async def expires_before_a_turn(engine: PostgresEngine, job: Job) -> None:
    await settle(engine, job, "released")
    assert isinstance(engine.clock, FakeClock)
    engine.clock.advance(2 * DAY)
    await running(engine)


async def is_rescued(engine: PostgresEngine, job: Job) -> None:
    await bury(engine, job.worker)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (succeeds, State.SUCCEEDED),
        (has_no_plain_result, State.SUCCEEDED),
        (fails, State.FAILED),
        (is_cancelled, State.CANCELLED),
        (expires_before_a_promotion, State.CANCELLED),
        (expires_before_a_turn, State.CANCELLED),
        (is_rescued, State.FAILED),
    ],
)
async def test_a_job_ends_on_a_day_that_nobody_made(
    engine: PostgresEngine,
    admin: Admin,
    end: Callable[[PostgresEngine, Job], Awaitable[None]],
    state: State,
) -> None:
    once = end is is_rescued
    job = await running(engine, expires_in=DAY, at_most_once=once)
    admin.drop_days()
    await end(engine, job)
    assert (await stored(engine, job.id)).state is state
    assert admin.days()


@pytest.mark.parametrize("leap", [30 * DAY, -30 * DAY])
async def test_a_job_ends_after_the_clock_has_leapt(
    engine: PostgresEngine, admin: Admin, clock: FakeClock, leap: float
) -> None:
    job = await running(engine)
    clock.jump(leap)
    await settle(engine, job, "succeeded")
    assert (await stored(engine, job.id)).finished_at == clock.now()


async def test_many_who_miss_the_same_day_all_get_it(admin: Admin, clock: FakeClock) -> None:
    async with opened(admin.url, clock) as one, opened(admin.url, clock) as two:
        jobs = [(engine, await running(engine)) for engine in (one, two) * 3]
        admin.drop_days()
        await asyncio.gather(*(settle(engine, job, "succeeded") for engine, job in jobs))
        assert {(await stored(one, job.id)).state for _, job in jobs} == {State.SUCCEEDED}


async def test_jobs_that_are_kept_for_all_kinds_of_times_end_at_once(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    """Though each of them misses a day of its own, and they are more than a step has tries."""
    drafts = [draft(keep=(100 + number) * DAY) for number in range(2 * TRIES)]
    await engine.enqueue(drafts)
    jobs = await claim(engine, want=len(drafts))
    reply = await send(engine, jobs[0].worker, *(outcome(job, "succeeded") for job in jobs))
    assert set(reply.verdicts) == {Verdict.DONE}
    tables = {admin.day(clock.now(), job.keep) for job in jobs}
    assert len(tables) == len(jobs)


async def test_a_job_that_cannot_run_is_put_aside_on_a_day_that_nobody_made(
    engine: PostgresEngine, admin: Admin
) -> None:
    admin.drop_days()
    admin.run("INSERT INTO penstock.job (id, task, payload) VALUES ('odd', 'work', 'no object')")
    assert (await stored(engine, "odd")).state is State.FAILED


# --- which days go, and how ---------------------------------------------------------------------


def day(number: int, bytes: int = 0, **more: Any) -> Day:
    facts = {"jobs": None, "place": "in", "is_ours": True, **more}
    return Day(f"day_{number}", number * DAY, (number + 1) * DAY, bytes, **facts)


@pytest.mark.parametrize(
    ("given", "fate"),
    [
        (day(1), "some"),
        (day(1, BIG), "whole"),
        (day(1, BIG, is_ours=False), "some"),
        (day(3), "some"),
        (day(3, BIG), "kept"),
        (day(3, BIG, is_ours=False), "kept"),
        (day(4), "kept"),
        (day(4, place="leaving"), "whole"),
        (day(4, place="out"), "whole"),
        (day(1, place="leaving", is_ours=False), "kept"),
    ],
)
def test_what_becomes_of_a_day(given: Day, fate: str) -> None:
    """On the fourth day at noon, when what is older than a day at noon may go."""
    some, whole = sort_out([given], before=3.5 * DAY)
    found = {"some": some, "whole": whole, "kept": [given] if not some + whole else []}
    assert found == {"some": [], "whole": [], "kept": [], fate: [given]}


@pytest.mark.usefixtures("small_is_big")
async def test_a_day_with_many_jobs_goes_as_a_whole(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    admin.end_many(clock.now() - 9 * DAY)
    name = admin.day(clock.now() - 9 * DAY)
    kept = await finished(engine, "succeeded")
    assert (await engine.prune(10)).jobs == 3000
    assert name not in admin.tables()
    assert await stored(engine, kept.id) == kept
    assert await engine.prune(10) == Pruned()


@pytest.mark.usefixtures("small_is_big")
async def test_a_store_in_another_schema_keeps_its_own_days(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    at = clock.now() - 9 * DAY
    admin.end_many(at)
    other = PostgresEngine(admin.url, clock, schema="other_jobs", follows_clock=True)
    await other.open()
    try:
        admin.run("SELECT other_jobs.make_day(%s)", at + KEEP)
        admin.run(ENDED.replace("penstock.", "other_jobs."), at=at, many=2000, keep=KEEP)
        assert (await other.prune(10)).jobs == 2000
    finally:
        await other.close()
    assert admin.run("SELECT count(*) FROM other_jobs.history") == [(0,)]
    assert admin.run("SELECT count(*) FROM penstock.history") == [(3000,)]


@pytest.mark.usefixtures("small_is_big")
async def test_what_the_statistics_say_counts_for_a_day_with_many_jobs(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    at = clock.now() - 9 * DAY
    admin.end_many(at)
    admin.run(f"ANALYZE penstock.{admin.day(at)}")
    admin.run("DELETE FROM penstock.history WHERE id = 'ended-7'")
    assert (await engine.prune(10)).jobs == 3000


@pytest.mark.usefixtures("small_is_big")
async def test_a_day_with_many_jobs_waits_until_all_of_it_is_old(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    begins_at = math.floor(clock.now() / DAY) * DAY
    admin.end_many(begins_at + 1)
    clock.advance_to(begins_at + KEEP + 60)
    assert (await engine.prune(10)).jobs == 0
    clock.advance(DAY)
    assert (await engine.prune(10)).jobs == 3000


async def test_a_day_with_few_jobs_does_not_wait(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    begins_at = math.floor(clock.now() / DAY) * DAY
    admin.end_many(begins_at + 1, many=30)
    admin.end_many(begins_at + 3600, many=3)
    clock.advance_to(begins_at + KEEP + 60)
    assert [(await engine.prune(20)).jobs for _ in range(3)] == [20, 10, 0]
    ((left,),) = admin.run("SELECT count(*) FROM penstock.history")
    assert left == 3


async def test_a_day_without_jobs_is_dropped_when_it_is_old(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    await engine.prune(10)
    old = [admin.day(clock.now() + number * DAY) for number in range(8)]
    clock.advance(30 * DAY)
    assert await engine.prune(10) == Pruned()
    assert not admin.tables() & set(old)


@pytest.mark.usefixtures("small_is_big")
async def test_nothing_goes_where_nothing_may(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    admin.end_many(clock.now() - 9 * DAY, keep=30 * DAY)
    assert await engine.prune(10) == Pruned()
    admin.end_many(clock.now() - 9 * DAY)
    assert await engine.prune(0) == Pruned()


# --- others at the same time --------------------------------------------------------------------


@asynccontextmanager
async def reader(admin: Admin) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody who has read the history and has not ended."""
    async with await psycopg.AsyncConnection.connect(admin.url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.execute("SELECT count(*) FROM penstock.history")
        yield connection


async def has_left(admin: Admin, name: str) -> None:
    """Wait until a day is out of sight."""
    async with asyncio.timeout(60):
        while True:
            if admin.days()[name] != "in":
                return
            await asyncio.sleep(0.001)


async def interrupt(admin: Admin, name: str) -> None:
    """Kill a leader while it detaches a day."""
    async with reader(admin):
        detach = f"ALTER TABLE penstock.history DETACH PARTITION penstock.{name} CONCURRENTLY"
        leader = await psycopg.AsyncConnection.connect(admin.url, autocommit=True)
        detaching = asyncio.create_task(leader.execute(detach.encode()))
        await has_left(admin, name)
        admin.run("SELECT pg_terminate_backend(%s)", leader.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            await detaching
        await leader.close()
    assert admin.days()[name] == "leaving"


@pytest.mark.usefixtures("small_is_big", "hasty")
async def test_a_long_reader_is_not_waited_for(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    """Nor disturbed: it sees what it saw."""
    admin.end_many(clock.now() - 9 * DAY)
    name = admin.day(clock.now() - 9 * DAY)
    async with reader(admin) as connection:
        assert (await engine.prune(10)).jobs == 0
        assert admin.days()[name] == "leaving"
        assert await engine.get(["ended-1"]) == [None]
        assert (await engine.prune(10)).jobs == 0
        cursor = await connection.execute("SELECT count(*) FROM penstock.history")
        assert await cursor.fetchone() == (3000,)
    assert (await engine.prune(10)).jobs == 3000
    assert name not in admin.tables()


@pytest.mark.usefixtures("small_is_big")
async def test_others_work_while_a_day_is_taken_out(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    admin.end_many(clock.now() - 9 * DAY)
    name = admin.day(clock.now() - 9 * DAY)
    async with reader(admin):
        pruning = asyncio.create_task(engine.prune(10))
        await has_left(admin, name)
        job = await soon(finished(engine, "failed"))
        assert await soon(stored(engine, job.id)) == job
        assert (await soon(changes.retry(engine, [job.id])))[0].changed
        assert admin.run("SELECT penstock.make_day(%s)", clock.now() + 100 * DAY) == [(True,)]
    await pruning
    await engine.prune(10)
    assert name not in admin.tables()


@pytest.mark.usefixtures("small_is_big")
async def test_what_was_interrupted_is_finished(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    """A leader is killed in the middle of it."""
    admin.end_many(clock.now() - 9 * DAY)
    name = admin.day(clock.now() - 9 * DAY)
    await interrupt(admin, name)
    assert (await engine.prune(10)).jobs == 3000
    assert name not in admin.tables()


@pytest.mark.usefixtures("small_is_big")
async def test_a_clock_that_was_set_back_into_a_day_that_leaves_gets_a_new_one(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    """Jobs end in that day as in any other, though it was never brought to its end."""
    admin.end_many(clock.now() - 9 * DAY)
    name = admin.day(clock.now() - 9 * DAY)
    await interrupt(admin, name)
    clock.jump(-9 * DAY)
    job = await finished(engine, "succeeded")
    assert job.finished_at == clock.now()
    assert f"{name}_2" in admin.tables()


@pytest.mark.usefixtures("small_is_big")
async def test_a_day_that_another_leader_brings_to_its_end_meanwhile_is_made_anew(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    admin.run("SELECT penstock.make_day(%s)", clock.now() - 10 * DAY + KEEP)
    admin.end_many(clock.now() - 9 * DAY)
    name = admin.day(clock.now() - 9 * DAY)
    await interrupt(admin, name)
    clock.jump(-9 * DAY)
    async with await psycopg.AsyncConnection.connect(admin.url) as other:
        await other.execute(
            f"ALTER TABLE penstock.history DETACH PARTITION penstock.{name} FINALIZE".encode()
        )
        await other.execute(f"DROP TABLE penstock.{name}".encode())
        making = asyncio.create_task(engine.prune(10))
        await waits_for_a_lock(admin)
    await making
    assert admin.day(clock.now()) == name


async def waits_for_a_lock(admin: Admin) -> None:
    """Wait until somebody stands behind a locked table."""
    who = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'penstock.history'::regclass"
    async with asyncio.timeout(60):
        while True:
            if admin.run(who):
                return
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("small_is_big")
async def test_a_table_that_was_not_dropped_is_dropped_later(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    admin.end_many(clock.now() - 9 * DAY)
    name = admin.day(clock.now() - 9 * DAY)
    admin.run(f"COMMENT ON TABLE penstock.{name} IS 'penstock: pruned'")
    admin.run(f"ALTER TABLE penstock.history DETACH PARTITION penstock.{name}")
    assert admin.days()[name] == "out"
    assert (await engine.prune(10)).jobs == 3000
    assert name not in admin.tables()


async def test_a_day_that_a_person_took_out_stays_theirs(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    """Also when a job ends on that day afterwards."""
    admin.end_many(clock.now(), many=3)
    name = admin.day(clock.now())
    admin.run(f"ALTER TABLE penstock.history DETACH PARTITION penstock.{name}")
    await finished(engine, "succeeded")
    assert admin.days()[f"{name}_2"] == "in"
    clock.advance(30 * DAY)
    assert (await engine.prune(10)).jobs == 1
    await engine.prune(10)
    assert admin.run(f"SELECT count(*) FROM penstock.{name}") == [(3,)]
    assert f"{name}_2" not in admin.tables()


@pytest.mark.usefixtures("small_is_big")
async def test_two_leaders_at_once_do_no_harm(admin: Admin, clock: FakeClock) -> None:
    async with opened(admin.url, clock) as one, opened(admin.url, clock) as two:
        for number in range(9, 13):
            admin.end_many(clock.now() - number * DAY)
        gone = 0
        for _ in range(3):
            pruned = await asyncio.gather(*(engine.prune(10) for engine in (one, two)))
            gone += sum(each.jobs for each in pruned)
        assert gone == 4 * 3000
        assert set(admin.days().values()) == {"in"}
        assert admin.run("SELECT count(*) FROM penstock.history") == [(0,)]


async def test_a_day_that_another_has_just_dropped_is_not_listed(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    """Nobody can say any more which day it was; and it was not all of them."""
    await engine.prune(10)
    kept, name = admin.day(clock.now()), admin.day(clock.now() + DAY)
    async with await psycopg.AsyncConnection.connect(admin.url) as other:
        await other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await other.execute("SELECT 1")
        admin.run(f"DROP TABLE penstock.{name}")
        days = await (await other.execute("SELECT * FROM penstock.days()")).fetchall()
    names = [day.name for day in to_days(days)]
    assert kept in names
    assert name not in names


@pytest.mark.usefixtures("small_is_big")
async def test_behind_a_pooler_a_day_is_dropped_at_once(admin: Admin, clock: FakeClock) -> None:
    """Unless somebody reads: then another time."""
    async with opened(admin.url, clock, listens=False) as engine:
        admin.end_many(clock.now() - 9 * DAY)
        name = admin.day(clock.now() - 9 * DAY)
        async with reader(admin):
            assert (await engine.prune(10)).jobs == 0
            assert admin.days()[name] == "in"
        assert (await engine.prune(10)).jobs == 3000
        assert name not in admin.tables()


@pytest.mark.usefixtures("small_is_big")
async def test_a_role_that_owns_nothing_deletes_row_by_row(
    engine: PostgresEngine, admin: Admin
) -> None:
    role = "prunes_only"
    ((at,),) = admin.run("SELECT penstock.now() - %s", 9 * DAY)
    admin.end_many(at, many=3000)
    admin.run(f"CREATE ROLE {role} LOGIN; SELECT penstock.allow('{role}', 'work')")
    admin.run(f"REVOKE ALL ON penstock.{admin.day(at)} FROM {role}")
    try:
        async with opened(admin.url.replace("postgres@", f"{role}@"), None) as other:
            assert [(await other.prune(2000)).jobs for _ in range(3)] == [2000, 1000, 0]
        assert admin.day(at)
    finally:
        admin.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_day_is_not_dropped_while_a_person_sends_a_job_of_it_back(
    engine: PostgresEngine, admin: Admin, clock: FakeClock
) -> None:
    job = await finished(engine, "failed", keep_failed=KEEP)
    name = admin.day(clock.now())
    clock.advance(30 * DAY)
    async with await psycopg.AsyncConnection.connect(admin.url) as person:
        await person.execute("SELECT FROM penstock.history WHERE id = %s FOR UPDATE", (job.id,))
        assert (await engine.prune(10)).jobs == 0
        assert admin.days()[name] == "in"


@pytest.mark.usefixtures("small_is_big", "hasty")
async def test_a_job_that_leaves_with_its_day_cannot_be_sent_back(
    engine: PostgresEngine, admin: Admin, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it said to be: its day goes between the question and the answer."""
    job = await finished(engine, "failed", keep_failed=KEEP, unique="only one")
    admin.end_many(clock.now())
    clock.advance(30 * DAY)
    ask = Transaction.ask

    async def late(self: Transaction, name: str, values: Values = ()) -> list[Row]:
        if name == "ticket":
            assert (await engine.prune(10)).jobs == 0
        return await ask(self, name, values)

    monkeypatch.setattr(Transaction, "ask", late)
    assert await changes.retry(engine, [job.id]) == [Control(job.id, False, None)]
    assert await engine.get([job.id]) == [None]
    await put(engine, unique="only one")
