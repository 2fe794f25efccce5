"""Every finding about an SQLite file, provoked by a real one."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock import Penstock
from penstock.core.finding import Finding
from penstock.engines.sqlite import checkup, schema


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def app(path: str) -> Iterator[Penstock]:
    """An app on a file that is not there yet."""
    with Penstock(f"sqlite:///{path}") as app:
        yield app


@pytest.fixture
def made(app: Penstock) -> Penstock:
    """The same on one that is, and that nobody has open."""
    app.counts()
    app.close()
    return app


def told(found: tuple[Finding, ...], check: str) -> tuple[str, str, str | None]:
    (finding,) = [each for each in found if each.check == check]
    return finding.level, finding.text, finding.next_step


def bad(found: tuple[Finding, ...]) -> list[str]:
    """The checks that found something worse than a note, but for what this machine is to blame."""
    worse = [each.check for each in found if each.level.is_bad]
    return [check for check in worse if check not in ("file_system", "disk")]


def files(path: str) -> set[str]:
    return set(os.listdir(os.path.dirname(path)))


NOT_OPENED = (
    "note",
    "jobs and workers were not checked, because the store could not be opened",
    "fix the errors above first, then run this again",
)


# --- is it there --------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_not_made(app, path):
    found = app.doctor()
    assert bad(found) == ["store"]
    assert told(found, "store") == (
        "error",
        f"there is no file {path!r}",
        "correct the URL; the first enqueue, or penstock migrate, makes a new store",
    )
    assert told(found, "jobs") == NOT_OPENED
    assert files(path) == set()


def test_a_directory_that_is_not_there(tmp_path):
    with Penstock(f"sqlite:///{tmp_path}/missing/jobs.db") as app:
        step = told(app.doctor(), "store")[2]
    assert step == f"correct the URL, or make the directory '{tmp_path}/missing'"


def test_a_file_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    with Penstock(f"sqlite:///{tmp_path}/file/jobs.db") as app:
        level, text, _ = told(app.doctor(), "store")
    assert (level, text) == (
        "error",
        f"file '{tmp_path}/file/jobs.db' cannot be reached: Not a directory",
    )


def test_a_directory_instead_of_a_file(app, path):
    Path(path).mkdir()
    found = app.doctor()
    assert bad(found) == ["store"]
    assert told(found, "store") == (
        "error",
        f"{path!r} is a directory",
        "correct the URL: name a file in it",
    )


def test_an_empty_file(app, path):
    Path(path).touch()
    assert told(app.doctor(), "store")[1] == f"file {path!r} is empty"
    assert files(path) == {"jobs.db"}


def test_a_file_that_is_no_database(app, path):
    Path(path).write_text("hello" * 1000)
    found = app.doctor()
    assert bad(found) == ["store"]
    assert told(found, "store")[1] == (
        f"file {path!r} is damaged or not a database: file is not a database"
    )


def test_the_database_of_another_program(app, path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    found = app.doctor()
    assert bad(found) == ["store"]
    assert told(found, "store")[1] == (
        f"file {path!r} is not a Penstock store: the file is the database of another program"
    )


def test_a_sound_file_is_left_as_it_is(made, path):
    before = files(path)
    found = made.doctor(thorough=True)
    assert bad(found) == []
    assert told(found, "integrity") == ("ok", "no page of the file is damaged", None)
    assert told(found, "journal") == ("ok", "journal mode wal", None)
    assert told(found, "lock") == ("ok", "writers take turns", None)
    assert files(path) == before


def test_a_file_that_is_in_use_is_looked_at_as_well(app):
    app.enqueue("send")
    found = app.doctor(thorough=True)
    assert bad(found) == ["workers"]
    assert told(found, "journal") == ("ok", "journal mode wal", None)


# --- its schema ---------------------------------------------------------------------------------


def test_a_schema_that_is_older_is_not_migrated(made, path):
    newest = schema.newest()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 0")
    found = made.doctor()
    assert bad(found) == ["schema"]
    assert told(found, "schema") == (
        "error",
        f"the store has schema version 0, and this Penstock needs {newest}",
        "run penstock migrate, or start a worker, which does so",
    )
    assert told(found, "jobs") == NOT_OPENED
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (0,)


def test_a_schema_that_is_newer(made, path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    found = made.doctor()
    assert bad(found) == ["schema"]
    assert told(found, "schema")[2] == ("upgrade Penstock here: a newer one has migrated the store")


# --- is it sound --------------------------------------------------------------------------------


def test_a_damaged_file(made, path):
    made.enqueue("send")
    made.close()
    with open(path, "r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096)
    assert "integrity" not in {each.check for each in made.doctor()}
    level, text, step = told(made.doctor(thorough=True), "integrity")
    assert level == "error"
    assert text.startswith("the file is damaged: ")
    assert step is not None
    assert "restore a backup" in step


def test_another_journal_mode(made, path):
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode = delete").fetchone() == ("delete",)
    found = made.doctor()
    assert bad(found) == ["journal"]
    assert told(found, "journal")[1] == (
        "journal mode delete: another program has changed it, and readers block writers"
    )


def test_a_log_that_a_reader_keeps_open(made, path, monkeypatch):
    monkeypatch.setattr(checkup, "LARGE_LOG", 1_000_000)
    assert told(made.doctor(), "wal")[0] == "ok"
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM job").fetchall()
        # Two megabytes that cannot be folded in.
        for _ in range(4):
            made.enqueue("send", {"much": "x" * 500_000})
        level, text, step = told(made.doctor(), "wal")
    assert level == "warning"
    assert text.endswith("MB and is not checkpointed: a reader keeps it open")
    assert step is not None
    assert f"(lsof {path}-wal)" in step


# --- who may, and who has it --------------------------------------------------------------------


def test_a_file_that_may_not_be_written(made, path):
    os.chmod(path, 0o444)
    found = made.doctor()
    assert bad(found) == ["permissions"]
    assert told(found, "permissions") == (
        "error",
        f"this user cannot read and write {path}",
        "give it permission on the file, those beside it, and their directory",
    )


def test_a_lock_file_that_others_may_not_write(made, path):
    os.chmod(path, 0o664)
    os.chmod(f"{path}-gate", 0o600)
    os.chmod(f"{path}-main", 0o664)
    found = made.doctor()
    assert bad(found) == ["permissions"]
    assert told(found, "permissions") == (
        "warning",
        f"users who may write the store may not write {path}-gate",
        f"chmod 664 {path}-gate",
    )


def test_a_stopped_process_that_has_the_write_lock(made, path, monkeypatch):
    monkeypatch.setattr(checkup, "LOCK_PATIENCE", 0.05)
    code = (
        "import fcntl, os, signal, sys\n"
        f"lock = os.open({path + '-main'!r}, os.O_RDWR)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"locked\n"
            found = made.doctor()
        finally:
            other.send_signal(signal.SIGKILL)
    assert bad(found) == ["lock"]
    level, text, step = told(found, "lock")
    assert (level, text) == (
        "error",
        f"process {other.pid} has had the write lock for 0.05 s: no other process can write",
    )
    assert step == (
        f"see what it is (ps -fp {other.pid}): continue it (kill -CONT) if it is stopped, or end it"
    )
    assert bad(made.doctor()) == []


def test_who_has_a_lock_is_not_always_told(made, path, monkeypatch):
    monkeypatch.setattr(checkup, "LOCK_PATIENCE", 0.05)
    monkeypatch.setattr(checkup, "_holder", lambda name: None)
    with open(f"{path}-main", "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, text, step = told(made.doctor(), "lock")
    assert text.startswith("a process has had the write lock")
    assert step is not None
    assert step.startswith(f"find it (fuser {path}-main)")


# --- where it lies ------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no file system in memory")
def test_a_file_in_memory_is_warned_of():
    with TemporaryDirectory(dir="/dev/shm") as place, Penstock(f"sqlite:///{place}/j.db") as app:
        app.counts()
        found = app.doctor()
    assert told(found, "file_system") == (
        "warning",
        "the file is on tmpfs, in memory: it is gone after a restart of the machine",
        "move it to a disk, unless that is what you want",
    )


MOUNTS = """\
25 1 254:0 / / rw,relatime - overlay overlay rw,lowerdir=/a
26 25 0:23 / /data rw,relatime shared:1 - ext4 /dev/vdb rw
27 26 0:24 / /data/with\\040space rw - nfs4 server:/export rw
28 25 0:25 / /mnt/smb rw - cifs //server/share rw
29 25 0:26 / /database rw - 9p host rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/jobs.db", "overlay"),
        ("/data/jobs.db", "ext4"),
        ("/data/with space/jobs.db", "nfs4"),
        ("/mnt/smb/a/jobs.db", "cifs"),
        ("/database/jobs.db", "9p"),
    ],
)
def test_the_longest_mount_above_a_file_tells_its_file_system(path, kind):
    assert checkup.kind_of(path, MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_warned_of(kind):
    found = checkup.judged(kind)
    assert (found.level, found.text, found.next_step) == (
        "warning",
        f"the file is on {kind}, a network file system: locks are not safe there",
        "move the file to a local disk of one machine, and run all workers there",
    )


def test_a_file_inside_a_container_is_warned_of():
    found = checkup.judged("overlay")
    assert found.text == (
        "the file is on overlay, inside a container: it goes when the container goes"
    )
    assert found.next_step is not None
    assert "docker run -v" in found.next_step


def test_a_system_that_does_not_tell_is_no_finding(made, monkeypatch, tmp_path):
    monkeypatch.setattr(checkup, "MOUNTS", str(tmp_path / "nothing"))
    assert told(made.doctor(), "file_system")[:2] == (
        "ok",
        "this system does not tell what the file is on",
    )


@pytest.mark.parametrize(
    ("free", "level", "text"),
    [
        (80 * 10**9, "ok", "80.0 GB are free on the disk, the store has 1.5 MB"),
        (400_000_000, "warning", "only 400.0 MB are free on the disk, the store has 1.5 MB"),
        (900_000, "error", "only 900.0 kB are free on the disk, the store has 1.5 MB"),
        (3 * 10**12, "ok", "3.0 TB are free on the disk, the store has 1.5 MB"),
    ],
)
def test_a_disk_that_fills_up_is_told_by_degrees(free, level, text):
    found = checkup.room(free, 1_500_000)
    assert (found.level, found.text) == (level, text)
    step = "no job can be enqueued or settled"
    assert (found.next_step is None) if level == "ok" else (step in str(found.next_step))


def test_an_old_library_is_worth_a_note(made, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 2))
    level, text, _ = told(made.doctor(), "sqlite")
    assert level == "note"
    assert text.endswith("is older than 3.51.3, which fixes a rare fault in its log")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    assert told(made.doctor(), "sqlite")[0] == "ok"
