"""Law 11 on PostgreSQL: who is notified, by whom, and what happens to those who cannot hear."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest

from conformance.steps import ask, draft, joined, outcome, put, running, send, soon
from conformance.waiting import LONG, asleep, breathe, work
from penstock.core.ids import new_id
from penstock.engines import changes
from penstock.engines.engine import Engine
from penstock.engines.observed import Observed
from penstock.engines.postgres import listener, wakeup
from penstock.engines.postgres.connection import Connection
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import News, QueueSettings
from penstock.engines.waiting import wait_for_results
from penstock.events import Bus, Event, Listening, Polling
from penstock.testing.clock import FakeClock
from postgres.callers import put_blocking
from servers.emptied import emptied
from servers.messages import answers
from servers.postgres import quick
from servers.proxy import Proxy

Kind = TypeVar("Kind", bound=Event)
Open = Callable[..., Any]


@pytest.fixture
def url() -> str:
    database = emptied()
    database.empty()
    return database.url


@pytest.fixture
async def open_handle(url: str) -> AsyncIterator[Open]:
    """Opens handles on the store; they are closed at the end."""
    handles: list[Engine] = []

    async def open_handle(*args: Any, at: str = url, bus: Bus | None = None, **options: Any) -> Any:
        handle: Engine = PostgresEngine(at, *args, **options)
        if bus is not None:
            handle = Observed(handle, bus)
        handles.append(handle)
        await handle.open()
        return handle

    yield open_handle
    for handle in handles:
        await handle.close()
    assert emptied().left_open() == []


class Channel:
    """Everything that is notified, as somebody else hears it."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute('LISTEN "penstock.wake"')

    def heard(self) -> list[str]:
        """What was said since the last time, without probes."""
        self.connection.execute("""NOTIFY "penstock.wake", 'so far'""")
        said = []
        for notify in self.connection.notifies():
            if notify.payload == "so far":
                break
            if notify.payload != listener.PROBE:
                said.append(notify.payload)
        return said


@pytest.fixture
def channel(url: str) -> Iterator[Channel]:
    channel = Channel(url)
    yield channel
    channel.connection.close()


@pytest.fixture
def no_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes who sleeps."""
    monkeypatch.setattr(wakeup, "POLL", LONG)


@pytest.fixture
def alert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is soon taken for deafness."""
    monkeypatch.setattr(listener, "QUIET", 0.05)
    monkeypatch.setattr(listener, "PATIENCE", 1.0)


def told(bus: Bus, kind: type[Kind]) -> asyncio.Future[Kind]:
    """The first event of a kind from now on."""
    future: asyncio.Future[Kind] = asyncio.get_running_loop().create_future()

    def hear(event: Kind) -> None:
        if not future.done():
            future.set_result(event)

    bus.subscribe(kind, hear)
    return future


async def until_known(channel: Channel, *kinds: str) -> None:
    """Wait until somebody is known to sleep for each of these."""
    found: set[str] = set()
    while not found.issuperset(kinds):
        await asyncio.sleep(0.001)
        found = {
            kind for (kind,) in channel.connection.execute("SELECT kind FROM penstock.sleeper")
        }


async def settle(engine: Engine, job: Any) -> None:
    await send(engine, job.worker, outcome(job, "succeeded"))
    await engine.get([job.id])  # over the connection on which the wake-up was posted


# --- who is notified ----------------------------------------------------------------------------


async def test_nobody_is_notified_while_nobody_sleeps(open_handle: Open, channel: Channel) -> None:
    engine = await open_handle()
    await engine.get([await put(engine)])
    await settle(engine, await running(engine))
    assert channel.heard() == []


async def test_a_new_job_is_told_to_idle_workers(open_handle: Open, channel: Channel) -> None:
    sleeper, engine = await open_handle(), await open_handle()
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await until_known(channel, wakeup.WORK)
        channel.heard()
        await engine.get([await put(engine)])
        await soon(nap)
    assert channel.heard() == ["work"]


async def test_a_job_that_ends_is_told_to_those_who_wait_for_it_and_to_no_worker(
    open_handle: Open, channel: Channel
) -> None:
    worker, caller, engine = await open_handle(), await open_handle(), await open_handle()
    first, second = await running(engine), await running(engine)
    async with asleep(work(worker, ask(await joined(worker)), LONG)) as nap:
        await until_known(channel, wakeup.WORK)
        channel.heard()
        await settle(engine, first)
        assert channel.heard() == []
        async with asleep(wait_for_results(caller, [second.id], LONG)) as waiting:
            await until_known(channel, wakeup.DONE)
            await settle(engine, second)
            assert (await soon(waiting)).keys() == {second.id}
        assert channel.heard() == ["done"]
        assert not nap.done()


@pytest.mark.parametrize("settings", [{"max_running": 1}, {"ordered": True}])
async def test_a_job_that_makes_room_for_another_is_told_to_workers(
    open_handle: Open, channel: Channel, no_backstop: None, settings: dict[str, Any]
) -> None:
    sleeper, engine = await open_handle(), await open_handle()
    await engine.set_queue("narrow", QueueSettings(**settings))
    job = await running(engine, queue="narrow")
    await put(engine, queue="narrow")
    async with asleep(work(sleeper, ask(await joined(sleeper), "narrow"), LONG)) as nap:
        await until_known(channel, wakeup.WORK)
        await send(engine, job.worker, outcome(job, "succeeded"))
        await soon(nap)


async def test_a_worker_without_room_hears_of_cancellations_and_of_no_job(
    open_handle: Open, channel: Channel, no_backstop: None
) -> None:
    worker, engine = await open_handle(), await open_handle()
    job = await running(worker)
    async with asleep(work(worker, ask(job.worker, want=0), LONG)) as nap:
        await until_known(channel, News.CONTROL)
        channel.heard()
        await engine.get([await put(engine)])
        assert channel.heard() == []
        await changes.cancel(engine, [job.id], "enough")
        await soon(nap)


async def test_a_transaction_of_others_always_notifies(
    open_handle: Open, channel: Channel, url: str
) -> None:
    await open_handle()
    with psycopg.connect(url) as foreign:
        foreign.execute("INSERT INTO penstock.job (id, task) VALUES ('one', 'work')")
        assert channel.heard() == []
    assert channel.heard() == ["work"]


async def test_sleep_is_measured_by_the_clock_of_the_server(
    open_handle: Open, channel: Channel, no_backstop: None
) -> None:
    """Whatever a test says the time is, where the sleeper lives or where the writer does."""
    sleeper, engine = await open_handle(FakeClock(), follows_clock=True), await open_handle()
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await until_known(channel, wakeup.WORK)
        await put(engine)
        await soon(nap)


async def test_no_wake_up_is_lost_however_close_sleep_and_commit_are(
    open_handle: Open, channel: Channel, no_backstop: None
) -> None:
    """Nobody knows of the sleeper at first, so that every sleep goes all the way."""
    sleeper, engine = await open_handle(), await open_handle()
    one_turn = ask(await joined(sleeper))
    for _ in range(200):
        sleeper._store().wakeups._known_until.clear()
        channel.connection.execute("DELETE FROM penstock.sleeper")
        nap: asyncio.Task[Any] = asyncio.create_task(work(sleeper, one_turn, LONG))
        await asyncio.sleep(random.random() * 0.004)
        await put(engine)
        assert (await soon(nap)).jobs


# --- connections --------------------------------------------------------------------------------

LISTENERS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock listener'"


async def test_one_connection_listens_for_all_who_sleep_on_a_handle(
    open_handle: Open, channel: Channel
) -> None:
    engine = await open_handle()
    assert channel.connection.execute(LISTENERS).fetchall() == []
    one_turn = ask(await joined(engine))
    async with (
        asleep(work(engine, one_turn, LONG)),
        asleep(engine.listen(News.CHANGED, await engine.version(News.CHANGED), LONG)),
    ):
        await until_known(channel, wakeup.WORK, wakeup.CHANGED)
        assert len(channel.connection.execute(LISTENERS).fetchall()) == 1


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each statement was sent, as it is sent."""
    sent: list[str] = []

    def counted(name: str) -> None:
        send = getattr(Connection, name)

        def count(*args: Any) -> Any:
            sent.append(name)
            return send(*args)

        monkeypatch.setattr(Connection, name, count)

    for name in ("rows", "run", "change", "script", "post"):
        counted(name)
    return sent


@pytest.mark.parametrize("naps", [(2.0,), (0.95, 0.95)])
async def test_an_idle_worker_looks_about_once_a_second(
    open_handle: Open, statements: list[str], naps: tuple[float, ...]
) -> None:
    """However the worker's own poll and that of the engine fall together."""
    engine = await open_handle()
    one_turn = ask(await joined(engine))
    await work(engine, one_turn, 0.01)
    statements.clear()
    for nap in naps:
        await work(engine, one_turn, nap)
    assert 1 <= len(statements) <= 3


async def test_what_an_idle_process_asks_again_and_again_is_one_statement_each(
    open_handle: Open, statements: list[str]
) -> None:
    engine = await open_handle()
    worker = await joined(engine)
    for call in (
        partial(engine.beat, worker),
        partial(engine.cell, "leader"),
        partial(engine.set_cell, "leader", b"me", 0, 10.0),
        engine.workers,
        partial(changes.rescue, engine, [], 100),
        partial(engine.promote, 100),
        partial(engine.get, ["nobody"]),
    ):
        statements.clear()
        await call()
        assert len(statements) == 1, call
        assert engine._store().wakeups._waking_others is None, call


async def test_who_sleeps_hears_again_after_the_connection_was_ended(
    open_handle: Open, channel: Channel
) -> None:
    sleeper, engine = await open_handle(), await open_handle()
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await until_known(channel, wakeup.WORK)
        ((before,),) = channel.connection.execute(LISTENERS).fetchall()
        channel.connection.execute("DELETE FROM penstock.sleeper")
        channel.connection.execute("SELECT pg_terminate_backend(%s)", (before,))
        await until_known(channel, wakeup.WORK)
        ((after,),) = channel.connection.execute(LISTENERS).fetchall()
        assert after != before
        channel.heard()
        await engine.get([await put(engine)])
        await soon(nap)
    assert channel.heard() == ["work"]


# --- the deaf -----------------------------------------------------------------------------------


async def test_a_connection_that_died_without_a_word_is_found_out(
    open_handle: Open, url: str, alert: None, no_backstop: None
) -> None:
    """It is said once, work is found by polling, and it is said when it is over."""
    with Proxy(quick().port) as proxy:
        proxy.hold_before(answers("A"), nth=2)
        bus = Bus()
        polling, listening = told(bus, Polling), told(bus, Listening)
        sleeper, engine = await open_handle(at=proxy.url(url), bus=bus), await open_handle()
        one_turn = ask(await joined(sleeper))
        async with asleep(work(sleeper, one_turn, LONG)) as nap:
            event = await soon(polling)
            assert event.why == "a notification of our own did not come for 1 s"
            await put(engine)
            await soon(nap)
        await sleeper.exchange(one_turn)
        async with asleep(work(sleeper, one_turn, LONG)) as nap:
            await soon(listening)
            await put(engine)
            await soon(nap)
        await sleeper.close()


async def test_who_gets_no_connection_to_listen_polls_and_says_so(
    open_handle: Open, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS narrow")
        admin.execute("CREATE ROLE narrow SUPERUSER LOGIN")
        # Superusers have no limit of their own: the door is shut to the second one.
        admin.execute("ALTER ROLE narrow NOSUPERUSER CONNECTION LIMIT 1")
        admin.execute("GRANT ALL ON SCHEMA penstock TO narrow")
        for what in ("TABLES", "SEQUENCES", "FUNCTIONS"):
            admin.execute(f"GRANT ALL ON ALL {what} IN SCHEMA penstock TO narrow")
        bus = Bus()
        polling = told(bus, Polling)
        narrow = url.replace("postgres@", "narrow@")
        engine = await open_handle()
        sleeper = await open_handle(at=narrow, bus=bus, connections=1)
        try:
            async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
                assert 'too many connections for role "narrow"' in (await soon(polling)).why
                await put(engine)
                await soon(nap)
            (said,) = [record for record in caplog.records if record.name == "penstock.postgres"]
            assert said.getMessage().startswith("polling schema='penstock' why='")
        finally:
            await sleeper.close()
            admin.execute("DROP OWNED BY narrow")
            admin.execute("DROP ROLE narrow")


async def test_a_handle_that_does_not_listen_polls_without_a_word(
    open_handle: Open, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    sleeper, engine = await open_handle(listens=False), await open_handle()
    async with asleep(work(sleeper, ask(await joined(sleeper)), LONG)) as nap:
        await breathe()
        await put(engine)
        await soon(nap)
    assert channel.connection.execute("SELECT kind FROM penstock.sleeper").fetchall() == []
    assert [record for record in caplog.records if record.name == "penstock.postgres"] == []


async def test_polls_grow_rare_and_begin_anew_with_work(
    open_handle: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store that changes: pauses double up to a second, and are short after a commit."""
    engine = await open_handle(listens=False)
    sight = engine._store().wakeups
    pauses = [sight._next_pause() for _ in range(20)]
    assert all(0 < pause <= wakeup.POLL for pause in pauses)
    assert pauses[0] <= wakeup.OFTEN
    assert min(pauses[-5:]) >= 0.75 * wakeup.POLL
    await put(engine)
    assert sight._next_pause() <= wakeup.OFTEN


async def test_of_a_queue_with_decisions_nothing_says_that_a_job_may_be_claimed(
    url: str, open_handle: Open
) -> None:
    engine = await open_handle()
    await engine.set_queue("default", QueueSettings(max_running=1))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('LISTEN "penstock.wake"')
        connection.execute("SELECT penstock.doze('me', 'work', 60)")
        await put(engine)
        (note,) = connection.notifies(timeout=30, stop_after=1)
        assert note.payload == "work"


async def test_who_falls_asleep_while_a_job_is_stored_is_woken_after_the_commit(
    url: str, open_handle: Open
) -> None:
    """The job's transaction did not see the sleeper; the wake-up after it does."""
    engine = await open_handle()
    with psycopg.connect(url, autocommit=True) as sleeper:
        sleeper.execute('LISTEN "penstock.wake"')
        # Whoever stores waits here, after it has looked who sleeps.
        sleeper.execute(
            "CREATE FUNCTION pg_temp_wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON penstock.live"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp_wait()"
        )
        try:
            sleeper.execute("SELECT pg_advisory_lock(77)")
            stored = asyncio.ensure_future(put_blocking(engine, [draft(new_id(time.time()))]))
            while not sleeper.execute(
                "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            ).fetchall():
                await breathe()
            sleeper.execute("SELECT penstock.doze('me', 'work', 60)")
            sleeper.execute("SELECT pg_advisory_unlock(77)")
            assert await soon(stored) is not None
            (note,) = sleeper.notifies(timeout=30, stop_after=1)
            assert note.payload == "work"
        finally:
            sleeper.execute("SELECT pg_advisory_unlock_all()")
            sleeper.execute("DROP FUNCTION pg_temp_wait CASCADE")


async def test_what_no_worker_waits_for_is_told_a_moment_later_and_together(
    open_handle: Open, channel: Channel
) -> None:
    engine = await open_handle()
    channel.connection.execute("SELECT penstock.doze('me', 'changed', 60)")
    channel.heard()
    for number in range(3):
        await engine.set_cell(f"cell-{number}", b"", 0)
    heard: list[str] = []
    while not heard:
        await breathe()
        heard = channel.heard()
    assert set(heard) == {"other"}
