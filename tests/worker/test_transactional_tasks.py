"""What becomes of an attempt's transaction, for coroutines and threads alike; here it is a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock import INJECTED, Context, Depends, Penstock, Retry, current
from penstock.core.job import Job, OutcomeKind
from penstock.core.transactions import Effect, Effects, Need, Supply
from penstock.errors import (
    BadArguments,
    BadOption,
    BadTask,
    CommitLost,
    EngineUnavailable,
    NoTransaction,
    TransactionEnded,
)
from penstock.worker.deadlines import Deadlines
from penstock.worker.inflight import Ending
from penstock.worker.log import WorkerLog
from penstock.worker.runner import SHUT_DOWN
from penstock.worker.settings import WorkerSettings
from penstock.worker.status import NoParent
from worker.rig import FakeClock
from worker.test_hooks import Way

URL = "postgresql://nowhere/bank"
"""Of a server that is never asked: declaring opens nothing."""


class Pages(Effect):
    """A transaction that is a list, and says what was done to it."""

    def __init__(self, book: Book) -> None:
        self._book = book

    @property
    def connection(self) -> Any:
        return self._book.said

    @property
    def session(self) -> Any:
        return None

    async def settle(self, result: bytes, **with_it: Any) -> bool:
        self._book.settled_with.append(with_it)
        self._book.said.append(f"settled {result.decode()}")
        if self._book.error is not None:
            raise self._book.error
        return self._book.is_ours

    async def undo(self, *, at_once: bool = False) -> None:
        self._book.said.append("undone at once" if at_once else "undone")


class Book(Effects):
    """Transactions that are lists."""

    def __init__(self, said: list[Any]) -> None:
        self.said = said
        self.settled_with: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.refusal: Exception | None = None
        self.is_ours = True

    def supply(self, kind: type) -> Supply | None:
        return None

    def join(self) -> None:
        self.said.append("joined")

    async def leave(self) -> None:
        self.said.append("left")

    async def begin(self, job: Job, need: Need) -> Effect:
        if self.refusal is not None:
            raise self.refusal
        self.said.append("begun")
        return Pages(self)


class Told(Way):
    """A way with a transaction around it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.book = Book(self.said)
        self.hooks.effects = self.book
        self.need = Need(name == "coroutine", 30.0)

    async def go(self, function: Any, **fields: Any) -> Any:
        return await self.run(function, need=self.need, **fields)


@pytest.fixture(params=["coroutine", "thread"])
def way(request: pytest.FixtureRequest) -> Told:
    return Told(request.param)


def pay() -> int:
    current().connection.append("paid")
    return 7


async def test_the_last_statement_comes_after_all_that_surrounds_the_handler(way: Told) -> None:
    @way.hooks.add_middleware
    def around(ctx: Context) -> Iterator[None]:
        yield
        way.said.append("middleware left")

    def work(db: str = Depends(way.resource("db"))) -> int:
        return pay()

    outcome = await way.go(work)

    assert (outcome.kind, outcome.result, outcome.is_settled) == (OutcomeKind.SUCCEEDED, b"7", True)
    assert way.said == ["begun", "db made", "paid", "db kept", "middleware left", "settled 7"]


@pytest.mark.parametrize("end", [RuntimeError("no"), Retry("1m")])
async def test_what_does_not_succeed_is_undone_before_it_is_told(way: Told, end: Exception) -> None:
    def work() -> None:
        pay()
        raise end

    outcome = await way.go(work)

    assert (outcome.kind, outcome.is_settled) == (OutcomeKind.RETRY, False)
    assert way.said == ["begun", "paid", "undone"]


async def test_progress_is_settled_with_the_transaction(way: Told) -> None:
    def work() -> int:
        current().progress(1.0, "all")
        return pay()

    await way.go(work)

    assert way.book.settled_with == [{"progress": 1.0, "note": "all", "then": ()}]


async def test_a_result_that_cannot_be_stored_is_undone(way: Told) -> None:
    outcome = await way.go(object)
    assert outcome.kind is OutcomeKind.FAILED
    assert way.said == ["begun", "undone"]


async def test_the_outcome_of_a_lost_job_is_dropped(way: Told) -> None:
    way.book.is_ours = False
    assert await way.go(pay) is None


async def test_one_that_is_lost_meanwhile_waits_for_nobody(way: Told) -> None:
    def work() -> int:
        way.end(Ending.LOST)
        return pay()

    assert await way.go(work) is None
    assert way.said == ["begun", "paid", "undone at once"]


async def test_one_that_is_shut_down_is_released_and_undone(way: Told) -> None:
    def work() -> None:
        way.end(Ending.SHUTDOWN)
        raise RuntimeError("stopped")

    outcome = await way.go(work)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.RELEASED, SHUT_DOWN)
    assert way.said == ["begun", "undone at once"]


async def test_one_that_must_end_before_it_begins_never_does(way: Told) -> None:
    begin = way.book.begin

    async def slowly(job: Job, need: Need) -> Effect:
        effect = await begin(job, need)
        way.end(Ending.SHUTDOWN)
        return effect

    way.book.begin = slowly  # type: ignore[method-assign]
    outcome = await way.go(pay)
    assert outcome.kind is OutcomeKind.RELEASED
    assert way.said == ["begun", "undone at once"]


async def test_a_store_that_is_away_counts_against_nobody(way: Told) -> None:
    way.book.refusal = EngineUnavailable("postgresql", "it restarts")

    outcome = await way.go(pay, retries=0)

    assert (outcome.kind, outcome.delay, outcome.error) == (OutcomeKind.SNOOZE, 1.0, None)
    assert outcome.has_begun is False
    assert outcome.reason == (
        "its transaction could not begin: postgresql cannot be reached: it restarts; "
        "nothing is lost, try again"
    )
    assert way.said == []


async def test_what_is_wrong_with_the_store_is_a_failure(way: Told) -> None:
    way.book.refusal = psycopg.ProgrammingError("no")
    outcome = await way.go(pay, retries=0)
    assert outcome.kind is OutcomeKind.FAILED


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.IntegrityError("twice"), OutcomeKind.RETRY),
        (CommitLost("pay", True), OutcomeKind.RETRY),
        (TransactionEnded("pay"), OutcomeKind.FAILED),
    ],
)
async def test_what_cannot_be_committed_is_a_failure(
    way: Told, error: Exception, kind: OutcomeKind
) -> None:
    """Except that a handler which commits by itself is not tried again."""
    way.book.error = error
    outcome = await way.go(pay)
    assert (outcome.kind, outcome.is_settled) == (kind, False)
    assert outcome.error is not None


def test_a_lost_commit_says_what_is_known_of_it() -> None:
    assert str(CommitLost("pay", True)) == (
        "pay lost its connection at the COMMIT; nothing was committed"
    )
    assert str(CommitLost("pay", False)) == (
        "pay lost its connection at the COMMIT; whether it was committed is not known: "
        "look at the job's state"
    )


async def test_time_runs_from_the_moment_there_is_a_transaction(way: Told) -> None:
    seen: list[Any] = []
    begin = way.book.begin

    async def held_up(job: Job, need: Need) -> Effect:
        assert way.attempt is not None
        seen.append((way.attempt.is_held_up, way.attempt.started_at))
        return await begin(job, need)

    def work() -> None:
        assert way.attempt is not None
        seen.append(way.attempt.is_held_up)
        assert way.attempt.started_at is not None

    way.book.begin = held_up  # type: ignore[method-assign]
    await way.go(work)
    assert seen == [(True, None), False]


async def test_who_is_held_up_does_not_run_out_of_time(way: Told, clock: FakeClock) -> None:
    await way.go(pay)
    attempt = way.attempt
    assert attempt is not None
    deadlines = Deadlines(clock, WorkerSettings(), WorkerLog(), NoParent())
    object.__setattr__(attempt.spec, "timeout", 30.0)
    attempt.is_held_up = True
    attempt.started_at = clock.monotonic() - 60
    deadlines._check_timeout(attempt)
    assert attempt.ending is None
    attempt.is_held_up = False
    deadlines._check_timeout(attempt)
    assert attempt.ending is Ending.TIMEOUT


# --- declarations -------------------------------------------------------------------------------


@pytest.fixture
def app() -> Penstock:
    return Penstock(URL)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_a_store_without_transactions_refuses_the_declaration(url: str) -> None:
    with pytest.raises(BadOption) as caught:
        Penstock(url).task(transactional=True)(pay)
    scheme = url.partition(":")[0]
    assert str(caught.value) == (
        f"transactional=True: a {scheme} store has no transaction that a task could write in; "
        "it takes a postgresql:// URL, or leave it out"
    )


def test_what_runs_at_most_once_is_not_transactional(app: Penstock) -> None:
    with pytest.raises(BadOption) as caught:
        app.task(transactional=True, at_most_once=True)(pay)
    assert str(caught.value) == (
        "transactional=True: nothing of a failed attempt stays, so it can be tried again, and a "
        "task that runs at most once never is; leave one of the two out"
    )


def test_it_is_so_or_not(app: Penstock) -> None:
    with pytest.raises(BadOption, match="give True or False"):
        app.task(transactional="yes")(pay)  # type: ignore[call-overload]
    assert app.task(name="plain", transactional=False)(pay).spec.need is None


def test_it_has_half_a_minute_unless_it_says_otherwise(app: Penstock) -> None:
    assert app.task(name="a", transactional=True)(pay).spec.timeout == 30
    assert app.task(name="b", transactional=True, timeout="5m")(pay).spec.timeout == 300


def test_a_connection_that_the_handler_cannot_use_is_refused(app: Penstock) -> None:
    with pytest.raises(BadTask) as sync:

        @app.task(name="sync", transactional=True)
        def sync_pay(db: psycopg.AsyncConnection) -> None: ...

    with pytest.raises(BadTask) as awaited:

        @app.task(name="async", transactional=True)
        async def async_pay(db: psycopg.Connection[Any]) -> None: ...

    assert str(sync.value) == (
        "sync cannot be a task: its parameter 'db' is of no use to it, for it is sync; "
        "annotate it with Connection or Session"
    )
    assert str(awaited.value) == (
        "async cannot be a task: its parameter 'db' is of no use to it, for it is async; "
        "annotate it with AsyncConnection or AsyncSession"
    )


def test_an_annotation_that_cannot_be_read_is_refused(app: Penstock) -> None:
    def pay(db: driver.Connection[Any]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(BadTask) as caught:
        app.task(name="pay", transactional=True)(pay)
    assert str(caught.value) == (
        "pay cannot be a task: its parameter 'db' is annotated driver.Connection[Any], which "
        "cannot be read; import that name outside TYPE_CHECKING"
    )


def test_the_connection_is_no_part_of_the_payload(app: Penstock) -> None:
    @app.task(name="pay", transactional=True)
    def pay(number: int, db: psycopg.Connection = INJECTED) -> Any:
        return number, db

    assert pay.spec.signature.encode((7,), {}) == b'{"number":7}'
    with pytest.raises(BadArguments, match="'db' is filled in by the worker"):
        pay.spec.signature.encode((7,), {"db": 1})
    assert pay(7, db="a direct call passes it") == (7, "a direct call passes it")  # type: ignore[arg-type]
    with pytest.raises(BadArguments, match="in a direct call, pass it: db=..."):
        pay(7)


def test_without_a_transaction_the_context_says_what_to_do() -> None:
    assert str(NoTransaction("pay", "do this")) == "pay has no transaction: do this"
