"""The hot statements keep their indexes, whatever the backlog is and the statistics say.

The server itself shows the plan of every statement that a verb runs, also inside functions, and how
many rows each part of it has read (``auto_explain``). None may read a table from end to end, sort
the backlog, or read more rows than it is about.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from conformance.steps import ask, bury, claim, draft, joined, outcome, put, send
from conformance.waiting import gives_in
from penstock.core.job import KEEP, Hold
from penstock.engines import changes
from penstock.engines.postgres import history
from penstock.engines.postgres.connection import Connection
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import QueueSettings, Report
from penstock.testing.clock import FakeClock
from servers.postgres import quick

pytestmark = pytest.mark.timeout(600)

SIZES = (0, 1000, 1_000_000)
STATISTICS = ("none", "wrong", "right")
MODES = ("auto", "force_generic_plan")
QUEUES = tuple(f"queue-{number}" for number in range(20))
DAY = 86_400.0
NOW = FakeClock().now()
FEW = 400
"""Rows that a verb may read for the handful it is about: some are read once by each statement."""

WATCH = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off;
SET auto_explain.log_format = json; SET auto_explain.log_level = notice;
SET client_min_messages = notice; SET plan_cache_mode = {mode}
"""

BACKLOG = """
INSERT INTO penstock.live (entry, seq, priority, enqueued_at, run_at, expires_at, hold, hold_until,
                           claimed_at, id, task, queue, state, payload)
SELECT n, n, n %% 3, %(now)s, CASE WHEN n %% 10 = 0 THEN %(now)s + 1e6 + n END,
       CASE WHEN n %% 10 = 1 THEN %(now)s + 1e6 + n END,
       CASE WHEN n %% 10 = 2 THEN 'rate' WHEN n %% 10 = 3 THEN 'breaker' END,
       CASE WHEN n %% 10 = 2 THEN %(now)s + 1e6 + n END, CASE WHEN n %% 10 = 4 THEN %(now)s END,
       'crowd-' || n, 'work', 'queue-' || n / 10 %% 20,
       CASE WHEN n %% 10 = 0 THEN 'scheduled' ELSE 'ready' END, ''
  FROM generate_series(1, %(many)s) AS n
"""
ENDED = """
INSERT INTO penstock.history_crowd (entry, seq, priority, enqueued_at, finished_at, id, task, queue,
                                    state, payload)
SELECT -n, -n, 5, %(from)s, %(from)s + 86399.0 * n / %(many)s, 'ended-' || n, 'work',
       'queue-' || n %% 20, 'succeeded', ''
  FROM generate_series(1, %(many)s) AS n
"""
LIAR = """
CREATE TABLE liar (LIKE penstock.live INCLUDING DEFAULTS);
INSERT INTO liar (entry, seq, priority, enqueued_at, run_at, expires_at, hold, hold_until,
                  claimed_at, id, task, queue, state, worker, finished_at, payload)
SELECT 1, 1, 5, 0, 0, 0, 'limit', 0, 0, 'liar-' || n, 'nothing', 'nowhere', 'running', 'nobody', 0,
       ''
  FROM generate_series(1, 1000) AS n;
ANALYZE liar
"""
FORGET = "DELETE FROM pg_statistic WHERE starelid = %s::regclass"
BELIEVE = """
INSERT INTO pg_statistic
SELECT %s::regclass, staattnum, stainherit, stanullfrac, stawidth, stadistinct, stakind1, stakind2,
       stakind3, stakind4, stakind5, staop1, staop2, staop3, staop4, staop5, stacoll1, stacoll2,
       stacoll3, stacoll4, stacoll5, stanumbers1, stanumbers2, stanumbers3, stanumbers4,
       stanumbers5, stavalues1, stavalues2, stavalues3, stavalues4, stavalues5
  FROM pg_statistic WHERE starelid = 'liar'::regclass
"""


# --- a store with a backlog ---------------------------------------------------------------------


class Crowded:
    """A store with so many jobs that wait, and as many that ended on one day, a week ago: today
    they may be forgotten, one after the other.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.url = ""
        self._connection: psycopg.Connection[Any] | None = None

    def run(self, sql: str, *values: object, **named: object) -> list[Any]:
        assert self._connection is not None
        cursor = self._connection.execute(sql.encode(), named or values or None)
        return cursor.fetchall() if cursor.description else []

    async def make(self) -> None:
        """Rows first, then the indexes: that takes half the time."""
        server = quick()
        name = server.new_database()
        self.url = server.url(name)
        engine = PostgresEngine(self.url)
        await engine.open()
        await engine.close()
        self._connection = server.connect(name)
        self.run(f"SET penstock_clock.now = '{NOW!r}'")
        self.run("SET maintenance_work_mem = '256MB'; SET synchronous_commit = off")
        self.run("SELECT penstock.make_days(7)")
        self.run("ALTER TABLE penstock.live SET (autovacuum_enabled = off)")
        indexes = self.run(
            "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index"
            " WHERE indrelid = 'penstock.live'::regclass AND NOT indisprimary"
        )
        for index, _ in indexes:
            self.run(f"DROP INDEX {index}")
        with self.without("live_id"):
            self.run(BACKLOG, now=NOW, many=self.size)
        for _, definition in indexes:
            self.run(definition)
        first = NOW // DAY * DAY
        self.run(
            "CREATE TABLE penstock.history_crowd"
            " (LIKE penstock.history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        )
        self.run("ALTER TABLE penstock.history_crowd SET (autovacuum_enabled = off)")
        self.run(ENDED, **{"from": first - KEEP}, many=self.size)
        self.run(
            "ALTER TABLE penstock.history ATTACH PARTITION penstock.history_crowd"
            f" FOR VALUES FROM ({first!r}) TO ({first + DAY!r})"
        )
        self.run("SELECT setval('penstock.ticket', %s)", self.size + 1)
        self.run(LIAR)
        self.run("SET enable_seqscan = off; SET jit = off")

    def believe(self, statistics: str) -> None:
        """Let the planner know nothing, know it all, or know it all wrong."""
        for table in ("penstock.live", "penstock.history_crowd"):
            self.run(FORGET, table)
            if statistics == "wrong":
                self.run(BELIEVE, table)
                self.run(
                    "UPDATE pg_class SET reltuples = 1, relpages = 1 WHERE oid = %s::regclass",
                    table,
                )
            elif statistics == "right":
                self.run(f"ANALYZE {table}")

    @contextmanager
    def without(self, index: str) -> Iterator[None]:
        """Drop an index, or the key that it keeps; make it again."""
        named = f"penstock.{index}"
        ((table, is_key, statement),) = self.run(
            "SELECT indrelid::regclass::text, indisprimary, pg_get_indexdef(indexrelid)"
            " FROM pg_index WHERE indexrelid = %s::regclass",
            named,
        )
        if is_key:
            self.run(f"ALTER TABLE {table} DROP CONSTRAINT {index}")
            statement = f"ALTER TABLE {table} ADD CONSTRAINT {index} PRIMARY KEY (id)"
        else:
            self.run(f"DROP INDEX {named}")
        try:
            yield
        finally:
            self.run(statement.replace(" ON ONLY ", " ON "))

    def tidy(self) -> None:
        """End what a test has left running, and what it has decided."""
        self.run("DELETE FROM penstock.live WHERE state = 'running'")
        self.run("DELETE FROM penstock.worker; DELETE FROM penstock.queue")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            quick().drop_database(self.url.rpartition("/")[2])


@pytest.fixture(scope="module")
def made() -> Iterator[dict[int, Crowded]]:
    """The stores there are, by their size."""
    stores: dict[int, Crowded] = {}
    yield stores
    for store in stores.values():
        store.close()


async def crowded(made: dict[int, Crowded], size: int) -> Crowded:
    if size not in made:
        store = Crowded(size)
        await store.make()
        made[size] = store
    return made[size]


# --- what the server shows ----------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """The plan of one statement, as it was carried out."""

    query: str
    plan: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        pending = [self.plan]
        while pending:
            node = pending.pop()
            yield node
            pending += node.get("Plans", ())

    def scans(self) -> list[dict[str, Any]]:
        """The parts that read jobs or what belongs to them."""
        tables = ("live", "history", "ledger", "unique_key")
        return [
            node
            for node in self.nodes()
            if node["Node Type"].endswith("Scan")
            and (name := node.get("Relation Name", ""))
            and name.startswith(tables)
        ]

    def compared(self) -> list[dict[str, Any]]:
        """The parts that read all jobs, to compare each with all that were given."""
        joins = [
            node
            for node in self.nodes()
            if "Join Filter" in node
            and any(each["Node Type"] == "Function Scan" for each in node["Plans"])
        ]
        return [
            scan
            for join in joins
            for scan in Shown(self.query, join).scans()
            if scan["Relation Name"] == "live" and not {"Index Cond", "TID Cond"} & scan.keys()
        ]

    def sorted(self) -> int:
        """Rows that were put in order."""
        sorts = [node for node in self.nodes() if node["Node Type"].endswith("Sort")]
        return sum(_rows(each) for node in sorts for each in node["Plans"])

    def read(self) -> int:
        """Rows that were read, also those that were thrown away."""
        return sum(_rows(node) for node in self.scans())


def _rows(node: dict[str, Any]) -> int:
    each = sum(
        node.get(name, 0)
        for name in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    )
    return int(each * node.get("Actual Loops", 1))


class Watched(PostgresEngine):
    """A handle that knows the plans of all it has run."""

    def __init__(self, store: Crowded, mode: str) -> None:
        super().__init__(store.url, FakeClock(), follows_clock=True)
        self.size = store.size
        self.shown: list[Shown] = []
        self._mode = mode

    async def _connect_as(self, name: str) -> Connection:
        connection = await super()._connect_as(name)
        connection._driver.add_notice_handler(self._notice)
        await connection.script(WATCH.format(mode=self._mode))
        return connection

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        text = notice.message_primary or ""
        if "plan:" in text:
            found = json.loads(text.partition("plan:")[2])
            self.shown.append(Shown(found["Query Text"], found["Plan"]))


def check(shown: list[Shown], most: int) -> None:
    """What every plan of a verb has to be like."""
    assert shown
    for each in shown:
        whole = [node for node in each.scans() if node["Node Type"] == "Seq Scan"]
        assert not whole, f"a table is read from end to end: {each.query}\n{whole}"
        # Nobody knows how large the table is when a plan is used that was made while it was small.
        assert not each.compared(), f"all jobs are compared: {each.query}\n{each.compared()}"
        assert each.sorted() <= most, f"{each.sorted()} rows are sorted: {each.query}"
    read = sum(each.read() for each in shown)
    worst = max(shown, key=Shown.read)
    assert read <= most, f"{read} rows are read, {worst.read()} of them by: {worst.query}"


# --- what is run --------------------------------------------------------------------------------


@asynccontextmanager
async def watched(store: Crowded, mode: str = "auto") -> AsyncIterator[Watched]:
    engine = Watched(store, mode)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def forgetting(engine: Watched) -> FakeClock:
    """What was shown so far is not asked about."""
    engine.shown.clear()
    assert isinstance(engine.clock, FakeClock)
    return engine.clock


async def claim_from(engine: Watched, queues: tuple[str, ...]) -> None:
    """From the start of the line, then from where it was found to begin."""
    worker = await joined(engine)
    forgetting(engine)
    for _ in range(2):
        await engine.exchange(ask(worker, *queues, want=5))


async def claim_1(engine: Watched) -> None:
    await claim_from(engine, QUEUES[:1])


async def claim_3(engine: Watched) -> None:
    await claim_from(engine, QUEUES[:3])


async def claim_20(engine: Watched) -> None:
    await claim_from(engine, QUEUES)


async def claim_limited(engine: Watched) -> None:
    await engine.set_queue(QUEUES[0], QueueSettings(max_running=3))
    await claim_from(engine, QUEUES[:2])


async def claim_ordered(engine: Watched) -> None:
    await engine.set_queue(QUEUES[0], QueueSettings(ordered=True))
    await claim_from(engine, QUEUES[:1])


async def taken(engine: Watched, count: int = 5) -> list[Any]:
    """Jobs that one worker runs, whatever else waits."""
    await engine.enqueue([draft(priority=-1, queue=QUEUES[0]) for _ in range(count)])
    worker = await joined(engine)
    jobs = await claim(engine, QUEUES[0], worker=worker, want=count)
    assert len(jobs) == count
    return jobs


async def settle(engine: Watched) -> None:
    jobs = await taken(engine)
    forgetting(engine)
    await send(engine, jobs[0].worker, *(outcome(job, "succeeded") for job in jobs))


async def settle_moved(engine: Watched) -> None:
    """Where the rows are is not known any more: they are found by their ids."""
    jobs = await taken(engine)
    forgetting(engine)
    engine._claiming().ctids.clear()
    await send(engine, jobs[0].worker, *(outcome(job, "succeeded") for job in jobs))


async def settle_failed(engine: Watched) -> None:
    jobs = await taken(engine)
    forgetting(engine)
    kinds = ("failed", "retry", "snooze", "released", "cancelled")
    await send(engine, jobs[0].worker, *map(outcome, jobs, kinds))


async def report(engine: Watched) -> None:
    """Alone, and beside an outcome that takes several statements."""
    jobs = await taken(engine)
    reports = tuple(Report(job=job.id, claim=job.claim, fraction=0.5) for job in jobs)
    forgetting(engine)
    await send(engine, jobs[0].worker, reports=reports)
    await send(engine, jobs[0].worker, outcome(jobs[0], "retry"), reports=reports)
    assert [job.progress for job in await engine.held(jobs[0].worker)] == [0.5] * 4


async def enqueue(engine: Watched) -> None:
    """Plain ones, one with an id and a key, and both again."""
    forgetting(engine)
    drafts = [draft(queue="inbox") for _ in range(5)]
    await engine.enqueue(drafts)
    given = [draft(queue="inbox", remember=DAY, unique=f"key-{engine.clock.now()}")]
    for batch in (given, given, drafts):
        await engine.enqueue(batch)
    await engine.enqueue([draft("ended-1", queue="inbox", remember=DAY)])


async def promote(engine: Watched) -> None:
    for _ in range(5):
        await put(engine, queue="inbox", delay=1)
    forgetting(engine).advance(2)
    assert (await engine.promote(100)).ready == 5


async def expire(engine: Watched) -> None:
    for _ in range(5):
        await put(engine, queue="inbox", expires_in=1)
    forgetting(engine).advance(2)
    assert (await engine.promote(100)).expired == 5


async def rescue(engine: Watched) -> None:
    jobs = await taken(engine)
    forgetting(engine)
    assert len(await bury(engine, jobs[0].worker, limit=100)) == 5


async def prune(engine: Watched) -> None:
    """Of a day that is old in part."""
    forgetting(engine)
    assert (await engine.prune(10)).jobs == (10 if engine.size else 0)


async def look(engine: Watched) -> None:
    """At queues where much waits, and where all that waits is for others."""
    worker = await joined(engine)
    forgetting(engine)
    await gives_in(engine, ask(worker, *QUEUES))
    await gives_in(engine, ask(worker, QUEUES[0], least_urgent=-5))
    await gives_in(engine, ask(worker, "nobody's"))


async def look_ordered(engine: Watched) -> None:
    await engine.set_queue("nobody's", QueueSettings(ordered=True, fair=True, max_running=3))
    worker = await joined(engine)
    forgetting(engine)
    await gives_in(engine, ask(worker, "nobody's"))


async def cancel(engine: Watched) -> None:
    """One that waits, one that runs, one that has ended; then what a worker with many is told."""
    jobs = await taken(engine, 2 * FEW)
    waiting = await put(engine, queue="inbox")
    forgetting(engine)
    await changes.cancel(engine, [waiting, jobs[0].id, "ended-1"], "enough")
    assert (await engine.exchange(ask(jobs[0].worker, "nobody's"))).cancels == (jobs[0].id,)


async def held(engine: Watched) -> None:
    jobs = await taken(engine)
    forgetting(engine)
    assert len(await engine.held(jobs[0].worker)) == 5
    assert len([job for job in await engine.get([job.id for job in jobs]) if job]) == 5


async def claim_fair(engine: Watched) -> None:
    """In a fair queue beside those where many wait."""
    await engine.set_queue("fair", QueueSettings(fair=True))
    for _ in range(5):
        await put(engine, queue="fair", key="a")
    worker = await joined(engine)
    forgetting(engine)
    assert len((await engine.exchange(ask(worker, "fair", want=5))).jobs) == 5


async def lift_known(engine: Watched) -> None:
    """What every worker does that joins."""
    await changes.hold(engine, [await put(engine, queue="inbox")], Hold.UNKNOWN_TASK, "work")
    forgetting(engine)
    assert await changes.lift_known(engine, ["work"]) == 1


async def repair(engine: Watched) -> None:
    """What a leader does again and again."""
    await engine.set_queue("fair", QueueSettings(fair=True))
    await put(engine, queue="fair", key="a")
    forgetting(engine)
    await changes.repair_holds(engine, 100)
    await engine.repair(100)


VERBS: dict[str, Callable[[Watched], Awaitable[None]]] = {
    verb.__name__: verb
    for verb in (
        *(claim_1, claim_3, claim_20, claim_limited, claim_ordered, settle, settle_moved),
        *(settle_failed, enqueue, promote, expire, rescue, prune, look, look_ordered, cancel),
        *(held, claim_fair, report, lift_known, repair),
    )
}


@pytest.fixture(autouse=True)
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """No day is so big that it waits to go as a whole."""
    monkeypatch.setattr(history, "BIG", 1 << 60)


async def troubles(engine: Watched, store: Crowded, verb: str) -> str:
    """What is wrong with the plans of a verb."""
    engine._bounds.forget()
    await VERBS[verb](engine)
    store.tidy()
    try:
        check(engine.shown, FEW)
    except AssertionError as error:
        return f"{verb}: {str(error)[:1000]}\n"
    return ""


@pytest.mark.parametrize("size", SIZES)
async def test_every_plan_goes_by_an_index(made: dict[int, Crowded], size: int) -> None:
    """One test for each size: to make the large store takes longer than all the rest."""
    store = await crowded(made, size)
    found = []
    for statistics, mode in itertools.product(STATISTICS, MODES):
        store.believe(statistics)
        async with watched(store, mode) as engine:
            for verb in VERBS:
                if trouble := await troubles(engine, store, verb):
                    found.append(f"{statistics} statistics, {mode}: {trouble}")
    assert not found, "\n".join(found)


EVERYTHING: dict[str, Callable[[int], dict[str, Any]]] = {
    "key": lambda n: {"key": f"k{n}"},
    "delay": lambda n: {"delay": 1.0 + n},
    "tags": lambda n: {"tags": (f"t{n}",)},
    "own ids": lambda _: {"remember": DAY},
    "unique keys": lambda n: {"unique": f"u{n}"},
    "all of it": lambda n: {"key": f"k{n}", "tags": ("t",), "remember": DAY, "unique": f"v{n}"},
}


@pytest.mark.parametrize("option", EVERYTHING)
async def test_a_batch_is_as_many_statements_as_one_job(
    made: dict[int, Crowded], option: str
) -> None:
    store = await crowded(made, 0)
    fields, counts = EVERYTHING[option], []
    async with watched(store) as engine:
        for first, last in ((0, 1), (1, 101), (50, 150)):
            drafts = [draft(f"{option}-{n}", queue="in", **fields(n)) for n in range(first, last)]
            forgetting(engine)
            await engine.enqueue(drafts)
            counts.append(len(engine.shown))
            check(engine.shown, 20 * len(drafts) + FEW)
    store.run("DELETE FROM penstock.live WHERE queue = 'in'")
    # The wake-up for the batch before may be among them.
    assert counts[1] <= counts[0] + 3
    # Half of the last batch is known: it is tried once more, carefully.
    assert counts[2] <= 3 * counts[0] + 3


@pytest.mark.parametrize("verb", [settle, settle_failed, cancel, rescue])
async def test_a_plan_that_is_made_over_hardly_any_jobs_does_not_read_all_of_them(
    made: dict[int, Crowded], verb: Callable[[Watched], Awaitable[None]]
) -> None:
    """It is used when there are many, until the next ANALYZE."""
    store = await crowded(made, 0)
    store.run("DELETE FROM penstock.live")
    store.run("VACUUM ANALYZE penstock.live")
    async with watched(store) as engine:
        await verb(engine)
        store.tidy()
        check(engine.shown, FEW)


@pytest.mark.parametrize(
    ("index", "verb"),
    [
        ("live_claim", "claim_1"),
        ("live_claim", "claim_20"),
        ("live_open", "claim_ordered"),
        ("live_id", "settle_moved"),
        ("live_id", "settle_failed"),
        ("live_id", "report"),
        ("live_due", "promote"),
        ("live_unhold", "promote"),
        ("live_expiry", "expire"),
        ("live_running", "rescue"),
        ("live_running", "held"),
        ("live_running", "claim_limited"),
        ("live_cancels", "cancel"),
        ("live_due_in", "look"),
        ("live_unhold_in", "look"),
        ("history_id", "enqueue"),
        ("history_forget", "prune"),
    ],
)
async def test_a_verb_that_has_lost_its_index_is_found_out(
    made: dict[int, Crowded], index: str, verb: str
) -> None:
    """So the test above can fail, for every index that it relies on."""
    store = await crowded(made, 10_000)
    store.believe("none")
    with store.without(index):
        async with watched(store) as engine:
            assert await troubles(engine, store, verb)
    async with watched(store) as engine:
        assert not await troubles(engine, store, verb)
