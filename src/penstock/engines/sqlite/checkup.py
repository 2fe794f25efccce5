"""A look at an SQLite store from outside: the file, where it lies, and who has it.

Nothing is made, migrated or locked for longer than a moment. The file itself is never opened but by
SQLite: closing it otherwise would take the locks of every connection of this process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final
from urllib.parse import quote

from penstock.core.finding import Finding, Level
from penstock.engines.sqlite import schema
from penstock.errors import EngineCorrupt, SchemaMismatch

MEGABYTE: Final = 1_000_000
LARGE_LOG: Final = 64 * MEGABYTE
"""SQLite folds the log in at about 4 MB; one that grows to this cannot be folded in."""
LITTLE_ROOM: Final = 500 * MEGABYTE
NO_ROOM: Final = 20 * MEGABYTE
LOCK_PATIENCE: Final = 2.0
"""Seconds after which a write lock that stays taken is worth a finding."""
LOCK_PAUSE: Final = 0.01
SAFE_LOG: Final = (3, 51, 3)
"""The first SQLite without the fault described at https://sqlite.org/wal.html#walresetbug."""

NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs"),
        *("gpfs", "9p", "virtiofs", "vboxsf", "prl_fs", "drvfs", "davfs", "fuse.sshfs"),
        *("fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.grpcfuse"),
    }
)
"""File systems over a network, or between a machine and its host: locks and shared memory, which
the log of SQLite needs, work there badly or only on one machine."""

OVERLAY: Final = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})

MOUNTS: Final = "/proc/self/mountinfo"


def checkup(path: str, *, thorough: bool) -> list[Finding]:
    """Everything there is to say; blocks."""
    found = [_library()]
    missing = _missing(path)
    if missing is not None:
        return [*found, missing]
    found += [file_system(path), _disk(path), *_permissions(path), _log(path)]
    lock = _lock(path)
    try:
        with closing(_connect(path)) as connection:
            found += _inside(path, connection, thorough=thorough)
    except sqlite3.Error as error:
        found.append(_unreadable(path, error))
    return found if lock is None else [*found, lock]


def _library() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= SAFE_LOG:
        return Finding(check="sqlite", text=f"SQLite {version}", facts={"sqlite": version})
    return Finding(
        check="sqlite",
        level=Level.NOTE,
        text=f"SQLite {version} is older than 3.51.3, which fixes a rare fault in its log",
        next_step="upgrade Python or its SQLite when you can; see sqlite.org/wal.html#walresetbug",
        facts={"sqlite": version},
    )


def _missing(path: str) -> Finding | None:
    """There is no store: nothing else can be said."""
    folder = os.path.dirname(path) or "."
    try:
        known = os.stat(path)
    except FileNotFoundError:
        text = f"there is no file {path!r}"
        step = "correct the URL; the first enqueue, or penstock migrate, makes a new store"
        if not os.path.isdir(folder):
            step = f"correct the URL, or make the directory {folder!r}"
    except OSError as error:
        text = f"file {path!r} cannot be reached: {error.strerror}"
        step = "give this user permission on the directories above it"
    else:
        if stat.S_ISDIR(known.st_mode):
            text = f"{path!r} is a directory"
            step = "correct the URL: name a file in it"
            return Finding(check="store", level=Level.ERROR, text=text, next_step=step)
        if known.st_size:
            return None
        text = f"file {path!r} is empty"
        step = "correct the URL; the first enqueue, or penstock migrate, makes it a store"
    return Finding(check="store", level=Level.ERROR, text=text, next_step=step)


def _disk(path: str) -> Finding:
    free = shutil.disk_usage(os.path.dirname(path) or ".").free
    return room(free, os.stat(path).st_size)


def room(free: int, size: int) -> Finding:
    """What is said of a disk with so many bytes free, under a store of this size."""
    facts = {"free_bytes": free, "file_bytes": size}
    text = f"{_bytes(free)} are free on the disk, the store has {_bytes(size)}"
    if free >= LITTLE_ROOM:
        return Finding(check="disk", text=text, facts=facts)
    step = "free space, or lower keep_finished; when it is full, no job can be enqueued or settled"
    level = Level.ERROR if free < NO_ROOM else Level.WARNING
    return Finding(check="disk", level=level, text=f"only {text}", next_step=step, facts=facts)


def _log(path: str) -> Finding:
    try:
        size = os.stat(f"{path}-wal").st_size
    except OSError:
        size = 0
    facts = {"wal_bytes": size}
    if size < LARGE_LOG:
        return Finding(check="wal", text=f"the log has {_bytes(size)}", facts=facts)
    return Finding(
        check="wal",
        level=Level.WARNING,
        text=f"the log has {_bytes(size)} and is not checkpointed: a reader keeps it open",
        next_step=f"find the program that reads for long (lsof {path}-wal), such as a backup or a "
        "database browser, and end it",
        facts=facts,
    )


# --- where the file lies ------------------------------------------------------------------------


def file_system(path: str) -> Finding:
    """What is to say about where this file lies."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            kind = kind_of(os.path.realpath(path), mounts.read())
    except OSError:
        return Finding(check="file_system", text="this system does not tell what the file is on")
    return judged(kind)


def judged(kind: str) -> Finding:
    """What is said of a file system of this kind."""
    facts = {"file_system": kind}
    if kind in NETWORK:
        text = f"the file is on {kind}, a network file system: locks are not safe there"
        step = "move the file to a local disk of one machine, and run all workers there"
    elif kind in OVERLAY:
        text = f"the file is on {kind}, inside a container: it goes when the container goes"
        step = "put it on a volume: docker run -v jobs:/data, and sqlite:////data/jobs.db"
    elif kind in VOLATILE:
        text = f"the file is on {kind}, in memory: it is gone after a restart of the machine"
        step = "move it to a disk, unless that is what you want"
    else:
        text = f"the file is on {kind or 'an unknown file system'}"
        return Finding(check="file_system", text=text, facts=facts)
    return Finding(check="file_system", level=Level.WARNING, text=text, next_step=step, facts=facts)


def kind_of(path: str, mounts: str) -> str:
    """The type of the file system that a path is on: of the last, longest mount above it."""
    kind, longest = "", -1
    for line in mounts.splitlines():
        before, mark, after = line.partition(" - ")
        fields = before.split()
        if not mark or len(fields) < 5 or not after:
            continue
        place = fields[4].encode().decode("unicode_escape")  # a space is written \040
        is_above = path == place or path.startswith(place.rstrip("/") + "/")
        if is_above and len(place) >= longest:
            kind, longest = after.split()[0], len(place)
    return kind


# --- permissions and the write lock -------------------------------------------------------------


def _permissions(path: str) -> Iterator[Finding]:
    folder = os.path.dirname(path) or "."
    lacking = [
        name
        for name in (folder, path, *_beside(path))
        if not os.access(name, os.W_OK | os.R_OK) or not os.stat(name).st_mode & 0o222
    ]
    if lacking:
        yield Finding(
            check="permissions",
            level=Level.ERROR,
            text=f"this user cannot read and write {', '.join(lacking)}",
            next_step="give it permission on the file, those beside it, and their directory",
        )
        return
    wanted = stat.S_IMODE(os.stat(path).st_mode) & 0o666
    narrow = [name for name in _beside(path) if wanted & ~stat.S_IMODE(os.stat(name).st_mode)]
    if narrow:
        yield Finding(
            check="permissions",
            level=Level.WARNING,
            text=f"users who may write the store may not write {', '.join(narrow)}",
            next_step=f"chmod {wanted:o} {' '.join(narrow)}",
        )
        return
    yield Finding(check="permissions", text="this user can read and write all of its files")


def _beside(path: str) -> list[str]:
    """The files beside the store that are there."""
    path = os.path.realpath(path)
    names = [f"{path}{end}" for end in ("-wal", "-shm", "-gate", "-main")]
    return [name for name in names if os.path.exists(name)]


def _lock(path: str) -> Finding | None:
    """Whether the write lock is free at least now and then."""
    name = f"{os.path.realpath(path)}-main"
    try:
        lock = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None  # it was never written, or may not be: other findings say so
    try:
        for _ in range(round(LOCK_PATIENCE / LOCK_PAUSE)):
            if _is_free(lock):
                return Finding(check="lock", text="writers take turns")
            threading.Event().wait(LOCK_PAUSE)
    finally:
        os.close(lock)
    return _locked(name)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def _locked(name: str) -> Finding:
    holder = _holder(name)
    who = "a process" if holder is None else f"process {holder}"
    step = f"find it (fuser {name})" if holder is None else f"see what it is (ps -fp {holder})"
    return Finding(
        check="lock",
        level=Level.ERROR,
        text=f"{who} has had the write lock for {LOCK_PATIENCE:g} s: no other process can write",
        next_step=f"{step}: continue it (kill -CONT) if it is stopped, or end it",
        facts={"pid": holder},
    )


def _holder(name: str) -> int | None:
    """The process that has the lock, where the system tells."""
    try:
        inode = os.stat(name).st_ino
        with open("/proc/locks") as locks:
            lines = [line.split() for line in locks]
    except OSError:
        return None
    for line in lines:
        if "FLOCK" in line and "->" not in line and line[5].endswith(f":{inode}"):
            return int(line[4])
    return None


# --- inside -------------------------------------------------------------------------------------


def _connect(path: str) -> sqlite3.Connection:
    # Without a log no process has the file open, and to read it as it is leaves no files behind.
    mode = "mode=ro" if os.path.exists(f"{path}-wal") else "immutable=1"
    return sqlite3.connect(f"file:{quote(path)}?{mode}", timeout=2.0, uri=True)


def _inside(path: str, connection: sqlite3.Connection, *, thorough: bool) -> Iterator[Finding]:
    newest = schema.newest()
    try:
        found = schema.version(connection, path)
    except EngineCorrupt as error:
        yield Finding(
            check="store",
            level=Level.ERROR,
            text=f"file {path!r} is not a Penstock store: {error.why}",
            next_step="correct the URL, or name another file",
        )
        return
    except SchemaMismatch as error:
        facts = {"schema": error.found, "newest": newest}
        text = f"the store has schema version {error.found}, and this Penstock knows {newest}"
        step = "upgrade Penstock here: a newer one has migrated the store"
        yield Finding(check="schema", level=Level.ERROR, text=text, next_step=step, facts=facts)
        return
    yield _schema(found, newest)
    yield _journal(path, connection)
    if thorough:
        yield _integrity(connection)


def _schema(found: int, newest: int) -> Finding:
    facts = {"schema": found, "newest": newest}
    if found == newest:
        return Finding(check="schema", text=f"schema version {found} is up to date", facts=facts)
    return Finding(
        check="schema",
        level=Level.ERROR,
        text=f"the store has schema version {found}, and this Penstock needs {newest}",
        next_step="run penstock migrate, or start a worker, which does so",
        facts=facts,
    )


def _journal(path: str, connection: sqlite3.Connection) -> Finding:
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if not os.path.exists(f"{path}-wal"):
        # Read as it is, SQLite takes any file for one without a log; the header has its two marks.
        mode = "wal" if _header(path)[18:20] == b"\x02\x02" else mode
    if mode == "wal":
        return Finding(check="journal", text="journal mode wal", facts={"journal_mode": mode})
    return Finding(
        check="journal",
        level=Level.WARNING,
        text=f"journal mode {mode}: another program has changed it, and readers block writers",
        next_step="it is corrected when the store is next opened: restart one worker",
        facts={"journal_mode": mode},
    )


def _header(path: str) -> bytes:
    with open(path, "rb") as file:  # no process has a lock on it: see ``_connect``
        return file.read(100)


def _integrity(connection: sqlite3.Connection) -> Finding:
    rows: list[Any] = connection.execute("PRAGMA quick_check(5)").fetchall()
    if rows == [("ok",)]:
        return Finding(check="integrity", text="no page of the file is damaged")
    return Finding(
        check="integrity",
        level=Level.ERROR,
        text="the file is damaged: " + "; ".join(str(row[0]) for row in rows),
        next_step="stop all workers, keep a copy of the file and its -wal, and restore a backup",
    )


def _unreadable(path: str, error: sqlite3.Error) -> Finding:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        text = f"file {path!r} is damaged or not a database: {error}"
        step = "name another file; if it was a store, keep a copy of it and restore a backup"
        return Finding(check="store", level=Level.ERROR, text=text, next_step=step)
    text = f"file {path!r} cannot be read: {error}"
    step = "look for another program that has it open (lsof), and for its permissions"
    return Finding(check="store", level=Level.ERROR, text=text, next_step=step)


def _bytes(size: int) -> str:
    for below, unit, name in ((1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (1e12, 1e9, "GB")):
        if size < below:
            return f"{size / unit:,.1f} {name}"
    return f"{size / 1e12:,.1f} TB"
