"""The job as callers see it, and all jobs that fit, page by page."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import pytest

from penstock import FailedAttempt, Job, Payload, Penstock
from penstock.core import job as stored
from penstock.errors import BadOption
from penstock.job import PAGE, shown
from penstock.testing import Sandbox
from penstock.testing.clock import FakeClock


@dataclasses.dataclass
class Order:
    id: int
    price: Decimal


@pytest.fixture
def ship(app):
    @app.task(name="ship")
    def ship(order: Order, at: datetime | None = None, *rest: int, express: bool = False) -> Order:
        return order

    return ship


ORDER = Order(7, Decimal("1.50"))
NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


@pytest.mark.every_engine
def test_arguments_and_result_come_back_as_the_task_knows_them(app, ship):
    handle = ship.enqueue(ORDER, NOON, 1, 2)
    app.run_worker(until_empty=True)
    for job in (handle.status(), app.job(handle.id).status(), app.find().jobs[0]):
        assert job.arguments == {"order": ORDER, "at": NOON, "rest": (1, 2)}
        assert job.result == ORDER
        assert (job.state, job.attempt) == ("succeeded", 1)


def test_what_the_worker_fills_in_and_what_was_not_given_is_no_argument(app):
    from penstock import INJECTED, Context

    @app.task(name="work")
    def work(ctx: Context = INJECTED, body: str = "x", size: int = 1) -> None: ...

    assert work.enqueue(size=2).status().arguments == {"size": 2}


@pytest.mark.every_engine
def test_a_job_says_for_how_long_it_is_kept(app, ship):
    job = ship.using(keep="1d", keep_failed="90d").enqueue(ORDER).status()
    assert (job.keep, job.keep_failed) == (86400, 90 * 86400)


def test_arguments_of_a_task_that_is_not_declared_here_are_plain_json(app):
    job = app.enqueue("elsewhere", {"at": "2031-05-01", "n": [1]}).status()
    assert job.arguments == {"at": "2031-05-01", "n": [1]}


def test_a_job_that_does_not_fit_its_task_can_be_looked_at_all_the_same(app, ship):
    @app.task(name="old")
    def old(a: int) -> None: ...

    handle = old.enqueue(5)
    with Penstock(str(app.url)) as newer:

        @newer.task(name="old")
        def old_with_another_parameter(b: str) -> None: ...

        assert newer.job(handle.id).status().arguments == {"a": 5}
        assert [job.arguments for job in newer.find().jobs] == [{"a": 5}]


ODD = stored.Job(
    id="x",
    task="t",
    payload=b"\xff",
    result=b"{",
    queue="q",
    priority=5,
    state=stored.State.SUCCEEDED,
    enqueued_at=0.0,
)


def test_what_is_not_json_can_be_looked_at_all_the_same():
    job = shown(ODD, None)
    assert (job.arguments, job.result) == ({}, None)


def test_instants_are_aware_datetimes():
    with Penstock("memory://", clock=FakeClock(1000.25)) as app:
        job = app.enqueue("elsewhere", delay=60, expires_in="1d").status()
        app.cancel(job.id)
        ended = app.job(job.id).status()
    assert job.enqueued_at == datetime(1970, 1, 1, 0, 16, 40, 250_000, tzinfo=UTC)
    assert job.run_at == job.enqueued_at + timedelta(seconds=60)
    assert job.expires_at == job.enqueued_at + timedelta(days=1)
    assert (job.finished_at, ended.finished_at) == (None, job.enqueued_at)


def test_an_instant_that_no_datetime_can_hold_is_the_last_one_there_is():
    far = shown(msgspec.structs.replace(ODD, run_at=float("inf")), None)
    assert far.run_at is not None
    assert far.run_at.year == 9999


def test_an_instant_is_never_told_later_than_it_was(app):
    for _ in range(50):
        job = app.enqueue("elsewhere").status()
        assert app.count(id=job.id, since=job.enqueued_at) == 1


def test_every_attempt_that_failed_is_there(app, hand):
    handle = app.enqueue("elsewhere")
    hand.fails("ValueError: no money", "Traceback: ...")
    job = handle.status()
    assert job.errors == (
        FailedAttempt(
            attempt=1,
            at=datetime(1970, 1, 1, tzinfo=UTC),
            kind="E",
            message="ValueError: no money",
            traceback="Traceback: ...",
        ),
    )
    assert job.reason == "ValueError: no money"


def test_a_job_has_no_internals_and_says_what_it_is(app):
    job = app.enqueue("elsewhere", tags=["a"]).status()
    names = {field.name for field in dataclasses.fields(job)}
    assert not names & {"seq", "revision", "claim", "payload", "started", "order"}
    assert repr(job) == f"<Job {job.id} elsewhere ready>"
    assert isinstance(job, Job)
    assert pickle.loads(pickle.dumps(job)) == job
    assert dataclasses.asdict(job)["tags"] == ("a",)


def test_a_whole_payload_stands_under_its_parameter(app):
    @app.task(name="hook")
    def hook(body: Payload) -> None: ...

    assert hook.enqueue({"a": 1}).status().arguments == {"body": {"a": 1}}


def test_a_sandbox_shows_the_same_jobs(app, ship):
    with Sandbox(app) as t:
        handle = ship.enqueue(ORDER)
        assert t.waiting == t.jobs == [handle.status()]
        (run,) = t.drain()
        assert (run.job.arguments, run.job.result) == ({"order": ORDER}, ORDER)


# --- all of them --------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_all_jobs_that_fit_come_page_by_page(app):
    calls = [("elsewhere", {"n": n}, {"queue": "bulk"}) for n in range(PAGE + 5)]
    app.enqueue_many(calls)
    app.enqueue("elsewhere")
    found = [job.arguments["n"] for job in app.jobs(queue="bulk")]
    assert found == list(reversed(range(PAGE + 5)))

    async def ask() -> list[int]:
        async with app:
            return [job.arguments["n"] async for job in app.jobs(queue="bulk")]

    assert asyncio.run(ask()) == found


def test_jobs_may_be_changed_while_they_are_gone_through(app):
    app.enqueue_many([("elsewhere", {}, {})] * (PAGE + 5))
    for job in app.jobs(state="ready"):
        app.cancel(job.id)
    assert app.count(state="cancelled") == PAGE + 5
    assert list(app.jobs(state="ready")) == []


def test_each_loop_over_jobs_begins_anew(app):
    jobs = app.jobs()
    assert list(jobs) == []
    app.enqueue("elsewhere")
    assert len(list(jobs)) == 1


def test_jobs_are_not_found_by_what_they_do_not_have(app):
    with pytest.raises(BadOption, match="jobs are not found by this; there are id, state"):
        app.jobs(colour="red")  # type: ignore[call-arg]
