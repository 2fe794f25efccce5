"""PostgreSQL goes away, comes back, or shuts its door: what handles and workers make of it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conformance.steps import ask, claim, draft, joined, outcome, put, running, send, soon, stored
from conformance.waiting import work
from penstock import Penstock, State
from penstock.core.job import Verdict
from penstock.engines import changes
from penstock.engines.observed import Observed
from penstock.engines.postgres.connection import Connection
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.postgres.pool import ConnectionPool
from penstock.engines.records import Filter
from penstock.errors import (
    EngineBusy,
    EngineCrowded,
    EngineError,
    EngineReadOnly,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
)
from penstock.events import Bus, Faulted
from servers.messages import runs
from servers.postgres import Postgres
from servers.proxy import Proxy

PATIENCE = 60.0
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'penstock%'"
PIDS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'penstock%'"
TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name LIKE 'penstock%%' AND random() < %s"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that tests stop and kill; they leave it running."""
    with Postgres(fsync=False, max_connections="40") as server:
        yield server


@pytest.fixture
def url(server: Postgres) -> Iterator[str]:
    with server.database() as url:
        yield url


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(url, **options)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def _backends(server: Postgres) -> set[int]:
    """The processes that serve handles through a connection of calls."""
    with server.connect() as admin:
        return {pid for (pid,) in admin.execute(PIDS).fetchall()}


def _are_gone(processes: list[Path]) -> bool:
    return not any(process.exists() for process in processes)


# --- at the door --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """A server that asks for passwords, and has few connections."""
    with Postgres(fsync=False, max_connections="5", superuser_reserved_connections="0") as server:
        with server.connect() as admin:
            admin.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
            rules = Path(str(admin.execute("SHOW hba_file").fetchall()[0][0]))
            given = rules.read_text()
            rules.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{given}")
            admin.execute("SELECT pg_reload_conf()")
            until(lambda: _rules(server))
        yield server


def _rules(server: Postgres) -> bool:
    try:
        psycopg.connect(server.url(user="app")).close()
    except psycopg.OperationalError:
        return True
    return False


async def opening(url: str) -> str:
    """What the user is told who opens this."""
    with pytest.raises(EngineError) as caught:
        await PostgresEngine(url, connect_timeout=2.0).open()
    return f"{type(caught.value).__name__}: {caught.value}"


async def test_a_wrong_password_is_told_at_once_and_not_tried_again(guarded: Postgres) -> None:
    url = guarded.url(user="app").replace("app@", "app:wrong@")
    engine, bus = PostgresEngine(url), Bus()
    faults: list[Faulted] = []
    bus.subscribe(Faulted, faults.append)
    before = guarded.log().count("password authentication failed")
    with pytest.raises(EngineRefused) as caught:
        await Observed(engine, bus).open()
    assert str(caught.value) == (
        f'postgresql refuses us: connection to server at "127.0.0.1", port {guarded.port} failed: '
        'FATAL: password authentication failed for user "app"; correct the user, the password or '
        "the database in the URL, or let this one in"
    )
    assert faults == []
    assert guarded.log().count("password authentication failed") == before + 1


async def test_whoever_is_not_let_in_learns_why(guarded: Postgres) -> None:
    local = guarded.url()
    assert "no password supplied" in await opening(guarded.url(user="app"))
    assert "EngineRefused: postgresql refuses us: connection to server" in await opening(
        guarded.url("none_such")
    )
    assert 'database "none_such" does not exist' in await opening(guarded.url("none_such"))
    assert 'role "ghost" does not exist' in await opening(guarded.url(user="ghost"))
    assert "SSL was required" in await opening(f"{local}?sslmode=require")
    assert 'invalid URI query parameter: "colour"' in await opening(f"{local}?colour=red")


async def test_whoever_finds_nobody_learns_where_they_looked() -> None:
    assert (await opening("postgresql://someone@127.0.0.1:1/jobs")).startswith(
        "EngineUnavailable: postgresql cannot be reached: "
        'connection to server at "127.0.0.1", port 1 failed: Connection refused'
    )
    assert (await opening("postgresql://someone@nowhere.invalid/jobs")).startswith(
        "EngineUnavailable: postgresql cannot be reached: failed to resolve host 'nowhere.invalid'"
    )


async def test_a_server_without_a_connection_to_spare_is_told_so(guarded: Postgres) -> None:
    crowd = []
    try:
        with pytest.raises(psycopg.OperationalError):
            while True:
                crowd.append(guarded.connect())
        assert await opening(guarded.url()) == (
            "EngineCrowded: postgresql has no connection to spare: connection to server at "
            f'"127.0.0.1", port {guarded.port} failed: FATAL: sorry, too many clients already; '
            "try again, raise connections in the URL or max_connections of the server, or end "
            "what keeps them"
        )
    finally:
        for each in crowd:
            each.close()


async def test_a_handle_whose_connections_are_all_in_use_says_so(url: str) -> None:
    async with opened(url, connections=1, connect_timeout=0.2) as engine:
        async with engine._store().pool.use():
            with pytest.raises(EngineCrowded, match="all 1 of this handle are in use for 0.2 s"):
                await engine.counts(Filter())
        assert await engine.counts(Filter()) == []


async def test_a_crowd_that_waits_for_a_connection_makes_one_attempt() -> None:
    attempts, refused = 0, asyncio.Event()

    async def connect() -> Connection:
        nonlocal attempts
        attempts += 1
        await refused.wait()
        raise psycopg.OperationalError("nobody is there")

    pool = ConnectionPool(connect, most=10, patience=PATIENCE)

    async def call() -> None:
        async with pool.use():
            raise AssertionError("there is no connection")

    calls = [asyncio.create_task(call()) for _ in range(10)]
    await asyncio.sleep(0)
    refused.set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(end) for end in ends] == ["nobody is there"] * 10
    assert attempts == 1


# --- what a server may do to those who are in ---------------------------------------------------


async def test_a_statement_that_the_server_finds_too_slow_is_named(
    server: Postgres, url: str
) -> None:
    async with opened(url) as engine:
        id = await put(engine)
    name = url.rpartition("/")[2]
    with closing(server.connect()) as admin, psycopg.connect(url) as other:
        admin.execute(f"ALTER DATABASE {name} SET statement_timeout = '20ms'")
        other.execute("SELECT FROM penstock.live FOR UPDATE")
        async with opened(url) as engine:
            with pytest.raises(EngineTimeout, match="due to statement timeout") as caught:
                await changes.cancel(engine, [id], "enough")
            assert str(caught.value).startswith("postgresql did not answer in time: ")
            other.rollback()
            assert (await changes.cancel(engine, [id], "enough"))[0].changed


async def test_a_row_that_somebody_keeps_is_named(url: str) -> None:
    async with opened(url) as engine:
        id = await put(engine)
        with psycopg.connect(url) as other:
            other.execute("SELECT FROM penstock.live FOR UPDATE")
            with pytest.raises(EngineBusy, match="due to lock timeout"):
                await changes.cancel(engine, [id], "enough")


async def test_a_transaction_that_the_server_finds_too_idle_did_not_happen(
    server: Postgres, url: str
) -> None:
    name = url.rpartition("/")[2]
    with Proxy(server.port) as proxy, closing(server.connect()) as admin:
        async with opened(url) as engine:
            worker = await joined(engine)
        setting = "idle_in_transaction_session_timeout = '50ms'"
        admin.execute(f"ALTER DATABASE {name} SET {setting}")
        async with opened(proxy.url(url)) as engine:
            fault = proxy.hold_before(lambda message: message.sql == "COMMIT")
            leaving = asyncio.create_task(engine.leave(worker))
            until_gone = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in tr%'"
            await asyncio.to_thread(fault.wait)
            await asyncio.to_thread(until, lambda: admin.execute(until_gone).fetchone() == (0,))
            fault.release()
            with pytest.raises(EngineUnavailable, match="idle-in-transaction timeout"):
                await soon(leaving)
            assert [info.id for info in await engine.workers()] == [worker]


async def test_a_standby_is_read_only_until_it_is_promoted() -> None:
    with Postgres(fsync=False) as server:
        async with opened(server.url()) as engine:
            id = await put(engine)
        server.stop()
        server._ward.write("data/standby.signal", "")
        server.start()
        async with opened(server.url()) as engine:
            assert (await stored(engine, id)).state is State.READY
            with pytest.raises(EngineReadOnly) as caught:
                await put(engine)
            assert str(caught.value).startswith("postgresql is read-only: cannot ")
            assert str(caught.value).endswith("; name the primary server in the URL")
            with server.connect() as admin:
                admin.execute("SELECT pg_promote()")
            await put(engine)


async def test_a_server_that_is_not_ready_yet_is_waited_for() -> None:
    with Postgres(fsync=False) as server:
        async with opened(server.url()):
            pass
        server.stop()
        server.configure(hot_standby="off")
        server._ward.write("data/standby.signal", "")
        server._ward.start(*_start(server))
        until(lambda: "entering standby mode" in server.log())
        with pytest.raises(EngineUnavailable, match="the database system is (not|starting)"):
            await PostgresEngine(server.url()).open()
        server.kill()


def _start(server: Postgres) -> tuple[str, ...]:
    from servers.programs import POSTGRES

    folder = server._ward.folder
    return POSTGRES.must(), "-D", f"{folder}/data", "-c", f"config_file={folder}/conf"


# --- away and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Postgres.stop, Postgres.kill])
async def test_a_call_fails_while_the_server_is_away_and_the_next_one_finds_it_back(
    server: Postgres, url: str, end: Callable[[Postgres], None]
) -> None:
    """Also where all connections of a handle are dead, without a try for each of them."""
    async with opened(url) as engine:
        await asyncio.gather(*(engine.counts(Filter()) for _ in range(4)))
        end(server)
        with pytest.raises(EngineUnavailable, match="nothing is lost, try again"):
            await put(engine)
        server.start()
        id = await put(engine)
        assert (await stored(engine, id)).state is State.READY


async def test_connections_that_ended_while_nobody_looked_cost_no_call(
    server: Postgres, url: str
) -> None:
    async with opened(url) as engine:
        with server.connect() as admin:
            for _ in range(10):
                await asyncio.gather(*(engine.counts(Filter()) for _ in range(4)))
                ended = [Path(f"/proc/{pid}") for (pid,) in admin.execute(PIDS).fetchall()]
                assert ended
                admin.execute(TERMINATE, (1.0,))
                until(partial(_are_gone, ended))
                await put(engine)


async def test_nothing_leaks_however_often_connections_break(server: Postgres, url: str) -> None:
    """A hundred times under calls and sleepers; five of them the whole server goes."""
    with Proxy(server.port) as proxy:
        async with opened(proxy.url(url)) as engine:
            one_turn = ask(await joined(engine))
            before = len(os.listdir("/proc/self/fd"))
            for number in range(100):
                calls: list[asyncio.Task[Any]] = [asyncio.create_task(work(engine, one_turn, 0.02))]
                calls += [asyncio.create_task(engine.counts(Filter())) for _ in range(3)]
                await asyncio.sleep(0.002)
                if number % 20:
                    await asyncio.to_thread(proxy.cut)
                else:
                    await asyncio.to_thread(server.restart)
                await asyncio.gather(*calls, return_exceptions=True)
            while True:
                try:
                    await engine.counts(Filter())
                    break
                except EngineUnavailable:
                    continue
            after = len(os.listdir("/proc/self/fd"))
            with server.connect() as admin:
                until(lambda: admin.execute(BACKENDS).fetchall()[0][0] <= 5)
            # Four for calls and one that listens, each with both sides of the proxy.
            assert after <= before + 15
        with server.connect() as admin:
            until(lambda: admin.execute(BACKENDS).fetchone() == (0,))


async def test_a_server_that_answers_no_more_is_left_behind(server: Postgres, url: str) -> None:
    """A black hole: the call ends in time, and the next one takes another connection."""
    with Proxy(server.port) as proxy:
        engine = Observed(PostgresEngine(proxy.url(url)), Bus(), timeout=1.0, tries=1)
        await engine.open()
        try:
            fault = proxy.hold_before(runs("penstock.put("))
            with pytest.raises(EngineTimeout, match="enqueue took more than 1 s"):
                await engine.enqueue([draft()])
            assert fault.has_happened
            assert (await engine.enqueue([draft()]))[0].created
        finally:
            await engine.close()


@pytest.mark.parametrize("cut", [Proxy.cut_before, Proxy.cut_after])
async def test_an_enqueue_that_was_cut_is_stored_once(
    server: Postgres, url: str, cut: Callable[..., Any]
) -> None:
    with Proxy(server.port) as proxy:
        engine = Observed(PostgresEngine(proxy.url(url)), Bus())
        await engine.open()
        try:
            cut(proxy, runs("penstock.put("))
            (receipt,) = await engine.enqueue([draft()])
            assert receipt.created
            assert len(await claim(engine, want=10)) == 1
        finally:
            await engine.close()


@pytest.mark.parametrize("cut", [Proxy.cut_before, Proxy.cut_after])
async def test_a_turn_that_was_cut_is_whole_or_not_at_all(
    server: Postgres, url: str, cut: Callable[..., Any]
) -> None:
    with Proxy(server.port) as proxy:
        async with opened(proxy.url(url)) as engine:
            job = await running(engine)
            assert job.worker is not None
            await put(engine)
            done = outcome(job, "succeeded")
            cut(proxy, runs("penstock.exchange"))
            with pytest.raises(EngineUnavailable):
                await engine.exchange(ask(job.worker, outcomes=[done]))
            held = await engine.held(job.worker)
            assert len(held) == 1
            assert (held[0].id != job.id) is (cut is Proxy.cut_after)
            (verdict,) = (await send(engine, job.worker, done)).verdicts
            assert verdict is Verdict.DONE


async def test_what_arrives_late_does_not_happen_once_a_later_call_has_returned(
    server: Postgres, url: str
) -> None:
    """A claim that nobody waits for would be a job that nobody has."""
    with Proxy(server.port) as proxy:
        async with opened(url) as direct:
            id, worker = await put(direct), await joined(direct)
        async with opened(proxy.url(url)) as engine:
            fault = proxy.hold_before(runs("penstock.exchange"))
            turn = asyncio.create_task(engine.exchange(ask(worker)))
            await asyncio.to_thread(fault.wait)
            backends = await asyncio.to_thread(_backends, server)
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
            assert await engine.held(worker) == []
            fault.release()
            await asyncio.to_thread(until, lambda: not backends & _backends(server))
            assert await engine.held(worker) == []
            assert (await stored(engine, id)).state is State.READY


# --- workers ------------------------------------------------------------------------------------


class Bench:
    """An application with a worker, and what its handlers did."""

    def __init__(self, url: str) -> None:
        self.app = Penstock(url)
        self.ran: list[int] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()

        @self.app.task(name="quick")
        async def quick(number: int) -> None:
            self.ran.append(number)

        @self.app.task(name="long")
        async def long() -> str:
            self.begun.set()
            while not self.may_end.is_set():  # noqa: ASYNC110 - the sign comes from a thread
                await asyncio.sleep(0.005)
            return "done"

        self.quick, self.long = quick, long


@pytest.fixture
def bench(url: str) -> Iterator[Bench]:
    bench = Bench(url)
    yield bench
    bench.app.close()


async def stubbornly(call: Callable[..., Any], *args: Any) -> Any:
    """As a caller that tries again while the store is away."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call(*args)
            except EngineUnavailable:
                continue


@pytest.mark.parametrize("end", [Postgres.stop, Postgres.kill])
async def test_a_handler_outlives_an_outage_that_is_longer_than_its_lease(
    server: Postgres, bench: Bench, end: Callable[[Postgres], None]
) -> None:
    """It goes on, ends, and is settled when the server is back: one attempt, and no rescue."""
    lease = 1.0
    async with bench.app.worker(lease=lease):
        job = await bench.long.aenqueue()
        await asyncio.to_thread(bench.begun.wait, PATIENCE)
        end(server)
        await asyncio.sleep(2 * lease)
        bench.may_end.set()
        server.start()
        assert await job.aresult(timeout=PATIENCE) == "done"
        record = await job.astatus()
        assert (record.attempt, record.crashes, record.failures) == (1, 0, 0)


async def test_every_job_is_done_though_backends_are_ended_at_random(
    server: Postgres, bench: Bench
) -> None:
    jobs = [await bench.quick.aenqueue(number) for number in range(200)]
    with server.connect() as admin:
        async with bench.app.worker(concurrency=5):
            for _ in range(20):
                await asyncio.to_thread(admin.execute, TERMINATE, (0.3,))
                await asyncio.sleep(0.02)
            for job in jobs:
                await stubbornly(job.aresult, PATIENCE)
    assert set(bench.ran) == set(range(200))
    assert {(await job.astatus()).state for job in jobs} == {State.SUCCEEDED}


async def test_every_job_is_done_though_the_server_is_killed_again_and_again(
    server: Postgres, bench: Bench
) -> None:
    jobs = []
    async with bench.app.worker(concurrency=5, lease=2.0):
        for number in range(60):
            if number % 20 == 10:
                server.kill()
                server.start()
            jobs.append(await stubbornly(bench.quick.aenqueue, number))
        for job in jobs:
            await stubbornly(job.aresult, PATIENCE)
    assert set(bench.ran) == set(range(60))


async def test_an_enqueue_fails_within_seconds_while_the_server_is_away(
    server: Postgres, bench: Bench
) -> None:
    await bench.quick.aenqueue(1)
    server.stop()
    try:
        with pytest.raises(EngineUnavailable):
            await bench.quick.aenqueue(2)
    finally:
        server.start()


@pytest.mark.parametrize("is_open", [False, True])
async def test_an_enqueue_waits_for_the_server_if_the_app_is_told_to(
    server: Postgres, url: str, is_open: bool
) -> None:
    async with Penstock(url, wait_for_store=PATIENCE, enqueue_timeout=PATIENCE) as app:
        faults: asyncio.Queue[Faulted] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        app.on(Faulted, lambda fault: loop.call_soon_threadsafe(faults.put_nowait, fault))
        if is_open:
            await app.aenqueue("work", {})
        server.stop()
        enqueuing = asyncio.create_task(app.aenqueue("work", {}))
        # Five tries are what everybody has.
        for _ in range(6):
            fault = await faults.get()
            assert fault.delay is not None or not is_open
        server.start()
        assert (await (await enqueuing).astatus()).state is State.READY


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_worker_stops_in_time_though_the_server_is_away(
    server: Postgres, bench: Bench, is_running: bool
) -> None:
    async with asyncio.timeout(PATIENCE):
        async with bench.app.worker(drain=0.2, grace=0.5):
            if is_running:
                await bench.long.aenqueue()
                await asyncio.to_thread(bench.begun.wait, PATIENCE)
            server.stop()
    server.start()


async def test_a_worker_stops_in_time_though_the_server_is_a_black_hole(
    server: Postgres, url: str
) -> None:
    """Its process is stopped, not ended: it takes connections and never answers."""
    with Postgres(fsync=False) as other:
        bench = Bench(other.url())
        async with asyncio.timeout(PATIENCE):
            async with bench.app.worker(drain=0.2, grace=0.5):
                await bench.long.aenqueue()
                await asyncio.to_thread(bench.begun.wait, PATIENCE)
                _freeze(other)
            await asyncio.to_thread(bench.app.close)


def _freeze(server: Postgres) -> None:
    from servers.warden import children

    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    for child in children(server.pid):
        os.kill(child, signal.SIGSTOP)
