"""The counter: whoever finds it free serves itself, whoever does not shares a commit."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading

import pytest

from penstock.core.ids import new_id
from penstock.core.job import Draft
from penstock.engines import crowd
from penstock.engines.records import Filter, Receipt
from penstock.engines.sqlite.counter import SqliteCounter
from penstock.engines.sqlite.engine import SqliteEngine
from penstock.engines.sqlite.write_lock import FileGate
from penstock.engines.visitor import Visitor
from penstock.errors import EngineClosed, EngineReentered, EngineTimeout

PATIENCE = 60.0


def draft(**fields) -> Draft:
    return Draft(id=new_id(), task="work", **fields)


@pytest.fixture
async def engine(tmp_path):
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def batches(monkeypatch):
    """The sizes of all batches that went in, in their order."""
    sizes: list[int] = []
    enter = SqliteEngine._enter

    def counted(self, connection, drafts):
        receipts = enter(self, connection, drafts)
        sizes.append(len(drafts))
        return receipts

    monkeypatch.setattr(SqliteEngine, "_enter", counted)
    return sizes


async def jobs_in(engine: SqliteEngine) -> set[str]:
    return {job.id for job in (await engine.find(Filter(), None, 10_000)).jobs}


def counter_of(engine: SqliteEngine) -> SqliteCounter:
    assert engine._counter is not None
    return engine._counter


def in_line(engine: SqliteEngine) -> int:
    return len(counter_of(engine)._line)


async def until(sign) -> None:
    async with asyncio.timeout(PATIENCE):
        while not sign():  # noqa: ASYNC110  (another thread makes it)
            await asyncio.sleep(0.001)


async def test_a_caller_alone_serves_itself(engine, monkeypatch):
    """No other thread has a part in it."""
    monkeypatch.setattr(engine._thread, "post", None)
    job = draft()

    assert engine.put([job], None) == [Receipt(job.id, True)]
    assert await jobs_in(engine) == {job.id}


async def test_those_who_come_meanwhile_share_one_commit(tmp_path, batches, monkeypatch):
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    first, rest = draft(), [draft() for _ in range(5)]
    is_in, may_go = threading.Event(), threading.Event()
    enter = counter_of(engine)._step

    def slow(connection, drafts):
        is_in.set()
        may_go.wait(PATIENCE)
        return enter(connection, drafts)

    counter_of(engine)._step = slow
    leading = asyncio.create_task(asyncio.to_thread(engine.put, [first], None))
    await asyncio.to_thread(is_in.wait, PATIENCE)
    counter_of(engine)._step = enter
    # The store's thread takes the first who come and waits; the others gather behind it.
    come: list[object] = []
    assert engine._thread is not None
    post = engine._thread.post

    def counted(call):
        come.append(call)
        post(call)

    monkeypatch.setattr(engine._thread, "post", counted)
    following = [asyncio.create_task(asyncio.to_thread(engine.put, [job], None)) for job in rest]
    await until(lambda: len(come) == len(rest))
    may_go.set()

    receipts = await asyncio.gather(leading, *following)
    assert receipts == [[Receipt(job.id, True)] for job in (first, *rest)]
    assert batches[0] == 1
    assert sum(batches) == 1 + len(rest)
    assert len(batches) < 1 + len(rest)
    await engine.close()


async def test_while_another_process_writes_the_stores_thread_waits_in_turn(engine, tmp_path):
    gate = FileGate(str(tmp_path / "jobs.db"), "test", engine.clock)
    job = draft()
    with gate.freeing:
        assert gate.grab()
        calling = asyncio.create_task(asyncio.to_thread(engine.put, [job], None))
        await until(lambda: engine._thread._calls.empty() and in_line(engine) == 0)
        assert not calling.done()

    assert await calling == [Receipt(job.id, True)]
    gate.close()


async def test_a_stranger_who_writes_is_waited_for_as_well(engine, tmp_path, monkeypatch):
    """One who knows nothing of gates: SQLite itself says that it is busy."""
    stranger = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    has_its_turn = threading.Event()
    store = engine._store

    def waited(drafts):
        has_its_turn.set()
        return store(drafts)

    monkeypatch.setattr(engine, "_store", waited)
    job = draft()
    calling = asyncio.create_task(asyncio.to_thread(engine.put, [job], None))
    assert await asyncio.to_thread(has_its_turn.wait, PATIENCE)
    assert not calling.done()

    stranger.execute("COMMIT")
    stranger.close()
    assert await calling == [Receipt(job.id, True)]


async def test_a_wait_in_line_ends_in_time(engine, monkeypatch):
    monkeypatch.setattr(engine._thread, "post", lambda call: None)
    monkeypatch.setattr(SqliteCounter, "serve", lambda *_: None)

    with pytest.raises(EngineTimeout, match=r"enqueue took longer than 0.01 s"):
        engine.put([draft()], 0.01)
    assert in_line(engine) == 1
    counter_of(engine)._take(engine._store)
    assert await jobs_in(engine) == set()


async def test_who_has_gone_delays_nobody_and_stores_nothing(engine, monkeypatch):
    gone = Visitor(draft(), lambda *_: None)
    gone.leave()
    counter_of(engine)._line.append(gone)
    job = draft()

    assert engine.put([job], None) == [Receipt(job.id, True)]
    assert await jobs_in(engine) == {job.id}


async def test_a_closed_store_refuses(tmp_path):
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    with pytest.raises(EngineClosed):
        engine.put([draft()], None)
    await engine.open()
    counter = counter_of(engine)
    await engine.close()
    with pytest.raises(EngineClosed):
        engine.put([draft()], None)
    with pytest.raises(EngineClosed):
        counter.stand(draft(), None, engine._store)
    assert counter.serve([draft()]) is None
    assert counter._link.connection is None


async def test_one_in_line_is_told_when_the_store_closes_before_its_turn(engine, monkeypatch):
    monkeypatch.setattr(engine._thread, "post", lambda call: None)
    counter = counter_of(engine)
    standing = asyncio.create_task(asyncio.to_thread(counter.stand, draft(), None, engine._store))
    await until(lambda: len(counter._line) == 1)
    await engine.close()

    with pytest.raises(EngineClosed):
        await standing


async def test_who_has_several_jobs_and_finds_the_counter_taken_goes_the_other_way(engine):
    counter = counter_of(engine)
    counter._is_taken = True
    assert engine.put([draft(), draft()], None) is None
    assert await jobs_in(engine) == set()
    counter._is_taken = False
    jobs = [draft(), draft()]
    assert engine.put(jobs, None) == [Receipt(job.id, True) for job in jobs]


async def test_callers_who_alternate_share_instead_of_serving_themselves(engine, monkeypatch):
    """Two threads that come right after each other are taken for many, until they are not."""
    served: list[bool] = []
    serve = SqliteCounter.serve

    def noted(self, jobs):
        receipts = serve(self, jobs)
        served.append(receipts is not None)
        return receipts

    monkeypatch.setattr(SqliteCounter, "serve", noted)
    monkeypatch.setattr(crowd, "CROWD", PATIENCE)
    engine.put([draft()], None)
    await asyncio.to_thread(engine.put, [draft()], None)
    engine.put([draft()], None)
    engine.put([draft()], None)
    assert served == [True, False, False, True]

    monkeypatch.setattr(crowd, "CROWD", 0.0)
    await asyncio.to_thread(engine.put, [draft()], None)
    assert served[-1]


async def test_a_signal_handler_in_the_middle_of_an_enqueue_is_told_so(engine):
    answers: list[BaseException] = []

    def handler(*_):
        try:
            engine.put([draft()], None)
        except EngineReentered as error:
            answers.append(error)

    enter = counter_of(engine)._step

    def interrupted(connection, drafts):
        os.kill(os.getpid(), signal.SIGUSR1)
        return enter(connection, drafts)

    counter_of(engine)._step = interrupted
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        job = draft()
        assert engine.put([job], None) == [Receipt(job.id, True)]
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

    enter = counter_of(engine)._step

    def interrupted(connection, drafts):
        if moment == "after":
            enter(connection, drafts)
        raise Interrupted

    counter_of(engine)._step = interrupted
    with pytest.raises(Interrupted):
        engine.put([draft()], None)
    counter_of(engine)._step = enter

    other = SqliteEngine(str(tmp_path / "jobs.db"), busy_timeout=5.0)
    await other.open()
    mine, theirs = draft(), draft()
    assert engine.put([mine], None) == [Receipt(mine.id, True)]
    assert other.put([theirs], None) == [Receipt(theirs.id, True)]
    assert await jobs_in(other) == {mine.id, theirs.id}
    await other.close()


async def test_after_a_fork_both_sides_go_on(engine):
    before, after = draft(), draft()
    engine.put([before], None)
    child = os.fork()
    if child == 0:
        os._exit(0 if counter_of(engine)._link.connection is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert engine.put([after], None) == [Receipt(after.id, True)]
    assert await jobs_in(engine) == {before.id, after.id}


async def test_in_a_forked_child_the_counter_is_closed(engine):
    engine.put([draft()], None)
    child = os.fork()
    if child == 0:
        try:
            engine.put([draft()], None)
        except EngineClosed:
            os._exit(0 if counter_of(engine)._link.connection is None else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
