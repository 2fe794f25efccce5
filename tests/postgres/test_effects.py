"""What a transactional task writes is there exactly if its job has succeeded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from penstock import INJECTED, Cancel, Context, Depends, Job, Penstock, Retry, Snooze, current
from penstock.core.job import State

TABLE = "CREATE TABLE payment (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
INSERT = "INSERT INTO payment VALUES (%s)"
NAMED = text("INSERT INTO payment VALUES (:number)")


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payment"
    number: Mapped[int] = mapped_column(primary_key=True)


class OwnCursor(psycopg.ServerCursor[Any]):
    pass


class Bank:
    """An app, and what its tasks have written as others see it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = Penstock(url)
        self.db = psycopg.connect(url.partition("?")[0], autocommit=True)
        self.db.execute(TABLE)

    def task(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        return self.app.task(transactional=True, **{"retries": 0, **options})

    def run(self, task: Any, *args: Any) -> Job[Any]:
        """Run one job of a task as often as it is due; say what became of it."""
        return self.run_all(task.enqueue(*args))[0]

    def run_all(self, *handles: Any) -> list[Job[Any]]:
        self.app.run_worker(until_empty=True, leads=False)
        return [handle.status() for handle in handles]

    @property
    def payments(self) -> list[int]:
        return [number for (number,) in self.db.execute("SELECT * FROM payment ORDER BY 1")]

    def close(self) -> None:
        self.app.close()
        self.db.close()


@pytest.fixture
def bank(postgres_url: str) -> Iterator[Bank]:
    bank = Bank(postgres_url)
    yield bank
    bank.close()


def all_kinds(bank: Bank, end: Callable[[], Any]) -> list[Any]:
    """A task of each kind that pays and then does what ``end`` does."""

    @bank.task(name="sync")
    def sync(number: int, db: psycopg.Connection = INJECTED) -> Any:
        db.execute(INSERT, (number,))
        return end()

    @bank.task(name="async")
    async def awaited(number: int, db: psycopg.AsyncConnection[Any] = INJECTED) -> Any:
        await db.execute(INSERT, (number,))
        return end()

    @bank.task(name="session")
    def session(number: int, db: Session = INJECTED) -> Any:
        db.execute(NAMED, {"number": number})
        return end()

    @bank.task(name="async session")
    async def async_session(number: int, db: AsyncSession = INJECTED) -> Any:
        await db.execute(NAMED, {"number": number})
        return end()

    return [sync, awaited, session, async_session]


def test_effects_and_the_end_of_the_job_are_committed_together(bank: Bank) -> None:
    tasks = all_kinds(bank, lambda: "paid")
    # Twice: the second time on connections that were kept.
    handles = [task.enqueue(number) for number, task in enumerate(tasks * 2)]

    jobs = bank.run_all(*handles)

    assert [job.state for job in jobs] == [State.SUCCEEDED] * 8
    assert {job.result for job in jobs} == {"paid"}
    assert bank.payments == list(range(8))


def test_the_last_progress_and_the_callback_are_committed_with_the_effects(bank: Bank) -> None:
    told: list[Any] = []

    @bank.app.task(name="told", queue="receipts")
    def tell(job_id: str, result: int) -> None:
        told.append((job_id, result))

    @bank.task(name="sync", on_success=tell)
    def sync(number: int, ctx: Context = INJECTED) -> int:
        ctx.connection.execute(INSERT, (number,))
        ctx.progress(1.0, "paid")
        return number

    @bank.task(name="async", on_success="told", timeout="20s")
    async def awaited(number: int, ctx: Context = INJECTED) -> int:
        await ctx.connection.execute(INSERT, (number,))
        ctx.progress(0.9, "nul \0")
        return number

    one, two = bank.run_all(sync.enqueue(1), awaited.enqueue(2))

    assert [job.state for job in (one, two)] == [State.SUCCEEDED] * 2
    assert (one.progress, one.note) == (1.0, "paid")
    assert (two.progress, two.note) == (0.9, "nul \\x00")
    assert sorted(told) == sorted([(one.id, 1), (two.id, 2)])
    assert bank.payments == [1, 2]


def test_a_callback_of_what_the_commit_refuses_is_not_stored(bank: Bank) -> None:
    @bank.app.task(name="told")
    def tell() -> None: ...

    @bank.task(name="pay", on_success=tell)
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        for _ in range(2):
            db.execute(INSERT, (number,))  # refused at the end

    job = bank.run(pay, 1)

    assert job.state is State.FAILED
    assert bank.payments == []
    assert [found.task for found in bank.app.find().jobs] == ["pay"]


def test_a_failure_is_followed_by_its_callback_and_nothing_of_it_is_paid(bank: Bank) -> None:
    told: list[Any] = []

    @bank.app.task(name="told")
    def tell(error: str) -> None:
        told.append(error)

    @bank.task(name="pay", on_failure=tell)
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        db.execute(INSERT, (number,))
        fail()

    assert bank.run(pay, 1).state is State.FAILED
    assert (told, bank.payments) == (["RuntimeError: no"], [])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_checkpoint_beside_effects_that_may_be_undone_is_refused(
    bank: Bank, is_async: bool
) -> None:
    """What the next attempt went on from would be gone."""

    @bank.task(name="sync")
    def sync(ctx: Context = INJECTED) -> None:
        ctx.checkpoint(7)

    @bank.task(name="async")
    async def awaited(ctx: Context = INJECTED) -> None:
        ctx.checkpoint(7)

    job = bank.run(awaited if is_async else sync)

    assert job.state is State.FAILED
    assert job.reason is not None
    assert job.reason.startswith("penstock.errors.NoCheckpoint: ")
    assert job.checkpoint is None


def fail() -> None:
    raise RuntimeError("no")


def cancel() -> None:
    raise Cancel("no")


def snooze() -> None:
    raise Snooze("1h")


ENDS: list[tuple[Callable[[], Any], State]] = [
    (fail, State.FAILED),
    (cancel, State.CANCELLED),
    (snooze, State.SCHEDULED),
    (lambda: Retry("1h"), State.FAILED),
    (lambda: Cancel("no"), State.CANCELLED),
    (object, State.FAILED),
]


@pytest.mark.parametrize(
    ("end", "state"),
    ENDS,
    ids=["raises", "cancels", "snoozes", "returns Retry", "returns Cancel", "no result"],
)
def test_nothing_stays_of_an_attempt_that_does_not_succeed(
    bank: Bank, end: Callable[[], Any], state: State
) -> None:
    tasks = all_kinds(bank, end)

    jobs = bank.run_all(*(task.enqueue(number) for number, task in enumerate(tasks)))

    assert [job.state for job in jobs] == [state] * 4
    assert bank.payments == []


def test_an_attempt_that_failed_is_tried_again_and_leaves_one_effect(bank: Bank) -> None:
    @bank.task(retries=[0.0, 0.0])
    def pay(number: int, db: psycopg.Connection = INJECTED, ctx: Context = INJECTED) -> int:
        db.execute(INSERT, (number,))
        if ctx.failures < 2:
            raise RuntimeError("not yet")
        return ctx.attempt

    job = bank.run(pay, 7)

    assert (job.state, job.result, job.failures) == (State.SUCCEEDED, 3, 2)
    assert bank.payments == [7]


# --- a handler that ends its transaction --------------------------------------------------------


def commit(db: psycopg.Connection) -> None:
    db.commit()


def commit_and_go_on(db: psycopg.Connection) -> None:
    db.commit()
    db.execute(INSERT, (-1,))


def commit_in_sql(db: psycopg.Connection) -> None:
    db.execute("COMMIT")
    db.execute("BEGIN")


def leave_a_block(db: psycopg.Connection) -> None:
    with db:
        pass


@pytest.mark.parametrize("end", [commit, commit_and_go_on, commit_in_sql, leave_a_block])
def test_a_handler_that_commits_by_itself_is_found_out(
    bank: Bank, end: Callable[[psycopg.Connection], None]
) -> None:
    """It is not tried again: what it commits would be there twice."""

    @bank.task(name="pay", retries=5)
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        db.execute(INSERT, (number,))
        end(db)

    job = bank.run(pay, 7)

    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert job.errors[-1].message == (
        "pay has ended its transaction by itself (commit, rollback or close): its job cannot end "
        "in it any more, and what was committed stays; leave the end to the worker, and use "
        "`with connection.transaction():` for a part that may fail"
    )
    assert bank.payments == [7]


def test_a_handler_that_rolls_back_and_returns_is_found_out(bank: Bank) -> None:
    @bank.task()
    async def pay(number: int, db: psycopg.AsyncConnection = INJECTED) -> None:
        await db.execute(INSERT, (number,))
        await db.rollback()

    job = bank.run(pay, 7)

    assert job.state is State.FAILED
    assert "TransactionEnded" in job.errors[-1].kind
    assert bank.payments == []


def test_the_commit_of_a_session_only_flushes(bank: Bank) -> None:
    """Code that is written for other places can be called: the job's end still decides."""

    @bank.task()
    def pay(number: int, db: Session = INJECTED) -> None:
        db.execute(NAMED, {"number": number})
        db.commit()
        if number < 0:
            raise RuntimeError("after all")

    good, bad = bank.run_all(pay.enqueue(7), pay.enqueue(-7))

    assert (good.state, bad.state) == (State.SUCCEEDED, State.FAILED)
    assert bank.payments == [7]


def test_the_rollback_of_a_session_is_found_out(bank: Bank) -> None:
    @bank.task()
    def pay(number: int, db: Session = INJECTED) -> None:
        db.execute(NAMED, {"number": number})
        db.rollback()

    job = bank.run(pay, 7)

    assert "TransactionEnded" in job.errors[-1].kind
    assert bank.payments == []


def test_what_a_session_does_after_its_rollback_is_not_committed(bank: Bank) -> None:
    """It has begun a transaction of its own, which the job does not end in."""

    @bank.task(name="sync")
    def pay(number: int, db: Session = INJECTED) -> None:
        db.execute(NAMED, {"number": number})
        db.rollback()
        db.execute(NAMED, {"number": -number})

    @bank.task(name="async")
    async def apay(number: int, db: AsyncSession = INJECTED) -> None:
        await db.execute(NAMED, {"number": number})
        await db.rollback()
        await db.execute(NAMED, {"number": -number})

    for job in bank.run_all(pay.enqueue(7), apay.enqueue(8)):
        assert job.state is State.FAILED
        assert "TransactionEnded" in job.errors[-1].kind
    assert bank.payments == []


def test_what_a_session_has_not_sent_yet_is_committed_too(bank: Bank) -> None:
    @bank.task()
    def pay(number: int, db: Session = INJECTED) -> None:
        db.add(Payment(number=number))

    assert bank.run(pay, 7).state is State.SUCCEEDED
    assert bank.payments == [7]


def test_an_error_that_is_swallowed_is_a_failure_that_says_so(bank: Bank) -> None:
    @bank.task(name="pay")
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        db.execute(INSERT, (number,))
        try:
            db.execute("SELECT 1 / 0")
        except psycopg.Error:
            pass

    job = bank.run(pay, 7)

    assert job.state is State.FAILED
    assert job.errors[-1].message == (
        "a statement of pay failed and the error was swallowed: PostgreSQL commits nothing of such "
        "a transaction; let the error pass, or put what may fail into "
        "`with connection.transaction():`"
    )
    assert bank.payments == []


def test_a_part_that_may_fail_has_a_savepoint(bank: Bank) -> None:
    @bank.task()
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        db.execute(INSERT, (number,))
        try:
            with db.transaction():
                db.execute(INSERT, (-number,))
                db.execute("SELECT 1 / 0")
        except psycopg.Error:
            pass

    assert bank.run(pay, 7).state is State.SUCCEEDED
    assert bank.payments == [7]


def test_what_the_commit_refuses_is_a_failure(bank: Bank) -> None:
    """The number is there already, and that is looked at when the transaction ends."""

    @bank.task()
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        db.execute(INSERT, (number,))

    first, second = bank.run(pay, 7), bank.run(pay, 7)

    assert (first.state, second.state) == (State.SUCCEEDED, State.FAILED)
    assert "UniqueViolation" in second.errors[-1].kind
    assert bank.payments == [7]


# --- where the connection comes from ------------------------------------------------------------


def test_all_that_serves_an_attempt_has_its_one_connection(bank: Bank) -> None:
    seen: list[Any] = []

    def ledger(db: psycopg.Connection) -> Iterator[Callable[[int], None]]:
        seen.append(db)
        yield lambda number: seen.append(db.execute(INSERT, (number,)).connection)
        db.execute(INSERT, (-1,))

    @bank.task()
    def pay(
        number: int,
        write: Callable[[int], None] = Depends(ledger),
        db: psycopg.Connection = INJECTED,
        ctx: Context = INJECTED,
    ) -> None:
        write(number)
        seen.extend((db, ctx.connection, current().connection))

    assert bank.run(pay, 7).state is State.SUCCEEDED
    assert len(seen) == 5
    assert len(set(map(id, seen))) == 1
    assert bank.payments == [-1, 7]


def test_a_task_need_not_have_a_parameter_for_it(bank: Bank) -> None:
    @bank.task()
    def pay(number: int) -> None:
        current().connection.execute(INSERT, (number,))

    assert bank.run(pay, 7).state is State.SUCCEEDED
    assert bank.payments == [7]


def test_a_task_that_is_not_transactional_has_none(bank: Bank) -> None:
    @bank.app.task(name="pay", retries=0)
    def pay() -> None:
        current().connection.execute("SELECT 1")

    job = bank.run(pay)

    assert job.errors[-1].message == (
        "pay has no transaction: declare it with @app.task(transactional=True)"
    )


def test_what_surrounds_the_handler_decides_too(bank: Bank) -> None:
    """A middleware that raises after the handler has returned: nothing is committed."""

    @bank.app.middleware
    def veto(ctx: Context) -> Iterator[None]:
        yield
        raise RuntimeError("no")

    @bank.task()
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        db.execute(INSERT, (number,))

    assert bank.run(pay, 7).state is State.FAILED
    assert bank.payments == []


def test_nothing_of_a_session_is_left_for_the_next_attempt(bank: Bank) -> None:
    @bank.task()
    def pay(number: int, db: psycopg.Connection[Any] = INJECTED) -> Any:
        (path,) = db.execute("SHOW search_path").fetchone() or ("",)
        found = db.execute(
            "SELECT pg_backend_pid(), to_regclass('mess') IS NOT NULL,"
            " (SELECT count(*) FROM pg_locks"
            " WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
        ).fetchone()
        db.execute("CREATE TEMP TABLE mess ()")
        db.execute("SET search_path = pg_catalog")
        db.execute("SELECT pg_catalog.pg_advisory_lock(1)")
        db.row_factory = dict_row
        return [path, *(found or ())]

    first, second = (bank.app.job(pay.enqueue(number).id) for number in range(2))
    bank.app.run_worker(until_empty=True, leads=False, threads=1)

    ours, *rest = first.result(timeout=0)
    assert rest[1:] == [False, 0]
    assert second.result(timeout=0) == [ours, *rest]


def test_names_that_an_attempt_has_given_are_free_for_the_next(bank: Bank) -> None:
    @bank.task()
    def pay(number: int, db: psycopg.Connection[Any] = INJECTED) -> Any:
        db.execute("PREPARE ours AS SELECT 1")
        db.execute("DECLARE ours CURSOR WITH HOLD FOR SELECT 1")
        (pid,) = db.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        return pid

    handles = pay.enqueue_many([(number,) for number in range(2)])
    bank.app.run_worker(until_empty=True, leads=False, threads=1)

    first, second = (handle.result(timeout=0) for handle in handles)
    assert first == second


def test_what_an_attempt_decides_about_its_connection_is_its_own(bank: Bank) -> None:
    @bank.task()
    def pay(number: int, db: psycopg.Connection[Any] = INJECTED) -> Any:
        seen = [db.cursor_factory.__name__, db.server_cursor_factory.__name__, db.prepare_threshold]
        db.cursor_factory = psycopg.ClientCursor
        db.server_cursor_factory = OwnCursor
        db.prepare_threshold = 0 if number else None
        db.execute("SELECT 1")
        return seen

    handles = pay.enqueue_many([(number,) for number in range(3)])
    bank.app.run_worker(until_empty=True, leads=False, threads=1)

    fresh = ["Cursor", "ServerCursor", None]
    assert [handle.result(timeout=0) for handle in handles] == [fresh] * 3


def test_a_handler_may_become_somebody_who_must_not_settle(bank: Bank) -> None:
    bank.db.execute("DROP ROLE IF EXISTS penstock_test_clerk")
    bank.db.execute("CREATE ROLE penstock_test_clerk")
    bank.db.execute("GRANT INSERT ON payment TO penstock_test_clerk")

    @bank.task()
    def pay(number: int, db: psycopg.Connection = INJECTED) -> None:
        db.execute("SET LOCAL ROLE penstock_test_clerk")
        db.execute(INSERT, (number,))

    try:
        assert bank.run(pay, 7).state is State.SUCCEEDED
        assert bank.payments == [7]
    finally:
        bank.db.execute("DROP OWNED BY penstock_test_clerk")
        bank.db.execute("DROP ROLE penstock_test_clerk")


# --- limits -------------------------------------------------------------------------------------


def test_no_transaction_stays_open_for_ever(bank: Bank) -> None:
    """What the server was told for shorter stays so."""
    (name,) = bank.db.execute("SELECT current_database()").fetchone() or ("",)
    bank.db.execute(f"ALTER DATABASE {name} SET statement_timeout = '10s'")

    @bank.task()
    def pay(db: psycopg.Connection = INJECTED) -> Any:
        limits = ("statement_timeout", "idle_in_transaction_session_timeout")
        return [db.execute(f"SHOW {limit}").fetchone() for limit in limits]

    handle = pay.enqueue()
    bank.run_all()

    assert pay.spec.timeout == 30
    assert handle.result(timeout=0) == [["10s"], ["35s"]]


def test_async_attempts_wait_for_a_connection(postgres_url: str) -> None:
    bank = Bank(f"{postgres_url}?transactions=2")
    at_once: list[int] = [0, 0]

    @bank.task()
    async def pay(number: int, db: psycopg.AsyncConnection = INJECTED) -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await db.execute(INSERT, (number,))
        await db.execute("SELECT pg_sleep(0.01)")
        at_once[0] -= 1

    jobs = bank.run_all(*pay.enqueue_many([(number,) for number in range(8)]))

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert bank.payments == list(range(8))
    assert at_once[1] == 2
    bank.close()
