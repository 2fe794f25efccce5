"""The blocking way in: a job is stored on the calling thread, or not at all."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Sequence

import pytest

from conformance.steps import created, known
from penstock.core.ids import new_id
from penstock.core.job import Draft
from penstock.engines.records import Filter, Receipt
from penstock.engines.sqlite.engine import SqliteEngine
from penstock.engines.sqlite.enqueue import SqliteInlet
from penstock.engines.sqlite.write_lock import WriteLock
from penstock.errors import EngineReadOnly, EngineReentered, ItemRefused

PATIENCE = 60.0

Store = Callable[[sqlite3.Connection, Sequence[Draft]], list[Receipt]]


def draft(**fields) -> Draft:
    return Draft(id=new_id(), task="work", **fields)


@pytest.fixture
async def engine(tmp_path):
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    yield engine
    await engine.close()


async def jobs_in(engine: SqliteEngine) -> set[str]:
    return {job.id for job in (await engine.find(Filter(), None, 10_000)).jobs}


def inlet_of(engine: SqliteEngine) -> SqliteInlet:
    assert engine.inlet is not None
    return engine.inlet


def put(engine: SqliteEngine, *drafts: Draft) -> list[Receipt] | None:
    return inlet_of(engine).put(drafts, None)


async def test_jobs_are_stored_on_the_calling_thread(engine, monkeypatch):
    threads: list[int] = []
    inlet = inlet_of(engine)
    store = inlet._store

    def noted(raw, drafts):
        threads.append(threading.get_ident())
        return store(raw, drafts)

    inlet._store = noted
    jobs = [draft(), draft()]

    assert put(engine, *jobs) == [created(job.id) for job in jobs]
    assert threads == [threading.get_ident()]
    assert await jobs_in(engine) == {job.id for job in jobs}


async def test_a_job_that_is_there_already_is_found(engine):
    job = draft()
    await engine.enqueue([job])

    assert put(engine, job) == [known(job.id)]


async def test_a_bad_item_is_refused_and_stores_nothing(engine):
    with pytest.raises(ItemRefused, match="NUL"):
        put(engine, draft(), draft(queue="a\0b"))
    assert await jobs_in(engine) == set()


async def test_a_caller_that_finds_another_thread_in_it_is_sent_away(engine):
    """It neither waits nor stores: the Batcher commits for all of them at once."""
    is_in, may_go = threading.Event(), threading.Event()
    inlet = inlet_of(engine)
    store = inlet._store

    def slow(raw, drafts):
        is_in.set()
        may_go.wait(PATIENCE)
        return store(raw, drafts)

    inlet._store = slow
    first = draft()
    putting = asyncio.create_task(asyncio.to_thread(put, engine, first))
    await asyncio.to_thread(is_in.wait, PATIENCE)

    assert put(engine, draft()) is None
    may_go.set()

    assert await putting == [created(first.id)]
    assert await jobs_in(engine) == {first.id}


async def test_while_another_process_writes_the_caller_is_sent_away(engine, tmp_path):
    lock = WriteLock(str(tmp_path / "jobs.db"), "test", engine.clock)
    with lock.writing(1.0):
        assert put(engine, draft()) is None

    job = draft()
    assert put(engine, job) == [created(job.id)]
    assert await jobs_in(engine) == {job.id}
    lock.close()


async def test_a_program_that_knows_nothing_of_the_write_lock_is_not_waited_for(engine, tmp_path):
    stranger = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    assert put(engine, draft()) is None

    stranger.execute("COMMIT")
    stranger.close()
    job = draft()
    assert put(engine, job) == [created(job.id)]


async def test_an_error_of_sqlite_is_told_in_the_words_of_the_contract(engine):
    put(engine, draft())
    raw = inlet_of(engine)._connection.raw
    assert raw is not None
    raw.execute("PRAGMA query_only = 1")

    with pytest.raises(EngineReadOnly):
        put(engine, draft())


async def test_only_an_open_handle_has_an_inlet(tmp_path):
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    assert engine.inlet is None
    await engine.open()
    inlet = inlet_of(engine)
    await engine.close()
    assert engine.inlet is None
    assert inlet.put([draft()], None) is None
    assert inlet._connection.raw is None


async def test_a_signal_handler_in_the_middle_of_a_put_is_told_so(engine):
    answers: list[BaseException] = []

    def handler(*_):
        try:
            put(engine, draft())
        except EngineReentered as error:
            answers.append(error)

    inlet = inlet_of(engine)
    store = inlet._store

    def interrupted(raw, drafts):
        os.kill(os.getpid(), signal.SIGUSR1)
        return store(raw, drafts)

    inlet._store = interrupted
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        job = draft()
        assert put(engine, job) == [created(job.id)]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [str(error) for error in answers] == [
        f"{engine.traits.name} is being written by this very thread: it was interrupted there; "
        "let a signal handler or a finaliser note what to enqueue, and enqueue it afterwards"
    ]
    assert await jobs_in(engine) == {job.id}


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_exception_out_of_nowhere_leaves_no_lock_and_no_half(engine, tmp_path, moment):
    class Interrupted(BaseException): ...

    inlet = inlet_of(engine)
    store = inlet._store

    def interrupted(raw, drafts):
        if moment == "after":
            store(raw, drafts)
        raise Interrupted

    inlet._store = interrupted
    with pytest.raises(Interrupted):
        put(engine, draft())
    inlet._store = store

    other = SqliteEngine(str(tmp_path / "jobs.db"), busy_timeout=5.0)
    await other.open()
    mine, theirs = draft(), draft()
    assert await asyncio.to_thread(put, engine, mine) == [created(mine.id)]
    assert put(other, theirs) == [created(theirs.id)]
    assert await jobs_in(other) == {mine.id, theirs.id}
    await other.close()


async def test_an_exception_while_a_lock_is_being_taken_leaves_it_free(engine, monkeypatch):
    """The system has given the lock, and Python has not noted it yet."""

    class Interrupted(BaseException): ...

    def interrupted(*args):
        flock(*args)
        raise Interrupted

    flock = fcntl.flock
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", interrupted)
        with pytest.raises(Interrupted):
            put(engine, draft())

    job = draft()
    await engine.enqueue([job])
    assert await jobs_in(engine) == {job.id}


async def test_after_a_fork_both_sides_go_on(engine):
    before, after = draft(), draft()
    put(engine, before)
    child = os.fork()
    if child == 0:
        os._exit(0 if inlet_of(engine)._connection.raw is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert put(engine, after) == [created(after.id)]
    assert await jobs_in(engine) == {before.id, after.id}


async def test_a_forked_child_stores_over_a_connection_of_its_own(engine):
    before, in_child = draft(), draft()
    put(engine, before)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if put(engine, in_child) == [created(in_child.id)] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert await jobs_in(engine) == {before.id, in_child.id}
