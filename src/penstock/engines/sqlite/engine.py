"""The SQLite engine: the embedded default, many processes on one file.

A handle has one connection on a thread of its own for its steps, one for its inlet, and one to
watch for commits. Each verb is a function over one transaction: ``enqueue``, ``claim``,
``control``, ``key_line_batches``, ``repair`` and ``reads`` have them. Writers take the locks of
``write_lock`` first, so that they wait in turn; readers do not wait. ``synchronous=NORMAL`` in WAL
mode survives ``kill -9`` of any process; ``full`` survives a power cut as well.

| if the process dies                    | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| before COMMIT returned                 | SQLite rolls back; the caller has no answer and may     |
|                                        | repeat the call                                         |
| after COMMIT, before the answer        | it happened; a repeated call says so (see the contract) |
| while it migrates                      | the whole step is rolled back; the next one migrates    |
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Concatenate, Literal, ParamSpec, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.core.finding import Finding
from penstock.core.job import Draft, Job
from penstock.engines.engine import Engine
from penstock.engines.records import (
    Ask,
    Cell,
    CellPage,
    Count,
    Exchange,
    Filter,
    News,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Repaired,
    Rewrite,
    Rewritten,
    Running,
    Schema,
    Sighting,
    Traits,
    WorkerInfo,
)
from penstock.engines.sqlite import claim, control, key_line_batches, reads, schema
from penstock.engines.sqlite.connection import ForkSafeConnection, SqliteThread, SqliteTransaction
from penstock.engines.sqlite.enqueue import SqliteInlet, enqueue
from penstock.engines.sqlite.errors import named_errors
from penstock.engines.sqlite.repair import repair
from penstock.engines.sqlite.wakeup import CommitWatch
from penstock.engines.sqlite.write_lock import WriteLock
from penstock.engines.validation import check_drafts, check_outcomes, check_reports, check_rewrites
from penstock.errors import EngineClosed, EngineReplaced

Rest = ParamSpec("Rest")
Result = TypeVar("Result")


class SqliteEngine(Engine):
    """One handle on one SQLite file."""

    inlet: SqliteInlet | None = None

    def __init__(
        self,
        path: str,
        clock: Clock | None = None,
        *,
        synchronous: Literal["normal", "full"] = "normal",
        busy_timeout: float = 10.0,
    ) -> None:
        self.path = path
        self.clock = clock or SystemClock()
        self.traits = Traits(name=f"sqlite file {path!r}", max_batch=1000)
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._entries: dict[str, int] = {}  # of what was claimed here, by id; for its thread only
        self._thread: SqliteThread | None = None
        self._connection = ForkSafeConnection(lambda: self._connect(self._busy_timeout))
        self._write_lock: WriteLock | None = None
        self._file: tuple[int, int] | None = None
        self._opening = asyncio.Lock()  # opening and closing wait for each other
        self._watch: CommitWatch | None = None

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._opening:
            if self._thread is not None and self._thread.is_alive:
                return
            self._thread = SqliteThread(self.traits.name)
            try:
                await self._thread.run(self._open)
                with self._named_errors():
                    watching = ForkSafeConnection(lambda: self._connect(wait=0.0))
                    log = f"{self.path}-wal"
                    self._watch = CommitWatch(watching, log, self.traits.name, self.clock)
                    self.inlet = self._make_inlet()
            except BaseException:
                await self._shut()
                raise

    def _open(self) -> None:
        with self._named_errors():
            with self._connection.use() as raw, _transaction(raw, "BEGIN"):
                # One snapshot: another process may be migrating.
                found = schema.version(raw, self.traits.name)
            self._write_lock = WriteLock(self.path, self.traits.name, self.clock)
            with self._connection.use() as raw:
                # A process that only wants to read must not wait for a writer that hangs.
                if raw.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                    with self._write_lock.writing(self._busy_timeout):
                        raw.execute("PRAGMA journal_mode = WAL")
            self._file = _identity(self.path)
        if found < schema.newest():
            self._migrate()

    def _connect(self, wait: float) -> sqlite3.Connection:
        # A connection is passed from thread to thread, never to two at once.
        raw = sqlite3.connect(
            self.path, timeout=wait, isolation_level=None, check_same_thread=False
        )
        try:
            raw.execute("PRAGMA cache_size = -16000")
            # RETURNING and IN (...) would open a temporary file for each statement.
            raw.execute("PRAGMA temp_store = MEMORY")
            raw.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            raw.close()
            raise
        return raw

    def _make_inlet(self) -> SqliteInlet:
        connection = ForkSafeConnection(lambda: self._connect(wait=0.0))
        return SqliteInlet(connection, self.traits.name, self.path, self._store)

    def _store(self, raw: sqlite3.Connection, drafts: Sequence[Draft]) -> list[Receipt]:
        self._check_file()
        return enqueue(SqliteTransaction(raw, self.clock.now()), drafts)

    async def close(self) -> None:
        async with self._opening:
            await self._shut()

    async def _shut(self) -> None:
        inlet, self.inlet = self.inlet, None
        thread, self._thread = self._thread, None
        watch, self._watch = self._watch, None
        if thread is None or not thread.is_alive:
            return  # a forked child has no thread, no connection and no lock to close
        try:
            if watch is not None:
                await watch.close()
        finally:
            await thread.close(partial(self._close, inlet))

    def _close(self, inlet: SqliteInlet | None) -> None:
        self._connection.close()
        if inlet is not None:
            inlet.close()
        if self._write_lock is not None:
            self._write_lock.close()
            self._write_lock = None

    async def migrate(self, *, check: bool = False) -> Schema:
        if check:
            return await asyncio.to_thread(self._schema)
        found = await asyncio.to_thread(self._schema)
        await self._on_thread(self._migrate)
        return found

    def _migrate(self) -> int:
        with self._writing() as raw:
            return schema.migrate(raw, self.traits.name)

    def _schema(self) -> Schema:
        found = 0
        with self._named_errors():
            if _identity(self.path) is not None:
                with closing(self._connect(self._busy_timeout)) as raw:
                    found = schema.version(raw, self.traits.name)
        return Schema(found=found, newest=schema.newest())

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        """What the doctor says of this file."""
        from penstock.engines.sqlite.checkup import checkup

        return await asyncio.to_thread(checkup, self.path, thorough=thorough)

    # --- how a step runs -----------------------------------------------------------------------

    async def _on_thread(self, call: Callable[[], Result]) -> Result:
        if self._thread is None:
            raise EngineClosed(self.traits.name)
        return await self._thread.run(call)

    async def _write(
        self,
        step: Callable[Concatenate[SqliteTransaction, Rest], Result],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step as one write transaction."""

        def call() -> Result:
            with self._writing() as raw:
                # The instant is read inside the transaction: time does not pass while it waits.
                return step(SqliteTransaction(raw, self.clock.now()), *args, **kwargs)

        return await self._on_thread(call)

    async def _read(
        self,
        step: Callable[Concatenate[SqliteTransaction, Rest], Result],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step that only reads, on one snapshot."""

        def call() -> Result:
            with self._named_errors():
                self._check_file()
                with self._connection.use() as raw, _transaction(raw, "BEGIN"):
                    return step(SqliteTransaction(raw, self.clock.now()), *args, **kwargs)

        return await self._on_thread(call)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        if self._write_lock is None:
            raise EngineClosed(self.traits.name)
        with self._named_errors():
            self._check_file()
            with (
                self._write_lock.writing(self._busy_timeout),
                self._connection.use() as raw,  # last, for a fork waits until it is free
                _transaction(raw, "BEGIN IMMEDIATE"),
            ):
                yield raw

    def _named_errors(self) -> AbstractContextManager[None]:
        return named_errors(self.traits.name, self.path)

    def _check_file(self) -> None:
        """Refuse a file that has lost its name: what it takes could never be found again."""
        if _identity(self.path) != self._file:
            raise EngineReplaced(self.traits.name, "it was deleted or replaced under this process")

    # --- in and work ---------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        drafts = tuple(drafts)
        check_drafts(self.traits.name, drafts)
        return await self._write(enqueue, drafts)

    async def join(self, worker: WorkerInfo) -> None:
        await self._write(claim.join, worker)

    async def leave(self, worker: str) -> None:
        await self._write(claim.leave, worker)

    async def beat(self, worker: str) -> bytes | None:
        return await self._write(claim.beat, worker)

    async def exchange(self, ask: Ask) -> Exchange:
        check_outcomes(self.traits.name, ask.outcomes)
        check_reports(self.traits.name, ask.reports)
        if not (ask.outcomes or ask.begun or ask.reports):
            idle = await self._read(claim.idle_exchange, ask)
            if idle is not None:
                return idle
        return await self._write(claim.exchange, ask, self._entries)

    async def held(self, worker: str) -> list[Job]:
        return await self._read(reads.held, worker)

    # --- control -------------------------------------------------------------------------------

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        check_rewrites(self.traits.name, rewrites)
        return await self._write(control.rewrite, rewrites)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._write(control.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._write(key_line_batches.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._read(reads.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return await self._write(control.promote, limit)

    async def end_leases(self, dead: Sequence[Sighting]) -> list[str]:
        return await self._write(control.end_leases, dead)

    async def prune(self, limit: int) -> Pruned:
        return await self._write(control.prune, limit)

    async def repair(
        self, limit: int, cursor: str | None = None, *, rehearse: bool = False
    ) -> Repaired:
        step = self._read if rehearse else self._write
        return await step(repair, limit, cursor, rehearse=rehearse)

    # --- small values --------------------------------------------------------------------------

    async def cell(self, name: str) -> Cell:
        return await self._read(reads.cell, name)

    async def set_cell(
        self, name: str, value: bytes | None, version: int, ttl: float | None = None
    ) -> Cell | None:
        return await self._write(control.set_cell, name, value, version, ttl)

    async def cells(self, prefix: str, cursor: str | None, limit: int) -> CellPage:
        return await self._read(reads.cells, prefix, cursor, limit)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._read(reads.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._read(reads.find, which, cursor, limit)

    async def counts(self, which: Filter) -> list[Count]:
        return await self._read(reads.counts, which)

    async def running(self) -> list[Running]:
        return await self._read(reads.running)

    async def workers(self) -> list[WorkerInfo]:
        return await self._read(reads.workers)

    async def version(self, kind: News) -> int:
        return self._watching().version()

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        return await self._watching().listen(seen, timeout)

    def _watching(self) -> CommitWatch:
        if self._watch is None or self._thread is None or not self._thread.is_alive:
            raise EngineClosed(self.traits.name)
        return self._watch


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has this name now."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _transaction(raw: sqlite3.Connection, begin: str) -> Iterator[None]:
    raw.execute(begin)
    try:
        yield
        raw.execute("COMMIT")
    finally:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
