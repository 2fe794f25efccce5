"""What can be wrong with an SQLite file: each gets its name, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from conformance.steps import claim_one, draft, everything, put, settle, stored
from penstock.core.job import State
from penstock.engines.records import Filter, News
from penstock.engines.sql_files import migrations
from penstock.engines.sqlite import schema
from penstock.engines.sqlite.engine import SqliteEngine
from penstock.engines.sqlite.write_lock import try_lock
from penstock.errors import (
    EngineBusy,
    EngineClosed,
    EngineCorrupt,
    EngineFull,
    EngineReadOnly,
    EngineReplaced,
    EngineUnavailable,
    SchemaMismatch,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@contextmanager
def write_lock(path: str) -> Iterator[None]:
    """Another program writes, and knows nothing of our gate."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def test_a_locked_file_says_so_and_takes_the_job_when_it_is_free(path: str) -> None:
    engine = SqliteEngine(path, busy_timeout=0.1)
    await engine.open()
    with write_lock(path), pytest.raises(EngineBusy, match="locked by another process"):
        await engine.enqueue([draft("a")])
    assert (await engine.enqueue([draft("a")]))[0].created
    await engine.close()


async def test_a_closed_gate_says_so_and_opens_again(path: str) -> None:
    engine, other = SqliteEngine(path, busy_timeout=0.1), SqliteEngine(path)
    await engine.open()
    await other.open()
    assert other._write_lock is not None
    with other._write_lock.writing(1.0), pytest.raises(EngineBusy, match="stopped or hung process"):
        await engine.enqueue([draft("a")])
    assert (await engine.enqueue([draft("a")]))[0].created
    await engine.close()
    await other.close()


async def test_a_read_only_connection_says_so_and_keeps_the_running_job(path: str) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await put(engine, "a")
    job = await claim_one(engine)
    assert engine._connection.raw is not None
    engine._connection.raw.execute("PRAGMA query_only = 1")
    with pytest.raises(EngineReadOnly, match="give this user write permission"):
        await settle(engine, job, "succeeded")
    engine._connection.raw.execute("PRAGMA query_only = 0")
    await settle(engine, job, "succeeded")
    assert (await stored(engine, "a")).state is State.SUCCEEDED
    await engine.close()


def test_a_file_that_cannot_be_written_is_refused_by_name(path: str, tmp_path: Path) -> None:
    """As another user, because root may write everything."""
    script = f"""
        import asyncio, os, sys
        from penstock.engines.sql_files import migrations
        from penstock.engines.sqlite.engine import SqliteEngine
        migrations("sqlite")  # read before this becomes a user who may read nothing
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            asyncio.run(SqliteEngine({path!r}).open())
        except Exception as error:
            print(type(error).__name__, error)
    """
    sqlite3.connect(path).close()
    os.chmod(path, 0o444)
    os.chmod(tmp_path, 0o555)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            os.chmod(parent, parent.stat().st_mode | 0o055)
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert "EngineReadOnly" in run.stdout, run.stderr
    assert "write permission" in run.stdout


async def test_a_full_disk_says_so_and_stores_all_or_nothing(path: str) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await put(engine, "a")
    job = await claim_one(engine)
    assert engine._connection.raw is not None
    (pages,) = engine._connection.raw.execute("PRAGMA page_count").fetchone()
    engine._connection.raw.execute(f"PRAGMA max_page_count = {pages}")
    big = [draft(f"big-{number}", payload=b"{}" + b" " * 100_000) for number in range(20)]
    with pytest.raises(EngineFull, match="free space"):
        await engine.enqueue(big)
    assert await engine.get(["big-0", "big-19"]) == [None, None]
    engine._connection.raw.execute("PRAGMA max_page_count = 1000000")
    assert all(receipt.created for receipt in await engine.enqueue(big))
    await settle(engine, job, "succeeded")
    await engine.close()


def test_a_file_system_without_room_is_named_and_the_store_survives(path: str) -> None:
    """The system itself refuses to let the file grow."""
    script = f"""
        import asyncio, resource, signal
        from penstock.core.job import Draft
        from penstock.engines.sqlite.engine import SqliteEngine
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        async def main():
            engine = SqliteEngine({path!r})
            await engine.open()
            await engine.enqueue([Draft(id="first", task="t")])
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            drafts = [Draft(id=f"big-{{n}}", task="t", payload=b" " * 100_000) for n in range(20)]
            try:
                await engine.enqueue(drafts)
            except Exception as error:
                print(type(error).__name__, error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            print([job is not None for job in await engine.get(["first", "big-0", "big-19"])])
            print([receipt.created for receipt in await engine.enqueue(drafts)].count(True))
            await engine.close()

        asyncio.run(main())
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    error, kept, stored_later = run.stdout.splitlines()
    assert error.startswith(("EngineFull", "EngineUnavailable")), run.stderr
    assert kept == "[True, False, False]"
    assert stored_later == "20"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)  # this process was not touched


async def test_a_damaged_file_is_refused_and_left_alone(path: str) -> None:
    Path(path).write_bytes(b"this is no database" * 100)
    with pytest.raises(EngineCorrupt, match="restore a backup"):
        await SqliteEngine(path).open()
    assert Path(path).read_bytes().startswith(b"this is no database")


async def test_damage_inside_the_file_is_named_when_it_is_met(path: str) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.enqueue([draft(payload=b"x" * 2000) for _ in range(500)])
    await engine.close()
    with open(path, "r+b") as file:
        file.seek(3 * 4096)
        file.write(os.urandom(40 * 4096))
    again = SqliteEngine(path)
    with pytest.raises(EngineCorrupt):
        await again.open()
        await again.counts(Filter())
        await again.get(["x"])
    await again.close()


async def test_another_programs_database_is_refused_and_left_alone(path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE customers (id)")
    other.commit()
    with pytest.raises(EngineCorrupt, match="database of another program"):
        await SqliteEngine(path).open()
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("customers",)]
    other.close()


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    engine = SqliteEngine(str(tmp_path / "nowhere" / "jobs.db"))
    with pytest.raises(EngineUnavailable, match=r"there is no directory .*nowhere.*make it first"):
        await engine.open()
    os.mkdir(tmp_path / "nowhere")
    await engine.open()
    await engine.close()


async def test_a_newer_schema_is_refused(path: str) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(SchemaMismatch, match=r"version 99.*upgrade Penstock in this process"):
        await engine.open()


async def test_an_older_schema_is_brought_up_to_date_on_open(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await put(engine, "a")
    await engine.close()
    later = (*migrations("sqlite"), "CREATE TABLE added_later (x);")
    monkeypatch.setattr(schema, "migrations", lambda folder: later)
    await engine.open()
    assert (await engine.migrate()).newest == len(later)
    assert (await stored(engine, "a")).id == "a"
    await engine.close()
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT count(*) FROM added_later").fetchone() == (0,)
    raw.close()


async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.close()
    broken = (*migrations("sqlite"), "CREATE TABLE half (x);\nCREATE TABLE job (x);")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda folder: broken)
        with pytest.raises(EngineUnavailable, match="already exists"):
            await engine.open()
    await engine.open()
    assert (await engine.migrate()).newest == len(migrations("sqlite"))
    await engine.close()


async def test_a_handle_that_is_not_open_says_so(path: str) -> None:
    engine = SqliteEngine(path)
    with pytest.raises(EngineClosed, match="is not open"):
        await engine.enqueue([draft()])
    with pytest.raises(EngineClosed):
        await engine.version(News.CHANGED)


async def test_a_handle_can_be_opened_again_after_close(path: str) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await put(engine, "a")
    await engine.close()
    await engine.close()
    await engine.open()
    assert (await stored(engine, "a")).id == "a"
    await engine.close()


@pytest.mark.parametrize(("option", "level"), [("normal", 1), ("full", 2)])
async def test_the_durability_option_reaches_sqlite(path: str, option: str, level: int) -> None:
    engine = SqliteEngine(path, synchronous=option)  # type: ignore[arg-type]
    await engine.open()
    assert engine._connection.raw is not None
    assert engine._connection.raw.execute("PRAGMA synchronous").fetchone() == (level,)
    assert engine._connection.raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await engine.close()


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
async def test_a_file_that_lost_its_name_takes_no_more_jobs(path: str, is_replaced: bool) -> None:
    engine, other = SqliteEngine(path), SqliteEngine(path)
    await engine.open()
    await put(engine, "a")
    for suffix in ("", "-wal", "-shm"):
        os.unlink(path + suffix)
    if is_replaced:
        await other.open()
    with pytest.raises(
        EngineReplaced, match=r"deleted or replaced.*put it back, or close and open anew"
    ):
        await engine.enqueue([draft("b")])
    with pytest.raises(
        EngineReplaced, match=r"deleted or replaced.*put it back, or close and open anew"
    ):
        await engine.get(["a"])
    await engine.close()
    await engine.open()
    await put(engine, "b")
    if is_replaced:
        assert (await stored(other, "b")).id == "b"
    await engine.close()
    await other.close()


async def test_whoever_may_use_the_file_may_use_its_locks(path: str) -> None:
    """An operator with a private umask who comes first does not lock the service out."""
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 0")
    os.chmod(path, 0o660)
    before = os.umask(0o077)
    try:
        engine = SqliteEngine(path)
        await engine.open()
    finally:
        os.umask(before)
    for suffix in ("-gate", "-main"):
        assert os.stat(path + suffix).st_mode & 0o777 == 0o660
    await engine.close()


async def test_all_names_of_a_file_share_its_write_lock(path: str, tmp_path: Path) -> None:
    link = tmp_path / "other" / "link.db"
    link.parent.mkdir()
    engine = SqliteEngine(path)
    await engine.open()
    link.symlink_to(path)
    other = SqliteEngine(str(link), busy_timeout=0.05)
    await other.open()
    assert engine._write_lock is not None
    with engine._write_lock.writing(1.0), pytest.raises(EngineBusy):
        await other.enqueue([draft()])
    assert os.listdir(link.parent) == ["link.db"]
    await engine.close()
    await other.close()


async def test_a_call_that_was_cancelled_before_its_turn_does_not_happen(path: str) -> None:
    """Otherwise calls that nobody waits for keep those who do, one busy timeout each."""
    engine, other = SqliteEngine(path), SqliteEngine(path)
    await engine.open()
    await other.open()
    assert other._write_lock is not None
    with other._write_lock.writing(1.0):
        first = asyncio.create_task(put(engine, "a"))
        second = asyncio.create_task(put(engine, "b"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
    await first
    assert [job.id for job in await everything(engine)] == ["a"]
    await engine.close()
    await other.close()


async def test_who_only_reads_does_not_wait_for_a_writer_that_hangs(tmp_path: Path) -> None:
    """Neither to open the store nor to look into it: an operator has to see why nothing goes on."""
    first = SqliteEngine(str(tmp_path / "jobs.db"))
    await first.open()
    await first.enqueue([draft("a")])
    hanging = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    hanging.execute("BEGIN IMMEDIATE")
    lock = try_lock(str(tmp_path / "jobs.db"))
    assert lock is not None

    second = SqliteEngine(str(tmp_path / "jobs.db"), busy_timeout=0.01)
    await second.open()
    (job,) = await second.get(["a"])
    assert job is not None
    with pytest.raises(EngineBusy):
        await second.enqueue([draft("b")])

    hanging.close()
    lock.close()
    await second.close()
    await first.close()
