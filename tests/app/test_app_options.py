"""Options of one enqueue: what they do, how they compose, and what is refused, by its message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock import Penstock
from penstock.errors import BadDuration, BadOption, BadPriority
from penstock.testing.clock import FakeClock

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


def at(instant: float) -> datetime:
    return datetime.fromtimestamp(instant, UTC)


@pytest.fixture
def app():
    with Penstock("memory://", clock=FakeClock(1000.0), priorities={"urgent": -5}) as app:
        yield app


@pytest.fixture
def send(app):
    @app.task(name="send", queue="mail")
    def send(to: str, body: str = "hello") -> str:
        return to

    return send


def test_every_option_is_stored_with_the_job(send):
    job = (
        send.using(
            queue="night",
            priority="high",
            run_at=NOON,
            expires_in="1d",
            key="tenant-7",
            id="cmd_abc123",
            unique="welcome:7",
            unique_until="start",
            unique_for="1h",
            tags=["a", "b"],
            name="Greeting",
            correlation_id="request-9",
        )
        .enqueue("a@b.c")
        .status()
    )
    assert (job.queue, job.priority, job.run_at) == ("night", 0, NOON)
    assert (job.expires_at, job.key, job.id) == (at(1000.0 + 86400), "tenant-7", "cmd_abc123")
    assert (job.unique, job.unique_until) == ("welcome:7", "start")
    assert (job.tags, job.name, job.correlation_id) == (("a", "b"), "Greeting", "request-9")


def test_a_delay_counts_from_the_moment_of_the_store(send):
    assert send.using(delay="5m").enqueue("a").status().run_at == at(1300.0)
    assert send.using(delay=timedelta(seconds=7)).enqueue("a").status().run_at == at(1007.0)
    assert send.using(run_at=2500).enqueue("a").status().run_at == at(2500.0)


def test_options_are_declared_once_and_changed_per_call(app):
    @app.task(name="report", queue="slow", priority="low", delay=60, tags=("x",), key="k")
    def report() -> None: ...

    job = report.enqueue().status()
    assert (job.queue, job.priority, job.run_at) == ("slow", 10, at(1060))
    assert (job.tags, job.key) == (("x",), "k")
    job = report.using(priority=3, delay=0).enqueue().status()
    assert (job.queue, job.priority, job.run_at) == ("slow", 3, None)


def test_a_job_runs_at_most_once_if_its_task_or_its_caller_says_so(app, send):
    @app.task(name="pay", at_most_once=True)
    def pay() -> None: ...

    assert pay.enqueue().status().at_most_once
    assert not send.enqueue("a").status().at_most_once
    assert send.using(at_most_once=True).enqueue("a").status().at_most_once
    assert app.enqueue("elsewhere", {}, at_most_once=True).status().at_most_once


def test_options_compose_and_never_change_what_they_came_from(send):
    urgent = send.using(priority="urgent")
    later = urgent.using(delay=10, key="k")
    assert later.enqueue("a").status().priority == -5
    assert later.enqueue("a").status().key == "k"
    assert urgent.enqueue("a").status().key is None
    assert send.enqueue("a").status().priority == 5


def test_the_later_of_delay_and_run_at_counts(send):
    assert send.using(delay=10).using(run_at=NOON).enqueue("a").status().run_at == NOON
    assert send.using(run_at=NOON).using(delay=10).enqueue("a").status().run_at == at(1010.0)
    assert send.using(delay=lambda *_: 5).using(delay=1).enqueue("a").status().run_at == at(1001.0)


def test_none_means_not_given(send):
    job = send.using(priority="high", delay=None).using(priority=None).enqueue("a").status()
    assert (job.priority, job.run_at) == (0, None)


# --- hooks --------------------------------------------------------------------------------------


def test_a_function_of_the_arguments_decides_an_option(app):
    @app.task(
        name="pay",
        unique=lambda account, cents: f"pay:{account}",
        key=lambda account, cents: account,
        priority=lambda account, cents: "high" if cents > 1000 else "low",
        delay=lambda account, cents: "1h" if account == "stranger" else None,
    )
    def pay(account: str, cents: int = 5) -> None: ...

    job = pay.enqueue("stranger", cents=5000).status()
    assert (job.unique, job.key, job.priority) == ("pay:stranger", "stranger", 0)
    assert job.run_at == at(1000.0 + 3600)
    job = pay.enqueue("friend").status()
    assert (job.unique, job.priority, job.run_at) == ("pay:friend", 10, None)


def test_a_function_sees_the_arguments_as_the_task_will(send):
    seen = []
    send.using(key=lambda *args, **kwargs: seen.append((args, kwargs))).enqueue(to="a")
    assert seen == [(("a", "hello"), {})]


def test_a_function_that_says_none_leaves_the_default(send):
    job = send.using(priority=lambda *_: None, unique=lambda *_: None).enqueue("a").status()
    assert (job.priority, job.unique) == (5, None)


def test_ids_of_many_jobs_come_from_their_arguments(send):
    handles = send.using(id=lambda to, body: f"mail-{to}").enqueue_many([("a",), ("b",), ("a",)])
    assert [handle.id for handle in handles] == ["mail-a", "mail-b", "mail-a"]
    assert [handle.created for handle in handles] == [True, True, False]


def test_what_a_function_says_is_checked_too(send):
    with pytest.raises(BadPriority, match="unknown priority 'soonish'; use one of high"):
        send.using(priority=lambda *_: "soonish").enqueue("a")
    with pytest.raises(BadOption, match="key=7: give text, not int"):
        send.using(key=lambda *_: 7).enqueue("a")


def test_what_a_function_raises_reaches_the_caller(send):
    with pytest.raises(ZeroDivisionError):
        send.using(delay=lambda *_: 1 / 0).enqueue("a")


def test_a_function_needs_a_task_that_is_declared_here(app):
    with pytest.raises(BadOption) as caught:
        app.enqueue("elsewhere", {}, key=_key)
    assert str(caught.value) == (
        f"key={_key!r}: a function needs a task that is declared here, and 'elsewhere' is not"
    )


# --- refusals -----------------------------------------------------------------------------------

NAIVE = datetime(2031, 5, 1, 12)
PAST_9999 = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"prio": 1},
            BadOption,
            "prio=1: no such option; there are queue, priority, delay, run_at, expires_in, key, "
            "id, unique, unique_scope, unique_until, unique_for, at_most_once, tags, name, "
            "correlation_id, keep, keep_failed, meta, connection",
        ),
        (
            {"priority": "critical"},
            BadPriority,
            "unknown priority 'critical'; use one of high, normal, low, urgent, or a whole "
            "number from -1000 to 1000 (lower runs first)",
        ),
        ({"priority": 1001}, BadPriority, "unknown priority 1001; use one of high"),
        ({"priority": True}, BadPriority, "unknown priority True; use one of high"),
        ({"delay": -1}, BadDuration, "-1 is not a duration: delay is negative; give seconds or"),
        ({"delay": "a while"}, BadDuration, "'a while' is not a duration: delay has no number"),
        (
            {"expires_in": 0},
            BadDuration,
            "0 is not a duration: expires_in is 0: the job could never run; give seconds",
        ),
        (
            {"run_at": NAIVE},
            BadOption,
            f"run_at={NAIVE!r}: it has no time zone; give one, such as datetime.now(timezone.utc)",
        ),
        (
            {"run_at": "noon"},
            BadOption,
            "run_at='noon': give an aware datetime, or seconds since 1970",
        ),
        (
            {"run_at": 1_750_000_000_000},
            BadOption,
            "run_at=1750000000000: no instant from 1970 to 9999; give seconds (not "
            "milliseconds) since 1970",
        ),
        ({"run_at": float("nan")}, BadOption, "run_at=nan: no instant from 1970 to 9999"),
        ({"run_at": 10**400}, BadOption, f"run_at={10**400}: no instant from 1970 to 9999"),
        ({"run_at": PAST_9999}, BadOption, f"run_at={PAST_9999!r}: no instant from 1970 to 9999"),
        (
            {"run_at": 5, "delay": 5},
            BadOption,
            "run_at=5: delay is given too; give one of the two",
        ),
        ({"id": ""}, BadOption, "id='': it is empty; give at least one character"),
        ({"queue": ""}, BadOption, "queue='': it is empty; give at least one character"),
        (
            {"key": "a\0b"},
            BadOption,
            "key='a\\x00b': it contains the character NUL, which no store can keep",
        ),
        (
            {"unique": "caf\udce9"},
            BadOption,
            "unique='caf\\udce9': it contains half a character (a lone surrogate)",
        ),
        (
            {"queue": "q" * 256},
            BadOption,
            "queue='qqqqqqqqqqqqqqqqqqqq...qqqqqqqqqq': 256 characters are too many; "
            "give up to 255",
        ),
        ({"name": 7}, BadOption, "name=7: give text, not int"),
        ({"tags": "mail"}, BadOption, "tags='mail': give a list of words"),
        ({"tags": 5}, BadOption, "tags=5: give a word or a list of words"),
        ({"tags": [1]}, BadOption, "tags=1: give text, not int"),
        (
            {"unique": "u", "unique_until": "tomorrow"},
            BadOption,
            "unique_until='tomorrow': give 'done' or 'start'",
        ),
        (
            {"unique": "u", "unique_scope": "queue"},
            BadOption,
            "unique_scope='queue': give 'task' or 'app'",
        ),
        ({"at_most_once": 1}, BadOption, "at_most_once=1: give True or False"),
        ({"unique_for": 5}, BadOption, "unique_for=5: it says nothing without unique=..."),
    ],
)
def test_an_option_that_does_not_fit_is_refused_where_it_is_given(send, options, kind, message):
    with pytest.raises(kind) as caught:
        send.using(**options)
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, ValueError)


def test_the_longest_name_that_fits_is_stored(send):
    assert send.using(queue="ü" * 255).enqueue("a").status().queue == "ü" * 255


def _key(*_: object) -> str:
    return "k"
