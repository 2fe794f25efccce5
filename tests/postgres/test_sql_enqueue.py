"""``INSERT INTO penstock.job``: whoever speaks SQL enqueues, and reads what became of it."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conformance.steps import claim_one, draft, running, settle, stored
from penstock import Penstock
from penstock.core.ids import made_at
from penstock.core.job import OutcomeKind, State, Verdict
from penstock.core.unique_keys import Scope
from penstock.engines import changes, reads
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Filter, QueueSettings, Receipt
from servers.emptied import Emptied, emptied

PATIENCE = 60.0
"""Real seconds after which something counts as never coming."""
WEEK = 7 * 86_400.0
CONTRACT = Path(__file__).parent.parent.parent / "docs/reference/sql.md"


@pytest.fixture
async def engine() -> AsyncIterator[PostgresEngine]:
    database = emptied()
    database.empty()
    engine = PostgresEngine(database.url)
    await engine.open()
    yield engine
    await engine.close()
    assert database.left_open() == []


@pytest.fixture
def psql(engine: PostgresEngine) -> Iterator[psycopg.Connection[Any]]:
    """A connection that knows nothing of Penstock, and commits each statement by itself."""
    with psycopg.connect(emptied().url, autocommit=True) as connection:
        yield connection


def row(psql: psycopg.Connection[Any], id: str) -> dict[str, Any]:
    """A job as the view shows it."""
    cursor = psql.execute("SELECT * FROM penstock.job WHERE id = %s", (id,))
    (found,) = cursor.fetchall()
    assert cursor.description is not None
    return dict(zip([column.name for column in cursor.description], found, strict=True))


# --- in -----------------------------------------------------------------------------------------


async def test_a_job_of_three_columns_has_every_default(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    done = psql.execute(
        "INSERT INTO penstock.job (id, task, payload)"
        """ VALUES ('task_1', 'webhook.outbound', '{"to": "https://example.com"}')"""
    )
    assert done.statusmessage == "INSERT 0 1"

    job = await stored(engine, "task_1")
    assert (job.task, job.payload) == ("webhook.outbound", b'{"to": "https://example.com"}')
    assert (job.queue, job.priority, job.state) == ("default", 5, State.READY)
    assert (job.run_at, job.expires_at, job.key, job.unique) == (None, None, None, None)
    assert (job.name, job.tags, job.correlation_id, job.at_most_once) == (None, (), None, False)
    assert job.enqueued_by == "sql:postgres"
    assert job.enqueued_at == pytest.approx(await reads.now(engine), abs=PATIENCE)


async def test_an_id_that_is_not_given_is_made_as_penstock_makes_them(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    rows = psql.execute(
        "INSERT INTO penstock.job (task) SELECT 'work' FROM generate_series(1, 50) RETURNING id"
    ).fetchall()
    found = {id for (id,) in rows}
    assert len(found) == 50
    assert {len(id) for id in found} == {26}
    now = await reads.now(engine)
    assert all(made_at(id) == pytest.approx(now, abs=PATIENCE) for id in found)


async def test_every_option_is_honoured(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    psql.execute(
        "INSERT INTO penstock.job (id, task, payload, queue, priority, key, name, tags,"
        " correlation_id, run_at, expires_at, unique_key, unique_until, unique_for, at_most_once)"
        " VALUES ('all', 'mail.send', '{}', 'mail', -3, 'user-7', 'Welcome', '{a,\"b c\",ä}',"
        " 'order-1', '2040-01-02 03:04:05+00', '2041-01-01 00:00:00+00', 'welcome:7', 'start',"
        " '1 hour', true)"
    )
    job = await stored(engine, "all")
    assert (job.queue, job.priority, job.key, job.name) == ("mail", -3, "user-7", "Welcome")
    assert (job.tags, job.correlation_id) == (("a", "b c", "ä"), "order-1")
    assert (job.state, job.run_at) == (State.SCHEDULED, 2209086245.0)
    assert job.expires_at == 2240611200.0
    assert (job.unique, job.unique_until, job.at_most_once) == ("welcome:7", "start", True)


async def test_durations_count_from_now(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    psql.execute(
        "INSERT INTO penstock.job (id, task, delay, expires_in) VALUES ('d', 't', '5 min', '1 day')"
    )
    job = await stored(engine, "d")
    assert job.state is State.SCHEDULED
    assert (job.run_at or 0) - job.enqueued_at == pytest.approx(300, abs=0.001)
    assert (job.expires_at or 0) - job.enqueued_at == pytest.approx(86_400, abs=0.001)


async def test_an_instant_that_has_passed_is_now(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    psql.execute("INSERT INTO penstock.job (id, task, run_at) VALUES ('p', 't', '2001-01-01')")
    assert (await stored(engine, "p")).state is State.READY


async def test_a_payload_may_be_jsonb_and_come_from_a_trigger(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    """The job exists if the row does."""
    psql.execute(
        """
        CREATE TEMPORARY TABLE invoice (number integer, total numeric);
        CREATE FUNCTION pg_temp.bill() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          INSERT INTO penstock.job (id, task, payload)
          VALUES ('invoice-' || NEW.number, 'invoice.send', to_jsonb(NEW));
          RETURN NULL;
        END $$;
        CREATE TRIGGER bill AFTER INSERT ON invoice FOR EACH ROW EXECUTE FUNCTION pg_temp.bill();
        """
    )
    with psql.transaction(force_rollback=True):
        psql.execute("INSERT INTO invoice VALUES (1, 10)")
    psql.execute("INSERT INTO invoice VALUES (2, 19.90)")
    assert await engine.get(["invoice-1"]) == [None]
    job = await stored(engine, "invoice-2")
    assert json.loads(job.payload) == {"number": 2, "total": 19.90}


async def test_many_rows_are_many_jobs_in_their_order(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    done = psql.execute(
        "INSERT INTO penstock.job (id, task, payload)"
        " SELECT 'many-' || n, 'work', json_build_object('n', n) FROM generate_series(1, 500) AS n"
    )
    assert done.statusmessage == "INSERT 0 500"
    page = await engine.find(Filter(), None, 1000)
    assert [job.id for job in reversed(page.jobs)] == [f"many-{n}" for n in range(1, 501)]


async def test_in_a_fair_queue_it_stands_in_the_line_of_its_key(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    await engine.set_queue("shared", QueueSettings(fair=True))
    rows = psql.execute(
        "INSERT INTO penstock.job (task, queue, key) VALUES ('work', 'shared', 'a')"
        " RETURNING state, hold"
    ).fetchall()
    assert rows == [("ready", None)]
    assert (await claim_one(engine, "shared")).key == "a"


# --- the same again -----------------------------------------------------------------------------


async def test_a_repeated_id_inserts_nothing_whatever_became_of_the_first(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    insert = "INSERT INTO penstock.job (id, task) VALUES ('same', 'work') RETURNING id"
    assert psql.execute(insert).fetchall() == [("same",)]
    assert psql.execute(insert).statusmessage == "INSERT 0 0"
    job = await claim_one(engine)
    assert psql.execute(insert).statusmessage == "INSERT 0 0"
    assert await settle(engine, job, OutcomeKind.SUCCEEDED) is Verdict.DONE
    assert psql.execute(insert).statusmessage == "INSERT 0 0"
    await engine.purge(Filter(), 10)
    assert await engine.get(["same"]) == [None]
    assert psql.execute(insert).statusmessage == "INSERT 0 0"

    later = await reads.now(engine) + WEEK + 1
    psql.execute(f"SET penstock_clock.now = '{later!r}'")
    assert psql.execute(insert).statusmessage == "INSERT 0 1"


async def test_one_statement_may_name_an_id_twice(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    done = psql.execute(
        "INSERT INTO penstock.job (id, task, queue) VALUES ('x', 'a', 'p'), ('x', 'a', 'q')"
    )
    assert done.statusmessage == "INSERT 0 1"
    assert (await stored(engine, "x")).queue == "p"


@pytest.mark.parametrize("fate", ["waits", "is done", "is purged", "is in the same statement"])
async def test_the_id_of_another_task_is_an_error_that_names_both(
    engine: PostgresEngine, psql: psycopg.Connection[Any], fate: str
) -> None:
    values = "('fine', 'mail'), ('order-7', 'mail')"
    if fate == "is in the same statement":
        values = f"('order-7', 'charge'), {values}"
    else:
        psql.execute("INSERT INTO penstock.job (id, task) VALUES ('order-7', 'charge')")
    if fate == "is done":
        await settle(engine, await claim_one(engine), OutcomeKind.SUCCEEDED)
    if fate == "is purged":
        await engine.purge(Filter(), 10)
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        psql.execute(f"INSERT INTO penstock.job (id, task) VALUES {values}".encode())
    assert caught.value.diag.message_primary == (
        "id 'order-7' of a job of task 'mail' is taken by a job of task 'charge'"
    )
    assert (caught.value.diag.message_hint or "").startswith("Begin ids with a word for their task")
    assert await engine.get(["fine"]) == [None]


async def test_a_unique_key_that_is_taken_inserts_nothing(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    insert = "INSERT INTO penstock.job (task, unique_key) VALUES ('work', 'only') RETURNING id"
    ((first,),) = psql.execute(insert).fetchall()
    assert psql.execute(insert).statusmessage == "INSERT 0 0"
    await changes.cancel(engine, [first], "no")
    assert psql.execute(insert).statusmessage == "INSERT 0 1"


async def test_a_unique_key_belongs_to_its_task_unless_it_is_for_all(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    def inserted(task: str, scope: str | None) -> int:
        insert = "INSERT INTO penstock.job (task, unique_key, unique_scope) VALUES (%s, 'k', %s)"
        return psql.execute(insert, (task, scope)).rowcount

    assert [inserted("mail", None), inserted("mail", "task"), inserted("charge", None)] == [1, 0, 1]
    assert [inserted("mail", "app"), inserted("charge", "app"), inserted("ship", None)] == [1, 0, 1]
    shown = psql.execute(
        "SELECT task, unique_key, unique_scope FROM penstock.job ORDER BY task, unique_scope"
    )
    assert shown.fetchall() == [
        ("charge", "k", "task"),
        ("mail", "k", "app"),
        ("mail", "k", "task"),
        ("ship", "k", "task"),
    ]


@pytest.mark.parametrize("scope", ["task", "app"])
async def test_sql_and_python_mean_the_same_key(
    engine: PostgresEngine, psql: psycopg.Connection[Any], scope: Scope
) -> None:
    task, key = "über:1", ":ключ"
    psql.execute(
        "INSERT INTO penstock.job (id, task, unique_key, unique_scope) VALUES ('a', %s, %s, %s)",
        (task, key, scope),
    )
    job = await stored(engine, "a")
    assert (job.unique, job.unique_scope) == (key, scope)
    (receipt,) = await engine.enqueue([draft(task=task, unique=key, unique_scope=scope)])
    assert receipt == Receipt("a", created=False, because="unique")


@pytest.mark.parametrize(("ends", "inserted"), [("COMMIT", 0), ("ROLLBACK", 1)])
def test_an_id_that_an_open_transaction_has_is_waited_for(
    psql: psycopg.Connection[Any], ends: str, inserted: int
) -> None:
    insert = "INSERT INTO penstock.job (id, task) VALUES ('contested', 'work')"
    done: list[str | None] = []

    def second() -> None:
        with psycopg.connect(emptied().url, autocommit=True) as connection:
            done.append(connection.execute(insert).statusmessage)

    with psycopg.connect(emptied().url, autocommit=True) as first:
        first.execute("BEGIN")
        first.execute(insert)
        other = threading.Thread(target=second)
        other.start()
        until_somebody_waits(psql)
        first.execute(ends.encode())
    other.join(PATIENCE)
    assert done == [f"INSERT 0 {inserted}"]


def until_somebody_waits(psql: psycopg.Connection[Any]) -> None:
    """For a transaction of another."""
    deadline = time.monotonic() + PATIENCE
    waiting = (
        "SELECT FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event = 'transactionid'"
    )
    while not psql.execute(waiting).fetchall():
        assert time.monotonic() < deadline, "nobody waits"


# --- the wake-up --------------------------------------------------------------------------------


def test_a_worker_is_woken_by_the_commit_and_not_before(psql: psycopg.Connection[Any]) -> None:
    with psycopg.connect(emptied().url, autocommit=True) as ear:
        ear.execute('LISTEN "penstock.wake"')
        with psql.transaction(force_rollback=True):
            psql.execute("INSERT INTO penstock.job (task) VALUES ('never')")
        with psql.transaction():
            psql.execute("INSERT INTO penstock.job (task) VALUES ('soon')")
            # What was notified until now comes before the answer to this.
            ear.execute("SELECT 1")
            assert list(ear.notifies(timeout=0)) == []
        (heard,) = ear.notifies(timeout=PATIENCE, stop_after=1)
        assert heard.payload == "work"


def test_what_psql_enqueues_a_worker_runs(psql: psycopg.Connection[Any]) -> None:
    with Penstock(emptied().url) as app:

        @app.task(name="greet")
        def greet(name: str) -> str:
            return f"hello {name}"

        with app.worker_thread():
            psql.execute(
                """INSERT INTO penstock.job (id, task, payload)
                   VALUES ('hi', 'greet', '{"name": "Ada"}')"""
            )
            assert app.job("hi").result(timeout=PATIENCE) == "hello Ada"
    found = row(psql, "hi")
    assert (found["state"], found["result"], found["attempt"]) == ("succeeded", '"hello Ada"', 1)


# --- what is refused ----------------------------------------------------------------------------

NO_JSON = "invalid input syntax for type json"
MALFORMED = [
    ("oops", f'{NO_JSON}: Token "oops" is invalid.'),
    ("", f"{NO_JSON}: The input string ended unexpectedly."),
    ('{"a": 1', f"{NO_JSON}: The input string ended unexpectedly."),
    ("[1]", "it is an array"),
    ('"text"', "it is text"),
    ("1", "it is a number"),
    ("true", "it is a boolean"),
    ("null", "it is null"),
]


@pytest.mark.parametrize(("payload", "why"), MALFORMED)
async def test_a_malformed_payload_is_kept_as_failed_and_says_why(
    engine: PostgresEngine, psql: psycopg.Connection[Any], payload: str, why: str
) -> None:
    insert = "INSERT INTO penstock.job (id, task, payload, unique_key) VALUES ('bad', 't', %s, 'k')"
    assert psql.execute(insert, (payload,)).statusmessage == "INSERT 0 1"
    job = await stored(engine, "bad")
    assert job.state is State.FAILED
    assert job.payload == payload.encode()
    assert job.reason == f"t: the stored payload is not a JSON object: {why}"
    assert psql.execute(insert, ("{}",)).statusmessage == "INSERT 0 0"
    # Its key is free again.
    other = "INSERT INTO penstock.job (id, task, unique_key) VALUES ('good', 't', 'k')"
    assert psql.execute(other).statusmessage == "INSERT 0 1"


async def test_one_malformed_payload_among_many_is_alone_in_it(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    done = psql.execute(
        "INSERT INTO penstock.job (id, task, payload)"
        " VALUES ('1', 't', '{}'), ('2', 't', '{'), ('3', 't', '{}')"
    )
    assert done.statusmessage == "INSERT 0 3"
    states = [(await stored(engine, id)).state for id in "123"]
    assert states == [State.READY, State.FAILED, State.READY]


WRONG = [
    ("(queue) VALUES ('q')", "a job needs a task", "Give task the name"),
    ("(task) VALUES ('')", "column task has 0 characters", "Give 1 to 255 characters"),
    ("(id, task) VALUES (repeat('x', 256), 't')", "column id has 256", "Give 1 to 255 characters"),
    ("(task, key) VALUES ('t', '')", "column key has 0 characters", "leave it out"),
    ("(task, state) VALUES ('t', 'ready')", "column state of a new job is not yours", "Leave it"),
    ("(task, result) VALUES ('t', '1')", "column result of a new job is not yours", "Leave it"),
    ("(task, enqueued_at) VALUES ('t', now())", "column enqueued_at of a new job", "Leave it out"),
    (
        "(task, priority) VALUES ('t', 1001)",
        "priority 1001 is out of range",
        "0 is high, 5 normal, 10 low",
    ),
    ("(task, run_at, delay) VALUES ('t', now(), '1h')", "run_at and delay are both", "Give one"),
    (
        "(task, expires_at, expires_in) VALUES ('t', now(), '1h')",
        "expires_at and expires_in are both given",
        "Give one of the two",
    ),
    ("(task, run_at) VALUES ('t', 'infinity')", "run_at infinity is no instant", "timestamptz"),
    ("(task, run_at) VALUES ('t', '1969-01-01')", "is no instant from 1970 to 9999", "now() +"),
    ("(task, expires_at) VALUES ('t', 'infinity')", "expires_at infinity is no", "timestamptz"),
    ("(task, delay) VALUES ('t', '-1 s')", "delay -00:00:01 is no time to wait", "an interval"),
    ("(task, delay) VALUES ('t', '9999 years')", "is no time to wait", "an interval"),
    ("(task, expires_in) VALUES ('t', '0')", "expires_in 00:00:00 is no time", "leave it out"),
    ("(task, unique_for) VALUES ('t', '1h')", "say nothing without unique_key", "Give unique_key"),
    (
        "(task, unique_key, unique_until) VALUES ('t', 'k', 'end')",
        "unique_until 'end' is neither 'done' nor 'start'",
        "Give one of the two",
    ),
    (
        "(task, unique_key, unique_scope) VALUES ('t', 'k', 'queue')",
        "unique_scope 'queue' is neither 'task' nor 'app'",
        "the key belongs to the task",
    ),
    ("(task, unique_scope) VALUES ('t', 'app')", "say nothing without unique_key", "Give unique"),
    ("(task, tags) VALUES ('t', '{a,NULL}')", "are no plain list of words", "array of texts"),
    ("(task, tags) VALUES ('t', '{{a},{b}}')", "are no plain list of words", "array of texts"),
    ("(task, tags) VALUES ('t', '{\"\"}')", "are no plain list of words", "1 to 255 characters"),
]


@pytest.mark.parametrize(("values", "message", "hint"), WRONG)
def test_a_wrong_value_is_refused_and_told_what_to_do(
    psql: psycopg.Connection[Any], values: str, message: str, hint: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        psql.execute(f"INSERT INTO penstock.job {values}".encode())
    assert message in (caught.value.diag.message_primary or "")
    assert hint in (caught.value.diag.message_hint or "")
    assert psql.execute("SELECT count(*) FROM penstock.job").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("what", "change"),
    [("UPDATE", "UPDATE penstock.job SET priority = 1"), ("DELETE", "DELETE FROM penstock.job")],
)
def test_a_job_is_not_changed_by_sql(psql: psycopg.Connection[Any], what: str, change: str) -> None:
    psql.execute("INSERT INTO penstock.job (id, task) VALUES ('mine', 't')")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        psql.execute(change.encode())
    assert caught.value.diag.message_primary == f"a job cannot be changed by {what}"
    assert "'penstock jobs cancel mine'" in (caught.value.diag.message_hint or "")


@pytest.mark.parametrize(
    "draft",
    [
        {"tags": '{"a": 1}'},
        {"tags": '["a", 1]'},
        {"tags": '[["a"]]'},
        {"tags": '"a"'},
        {"run_at": "NaN"},
        {"delays": "Infinity"},
        {"expires_in": "NaN"},
        {"uniques": "k", "unique_until": "never"},
    ],
)
async def test_no_row_is_stored_that_a_worker_could_not_read(
    engine: PostgresEngine, psql: psycopg.Connection[Any], draft: dict[str, Any]
) -> None:
    """Whoever may enqueue may call the function below the view."""
    columns = json.dumps({"ids": "poison", "tasks": "t", **draft})
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="job 'poison' has"):
        psql.execute("SELECT penstock.put_json(%s)", (columns,))
    assert await engine.get(["poison"]) == [None]


# --- out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        "(id, task) VALUES ('r', 't')",
        "(id, task, delay, tags, unique_key) VALUES ('r', 't', '1 hour', '{a}', 'k')",
        "(id, task, unique_key, unique_scope) VALUES ('r', 't', 'k', 'app')",
        "(id, task, expires_in, key, name) VALUES ('r', 't', '1 hour', 'k', 'n')",
        "(id, task, payload) VALUES ('r', 't', 'no json')",
    ],
)
def test_returning_shows_what_the_view_shows(psql: psycopg.Connection[Any], columns: str) -> None:
    cursor = psql.execute(f"INSERT INTO penstock.job {columns} RETURNING *".encode())
    (told,) = cursor.fetchall()
    assert list(told) == list(row(psql, "r").values())


async def test_the_view_shows_live_and_finished_jobs_alike(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    job = await running(engine, "seen", tags=("x", "y"), key="k", unique="u", payload=b'{"a":1}')
    assert job.worker is not None
    found = row(psql, "seen")
    assert (found["state"], found["worker"], found["attempt"]) == ("running", job.worker, 1)
    assert (found["tags"], found["key"], found["unique_key"]) == (["x", "y"], "k", "u")
    assert (found["unique_until"], found["payload"], found["result"]) == ("done", '{"a":1}', None)
    assert found["finished_at"] is None

    await settle(engine, job, OutcomeKind.SUCCEEDED, result=b'{"b": 2}')
    found = row(psql, "seen")
    assert (found["state"], found["result"]) == ("succeeded", '{"b": 2}')
    assert isinstance(found["finished_at"], datetime)
    assert timedelta() <= found["finished_at"] - found["claimed_at"] < timedelta(seconds=PATIENCE)


async def test_bytes_that_are_no_text_are_shown_escaped(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    job = await running(engine, "raw", payload=b"\xff{\0}")
    await settle(engine, job, OutcomeKind.SUCCEEDED, result=b"\xfe")
    found = row(psql, "raw")
    assert (found["payload"], found["result"]) == ("\\377{\\000}", "\\376")


async def test_an_instant_that_no_calendar_has_is_the_end_of_time(
    engine: PostgresEngine, psql: psycopg.Connection[Any]
) -> None:
    await running(engine, "late", expires_in=1e300)
    rows = psql.execute("SELECT expires_at = 'infinity' FROM penstock.job WHERE id = 'late'")
    assert rows.fetchall() == [(True,)]


def plan(psql: psycopg.Connection[Any], query: str) -> list[dict[str, Any]]:
    """The scans of a plan, but for days on which no job has ended: those are all the same."""
    ((found,),) = psql.execute(f"EXPLAIN (FORMAT JSON) {query}".encode()).fetchall()

    def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for below in node.get("Plans", ()):
            yield from walk(below)

    scans = [node for node in walk(found[0]["Plan"]) if "Relation Name" in node]
    sizes = "SELECT relname FROM pg_class WHERE pg_relation_size(oid) > 0"
    used = {name for (name,) in psql.execute(sizes).fetchall()}
    return [scan for scan in scans if scan["Relation Name"] in used]


@pytest.fixture
async def crowded() -> AsyncIterator[psycopg.Connection[Any]]:
    """A store with so many jobs that to read all of them would be dear, and nothing of others."""
    database = Emptied()
    engine = PostgresEngine(database.url)
    await engine.open()
    await engine.close()
    with psycopg.connect(database.url, autocommit=True) as connection:
        crowd(connection)
        yield connection
    database.close()


def crowd(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        """
        INSERT INTO penstock.live
          (entry, seq, priority, enqueued_at, id, task, queue, state, payload)
        SELECT n, n, 5, 0, 'live-' || n, 't', 'default', 'ready', ''
          FROM generate_series(1, 5000) AS n;
        INSERT INTO penstock.history
          (entry, seq, priority, enqueued_at, finished_at, keep_failed, id, task, queue, state,
           payload)
        SELECT n, n, 5, 0, penstock.now(), 604800, 'done-' || n, 't', 'default',
               CASE WHEN n % 1000 = 0 THEN 'failed' ELSE 'succeeded' END, ''
          FROM generate_series(1, 5000) AS n;
        ANALYZE penstock.live; ANALYZE penstock.history;
        """
    )


def test_a_job_is_looked_up_by_the_indexes_of_the_ids(crowded: psycopg.Connection[Any]) -> None:
    scans = plan(crowded, "SELECT * FROM penstock.job WHERE id = 'done-7'")
    assert len({scan["Relation Name"] for scan in scans} - {"live"}) == len(scans) - 1 > 0
    assert {scan["Node Type"] for scan in scans} <= {"Index Scan", "Bitmap Heap Scan"}
    assert crowded.execute("SELECT state FROM penstock.job WHERE id = 'done-7'").fetchall() == [
        ("succeeded",)
    ]


def test_failed_jobs_are_found_without_a_look_at_the_others(
    crowded: psycopg.Connection[Any],
) -> None:
    for query in ("state = 'failed'", "state = 'failed' AND queue = 'default'"):
        scans = plan(crowded, f"SELECT * FROM penstock.job WHERE {query}")
        assert "live" not in {scan["Relation Name"] for scan in scans}
        assert {scan["Node Type"] for scan in scans} <= {"Index Scan", "Bitmap Heap Scan"}
    count = "SELECT count(*) FROM penstock.job WHERE state = 'failed'"
    assert crowded.execute(count).fetchall() == [(5,)]


def test_what_waits_is_found_without_a_look_at_the_history(
    crowded: psycopg.Connection[Any],
) -> None:
    scans = plan(crowded, "SELECT * FROM penstock.job WHERE state = 'running'")
    assert {scan["Relation Name"] for scan in scans} == {"live"}


# --- the contract -------------------------------------------------------------------------------


def test_the_columns_are_those_of_the_contract(psql: psycopg.Connection[Any]) -> None:
    found = psql.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'penstock.job'::regclass AND attnum > 0 ORDER BY attnum"
    ).fetchall()
    told = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", CONTRACT.read_text(), re.MULTILINE)
    same = {"timestamp with time zone": "timestamptz"}
    assert [(name, same.get(kind, kind)) for name, kind in found] == told
