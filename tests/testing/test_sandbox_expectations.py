"""What a test says of the jobs that were enqueued, and how it is told that this is not so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

from penstock import Context, Depends, Payload
from penstock.errors import BadOption
from penstock.testing import Sandbox


@pytest.fixture
def send(app):
    @app.task(name="mail.send", queue="mail")
    def send(to: str, body: str = "hi", *copies: str, at: datetime | None = None) -> None: ...

    return send


@pytest.fixture
def other(app):
    @app.task(name="other")
    def other(number: int = 0, db: object = Depends(object)) -> None: ...

    return other


def test_a_job_is_known_by_its_arguments_however_they_were_given(app, send):
    with Sandbox(app) as t:
        send.enqueue("ada", body="hello")
        t.assert_enqueued(send)
        t.assert_enqueued("mail.send")
        t.assert_enqueued(send, to="ada")
        t.assert_enqueued(send, "ada")
        t.assert_enqueued(send, "ada", "hello")
        t.assert_enqueued("mail.send", to="ada", body="hello")
        t.assert_enqueued(send, to=ANY)
        t.assert_not_enqueued(send, to="bob")
        t.assert_not_enqueued(send, "ada", "bye")


def test_defaults_count_as_given(app, send, other):
    with Sandbox(app) as t:
        send.enqueue("ada")
        other.enqueue()
        t.assert_enqueued(send, to="ada", body="hi", at=None)
        t.assert_enqueued(other, number=0)
        assert t.enqueued(other)[0].arguments == {"number": 0}


def test_values_are_compared_as_the_task_gets_them(app, send):
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    with Sandbox(app) as t:
        send.enqueue("ada", "x", "bob", "eve", at=noon)
        (entry,) = t.assert_enqueued(send, at=noon, copies=("bob", "eve"))
        assert entry.arguments["at"] == noon
        t.assert_enqueued(send, copies=["bob", "eve"])


def test_a_job_is_known_by_its_options(app, send):
    with Sandbox(app) as t:
        send.using(
            key="user-7",
            delay="5m",
            priority="high",
            unique="welcome",
            tags=["a"],
            expires_in="1h",
            correlation_id="c1",
        ).enqueue("ada")
        t.assert_enqueued(
            send,
            queue="mail",
            key="user-7",
            delay=300,
            priority="high",
            unique="welcome",
            tags=["a"],
            expires_in="1h",
            correlation_id="c1",
        )
        t.assert_enqueued(send.using(key="user-7", delay="5m"), to="ada")
        t.assert_not_enqueued(send, delay=0)
        t.assert_not_enqueued(send, key=None)
        t.assert_not_enqueued(send.using(key="user-8"))


def test_an_instant_may_be_said_as_such_or_as_a_delay(app, send):
    with Sandbox(app) as t:
        noon = t.now + timedelta(hours=12)
        send.using(run_at=noon).enqueue("ada")
        t.assert_enqueued(send, run_at=noon)
        t.assert_enqueued(send, delay="12h")
        t.assert_not_enqueued(send, run_at=t.now)


def test_an_option_that_is_also_a_parameter_is_said_with_using(app):
    @app.task
    def grant(key: str) -> None: ...

    with Sandbox(app) as t:
        grant.using(key="tenant").enqueue("door")
        t.assert_enqueued(grant, key="door")
        t.assert_not_enqueued(grant, key="tenant")
        t.assert_enqueued(grant.using(key="tenant"), key="door")


def test_what_the_worker_fills_in_is_not_counted_as_an_argument(app):
    @app.task
    def ship(
        ctx: Context, order: int, db: object = Depends(object), *, task: str = "t"
    ) -> None: ...

    with Sandbox(app) as t:
        ship.enqueue(7)
        t.assert_enqueued(ship, 7)
        t.assert_enqueued(ship, task="t")
        assert t.enqueued()[0].arguments == {"order": 7, "task": "t"}
        with pytest.raises(BadOption, match="no such parameter; there are order, task,"):
            t.assert_enqueued(ship, db=1)


def test_jobs_are_counted(app, send):
    with Sandbox(app) as t:
        send.enqueue_many([("ada",), ("bob",), ("ada",)])
        assert len(t.assert_enqueued(send, count=3)) == 3
        t.assert_enqueued(send, to="ada", count=2)
        t.assert_enqueued(send, to="eve", count=0)
        with pytest.raises(AssertionError, match="2 jobs fit where 1 job was expected"):
            t.assert_enqueued(send, to="ada", count=1)


def test_what_was_known_already_was_not_enqueued(app, send):
    with Sandbox(app) as t:
        send.using(unique="welcome").enqueue("ada")
        assert not send.using(unique="welcome").enqueue("bob").created
        send.using(id="one").enqueue("eve")
        send.using(id="one").enqueue("eve")
        assert [entry.arguments["to"] for entry in t.enqueued()] == ["ada", "eve"]


def test_what_has_run_was_enqueued_as_it_was(app):
    @app.task(retries=[60])
    def fails() -> None:
        raise ValueError

    with Sandbox(app) as t:
        fails.using(delay=5).enqueue()
        t.advance(10)
        t.assert_enqueued(fails, delay=5, count=1)
        assert len(t.failures) == 1


def test_jobs_that_no_task_here_knows_are_known_by_their_json(app):
    with Sandbox(app) as t:
        app.enqueue("billing.charge", {"cents": 5}, queue="money")
        t.assert_enqueued("billing.charge", cents=5, queue="money")
        t.assert_not_enqueued("billing.charge", cents=6)
        with pytest.raises(BadOption, match="give them by name"):
            t.assert_enqueued("billing.charge", 5)


def test_a_whole_payload_is_known_by_its_parameter(app):
    @app.task
    def hook(body: Payload) -> None: ...

    with Sandbox(app) as t:
        hook.enqueue({"a": 1})
        t.assert_enqueued(hook, body={"a": 1})


# --- how it is told -----------------------------------------------------------------------------


def test_the_message_shows_what_was_enqueued_instead_nearest_first(app, send, other):
    with Sandbox(app) as t:
        other.enqueue(7)
        send.using(key="k").enqueue("bob")
        send.enqueue("ada", "bye")
        with pytest.raises(AssertionError) as caught:
            t.assert_enqueued(send, to="ada", body="hi", queue="mail")
    assert str(caught.value).splitlines() == [
        "a job was to be enqueued as mail.send(to='ada', body='hi', queue='mail')",
        "what was enqueued, nearest first:",
        "  mail.send(to='bob', body='hi', copies=(), at=None) queue='mail' key='k'",
        "    to is 'bob', not 'ada'",
        "  mail.send(to='ada', body='bye', copies=(), at=None) queue='mail'",
        "    body is 'bye', not 'hi'",
        "  other(number=7)",
        "    its task is other",
    ]


def test_the_message_shows_what_should_not_be_there(app, send):
    with Sandbox(app) as t:
        for _ in range(7):
            send.enqueue("ada")
        with pytest.raises(
            AssertionError, match="no job was to be enqueued as mail.send"
        ) as caught:
            t.assert_not_enqueued(send, to="ada")
    assert "this one is as expected" in str(caught.value)
    assert str(caught.value).endswith("and 2 more")


def test_nothing_at_all_is_said_in_one_line(app, send):
    with Sandbox(app) as t:
        with pytest.raises(AssertionError) as caught:
            t.assert_enqueued(send, to="ada")
    assert str(caught.value) == (
        "a job was to be enqueued as mail.send(to='ada'), but nothing was enqueued at all"
    )


def test_a_slip_of_the_test_is_no_failed_assertion(app, send):
    with Sandbox(app) as t:
        with pytest.raises(BadOption, match="mail.send has no such parameter; there are to, body"):
            t.assert_not_enqueued(send, tp="ada")
        with pytest.raises(BadOption, match="does not know it, but mail.send"):
            t.crash("mail.sned")


# --- pictures -----------------------------------------------------------------------------------


def test_a_snapshot_is_plain_and_the_same_each_time(app):
    @app.task(name="pay", retries=[10])
    def pay(order: int, currency: str = "EUR") -> str:
        if order == 2:
            raise ConnectionError("away")
        return f"paid {order}"

    def story() -> dict[str, object]:
        with Sandbox(app) as t:
            t.advance("1m")
            pay.using(unique="o").enqueue(1)
            pay.using(id="order-2", key="k", priority="low", tags=["x"]).enqueue(2)
            pay.using(delay="1h").enqueue(3)
            t.drain()
            assert len(t.failures) == 1
            return t.snapshot()

    first = story()
    assert first == story()
    assert first == {
        "at": 60.0,
        "counts": {"scheduled": 2, "succeeded": 1},
        "jobs": [
            {
                "id": "job 1",
                "task": "pay",
                "arguments": {"order": 1, "currency": "EUR"},
                "state": "succeeded",
                "queue": "default",
                "enqueued_at": 60.0,
                "unique": "o",
                "attempt": 1,
                "finished_at": 60.0,
                "result": "paid 1",
            },
            {
                "id": "order-2",
                "task": "pay",
                "arguments": {"order": 2, "currency": "EUR"},
                "state": "scheduled",
                "queue": "default",
                "enqueued_at": 60.0,
                "priority": 10,
                "tags": ["x"],
                "key": "k",
                "attempt": 1,
                "failures": 1,
                "run_at": 70.0,
                "reason": "ConnectionError: away",
                "errors": ["ConnectionError: away"],
            },
            {
                "id": "job 3",
                "task": "pay",
                "arguments": {"order": 3, "currency": "EUR"},
                "state": "scheduled",
                "queue": "default",
                "enqueued_at": 60.0,
                "run_at": 3660.0,
            },
        ],
    }


# --- what cannot be meant ------------------------------------------------------------------------


def test_an_argument_given_twice_or_to_nobody_is_refused(app):
    @app.task(name="send")
    def send(to: str) -> None: ...

    with Sandbox(app) as t:
        send.enqueue("ada")
        with pytest.raises(BadOption, match="multiple values for argument 'to'; it is send"):
            t.assert_enqueued(send, "ada", to="bob")
        with pytest.raises(BadOption, match="too many positional arguments"):
            t.assert_not_enqueued(send, "ada", "bob")
        with pytest.raises(BadOption, match="give a task of the app, or its name"):
            t.assert_not_enqueued(print)  # type: ignore[arg-type]


def test_a_parameter_called_count_is_not_taken_for_the_number_of_jobs(app):
    @app.task
    def restock(count: int) -> None: ...

    with Sandbox(app) as t:
        restock.enqueue(7)
        with pytest.raises(BadOption, match="a parameter of that name: give it by place"):
            t.assert_enqueued(restock, count=1)
        t.assert_enqueued(restock, 7)
        with pytest.raises(AssertionError, match="count is 7, not 1"):
            t.assert_enqueued(restock, 1)


def test_when_it_is_due_may_be_said_in_every_way(app):
    @app.task
    def remind() -> None: ...

    with Sandbox(app) as t:
        in_three_days = t.now + timedelta(days=3)
        remind.using(delay="3d").enqueue()
        remind.using(run_at=in_three_days).enqueue()
        for count, ways in ((2, ("3d", timedelta(days=3), 3 * 86400)), (0, (timedelta(days=4),))):
            for delay in ways:
                assert len(t.enqueued(remind, delay=delay)) == count
        t.assert_enqueued(remind, run_at=in_three_days, count=2)
        remind.enqueue()
        t.assert_enqueued(remind, run_at=None, count=1)


def test_a_picture_has_no_order_of_a_set_and_no_address(app):
    @app.task(retries=None)
    def sort(words: set[str], how: object = object()) -> set[str]:
        if len(words) == 1:
            raise ValueError(object())
        return words

    with Sandbox(app) as t:
        sort.enqueue({"d", "b", "a", "c", "f", "e"})
        sort.enqueue({"a"})
        t.drain()
        assert len(t.failures) == 1
        first, second = t.snapshot()["jobs"]
        assert first["arguments"] == {"words": list("abcdef"), "how": "<object object>"}
        assert first["result"] == list("abcdef")
        assert second["errors"] == ["ValueError: <object object>"]
        assert second["reason"] == "ValueError: <object object>"
