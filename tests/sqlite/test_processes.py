"""Real processes on one file: killed at every statement, stopped, racing, forked."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from conformance.steps import ask, bury, claim, draft, everything, outcome, put, send
from penstock.core.ids import new_id
from penstock.engines import changes
from penstock.engines.records import Filter, News, QueueSettings, WorkerInfo
from penstock.engines.sqlite.engine import SqliteEngine
from penstock.errors import EngineBusy, EngineClosed

PATIENCE = 60.0
"""Real seconds after which a process that should answer counts as hung."""

# Each process is forked from a server that has no thread and no open file.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["penstock.engines.sqlite.engine", "conformance.steps"])

Act = Callable[[str, Connection], Coroutine[Any, Any, None]]


def _live(act: Act, path: str, parent: Connection) -> None:
    asyncio.run(act(path, parent))


@contextmanager
def process(act: Act, path: str) -> Iterator[tuple[Any, Connection]]:
    """Another process that does ``act``; it is gone at the end."""
    here, there = processes.Pipe()
    child = processes.Process(target=_live, args=(act, path, there), daemon=True)
    child.start()
    there.close()
    try:
        yield child, here
    finally:
        child.kill()
        child.join()
        here.close()


def answer(pipe: Connection) -> Any:
    assert pipe.poll(PATIENCE), "the process is silent"
    return pipe.recv()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def kill_here(number: signal.Signals) -> None:
    """Send the process a signal that this very thread takes, before it does anything else."""
    signal.pthread_kill(threading.get_ident(), number)


class Signalled(SqliteEngine):
    """Sends its own process a signal right before its statement number ``at``."""

    def __init__(self, path: str, at: int, number: signal.Signals) -> None:
        super().__init__(path)
        self._at = at
        self._number = number
        self.run = 0

    def _connect(self, wait: float) -> sqlite3.Connection:
        connection = super()._connect(wait)
        if wait:  # the connection of the steps, not the one of the watch
            connection.set_trace_callback(self._count)
        return connection

    def _count(self, statement: str) -> None:
        self.run += 1
        if self.run == self._at:
            kill_here(self._number)


# --- killed ------------------------------------------------------------------------------------


async def whole_life(engine: SqliteEngine, tell: Callable[[str], None]) -> None:
    """Every kind of write, each told as soon as it is acknowledged."""
    await engine.open()
    await put(engine, "plain")
    tell("plain")
    await engine.enqueue([draft("many-1"), draft("many-2"), draft("later", delay=0.001)])
    tell("many-1 many-2 later")
    await put(engine, "known", remember=1000, unique="key")
    tell("known")
    await engine.join(WorkerInfo(id="doomed", tasks=("work",)))
    jobs = (await engine.exchange(ask("doomed", want=3))).jobs
    kinds = ["succeeded", "retry", "released"]
    await send(engine, "doomed", *map(outcome, jobs, kinds))
    await changes.cancel(engine, ["known"], "for a test")
    await engine.close()


async def dies_at(path: str, parent: Connection) -> None:
    engine = Signalled(path, parent.recv(), signal.SIGKILL)
    await whole_life(engine, parent.send)
    parent.send(engine.run)


def told(pipe: Connection) -> list[Any]:
    heard = []
    while True:
        try:
            heard.append(answer(pipe))
        except EOFError:
            return heard


async def test_a_process_killed_before_any_statement_loses_nothing_and_blocks_nobody(
    tmp_path: Path,
) -> None:
    statements = 1
    at = 0
    while at <= statements:
        path = str(tmp_path / f"{at}.db")
        with process(dies_at, path) as (_, pipe):
            pipe.send(at)  # 0 is never reached: it tells how many there are
            heard = told(pipe)
        if at == 0:
            statements = heard.pop()
        # What falls due meanwhile costs a statement or two: the last of them may not come.
        acknowledged = {id for line in heard if isinstance(line, str) for id in line.split()}

        engine = SqliteEngine(path, busy_timeout=PATIENCE)
        await engine.open()
        assert acknowledged <= {job.id for job in await everything(engine)}, at
        await bury(engine, *[worker.id for worker in await engine.workers()])
        await put(engine, "after")
        await changes.cancel(engine, ["later"], "need not wait")
        while jobs := await claim(engine, want=10):
            for job in jobs:
                await send(engine, job.worker, outcome(job, "succeeded"))
        left = {job.id for job in await everything(engine) if not job.state.is_final}
        assert left <= {"plain", "many-1", "many-2"}, at  # a retry that is due at once
        await engine.promote(10)
        assert len(await claim(engine, want=10)) == len(left), at
        await engine.close()
        with closing(sqlite3.connect(path)) as file:
            assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",), at
        at += 1
    assert statements > 50


# --- stopped -----------------------------------------------------------------------------------


async def stops_in_a_step(path: str, parent: Connection) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    assert engine._connection.raw is not None

    def stop(statement: str) -> None:
        if statement == "COMMIT":
            parent.send(os.getpid())
            kill_here(signal.SIGSTOP)

    engine._connection.raw.set_trace_callback(stop)
    await put(engine, "slow")
    parent.send("done")


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL], ids=str)
async def test_a_process_stopped_while_it_writes_is_named_and_blocks_only_until_it_goes_on(
    path: str, then: signal.Signals
) -> None:
    engine = SqliteEngine(path, busy_timeout=0.2)
    await engine.open()
    with process(stops_in_a_step, path) as (child, pipe):
        pid = answer(pipe)
        with pytest.raises(EngineBusy, match="stopped or hung process"):
            await put(engine, "a")
        assert await engine.get(["slow", "a"]) == [None, None]  # readers wait for nobody
        os.kill(pid, then)
        if then == signal.SIGCONT:
            assert answer(pipe) == "done"
        child.join(PATIENCE)
        await put(engine, "a")
        slow, _ = await engine.get(["slow", "a"])
        assert (slow is not None) == (then == signal.SIGCONT)
    await engine.close()


# --- racing ------------------------------------------------------------------------------------

RACERS = 4


async def races_to_open(path: str, parent: Connection) -> None:
    parent.send("here")
    parent.recv()
    engine = SqliteEngine(path)
    await engine.open()
    ids = [f"same-{number}" for number in range(20)]
    same = [(await engine.enqueue([draft(id, remember=99)]))[0].created for id in ids]
    keys = [(await engine.enqueue([draft(unique=id, queue="unique")]))[0].created for id in ids]
    parent.send((sum(same), sum(keys)))
    await engine.close()


async def races_to_claim(path: str, parent: Connection) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    worker = new_id()
    await engine.join(WorkerInfo(id=worker, tasks=("work",)))
    parent.send("here")
    parent.recv()
    claimed, most = [], 0
    while True:
        jobs = (await engine.exchange(ask(worker, want=3))).jobs
        claimed += [job.id for job in jobs]
        running = await engine.counts(Filter())
        most = max(most, sum(count.jobs for count in running if count.state == "running"))
        await send(engine, worker, *(outcome(job, "succeeded") for job in jobs))
        if not jobs and not any(count.state == "ready" for count in await engine.counts(Filter())):
            break
    parent.send((claimed, most))
    await engine.close()


def race(act: Act, path: str) -> list[Any]:
    """Let several processes go at once; return what each says in the end."""
    with (
        process(act, path) as (_, one),
        process(act, path) as (_, two),
        process(act, path) as (_, three),
        process(act, path) as (_, four),
    ):
        pipes = [one, two, three, four]
        assert [answer(pipe) for pipe in pipes] == ["here"] * RACERS
        for pipe in pipes:
            pipe.send("go")
        return [answer(pipe) for pipe in pipes]


async def test_processes_that_make_a_store_at_once_agree_on_ids_and_keys(path: str) -> None:
    same, keys = zip(*race(races_to_open, path), strict=True)
    assert (sum(same), sum(keys)) == (20, 20)


async def test_processes_that_claim_at_once_share_no_job_and_keep_to_the_limit(path: str) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.set_queue("default", QueueSettings(max_running=5))
    await engine.enqueue([draft(f"job-{number}") for number in range(200)])
    answers = race(races_to_claim, path)
    assert Counter(id for claimed, _ in answers for id in claimed) == Counter(
        f"job-{number}" for number in range(200)
    )
    assert max(most for _, most in answers) <= 5
    await engine.close()


# --- forked ------------------------------------------------------------------------------------


async def forks(path: str, parent: Connection) -> None:
    """Its child tries the handle that it inherited, then opens it anew."""
    engine = SqliteEngine(path)
    await engine.open()
    await put(engine, "before")
    if os.fork():
        assert os.wait()[1] == 0
        await put(engine, "parent")
        parent.send("done")
        return

    async def in_the_child() -> None:
        with pytest.raises(EngineClosed):
            await engine.get(["before"])
        with pytest.raises(EngineClosed):
            await engine.version(News.CHANGED)
        await engine.close()
        await engine.open()
        await put(engine, "child")
        await engine.close()

    asyncio._set_running_loop(None)
    asyncio.new_event_loop().run_until_complete(in_the_child())
    os._exit(0)


async def test_a_handle_is_closed_in_a_forked_child_and_can_be_opened_there(path: str) -> None:
    with process(forks, path) as (_, pipe):
        assert answer(pipe) == "done"
    engine = SqliteEngine(path)
    await engine.open()
    assert {job.id for job in await everything(engine)} == {"before", "parent", "child"}
    await engine.close()


async def test_a_fork_does_not_wait_for_the_gate(path: str) -> None:
    engine, other = SqliteEngine(path, busy_timeout=5.0), SqliteEngine(path)
    await engine.open()
    await other.open()
    assert engine._write_lock is not None
    assert other._write_lock is not None
    take, waits = engine._write_lock._take, threading.Event()

    def tell_and_take(lock: int, deadline: float) -> None:
        waits.set()
        take(lock, deadline)

    engine._write_lock._take = tell_and_take  # type: ignore[method-assign]
    with other._write_lock.writing(1.0):
        putting = asyncio.create_task(put(engine, "a"))
        assert await asyncio.to_thread(waits.wait, PATIENCE)
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
    await putting  # it would have given up if the fork had waited for it
    await engine.close()
    await other.close()
