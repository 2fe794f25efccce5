"""The SQLite engine: the embedded default, many processes on one file.

What a handle has open is in ``sqlite_handle``; here is what it does, verb by verb. Writers take the
locks of ``file_gate`` first, so that they wait in turn; readers wait for nobody.
``synchronous=NORMAL`` in WAL mode survives ``kill -9`` of any process; ``full`` survives a power
cut as well.

| if the process dies                    | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| before COMMIT returned                 | SQLite rolls back; the caller has no answer and may     |
|                                        | repeat the call                                         |
| after COMMIT, before the answer        | it happened; a repeated call says so (see the contract) |
| while it migrates                      | the whole step is rolled back; the next one migrates    |
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from math import inf
from typing import Concatenate, Literal, ParamSpec, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.core.finding import Finding
from penstock.core.job import Draft, Job, Verdict
from penstock.engines.engine import Engine, Inlet
from penstock.engines.records import (
    Ask,
    Cell,
    Control,
    Count,
    Exchange,
    Filter,
    Glance,
    Hand,
    Mended,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Report,
    Schema,
    Sighting,
    Standing,
    Term,
    Traits,
    WorkerInfo,
)
from penstock.engines.sqlite import schema
from penstock.engines.sqlite.connection import SqliteLink, SqliteThread, named_errors
from penstock.engines.sqlite.control import SqliteJobs
from penstock.engines.sqlite.counter import SqliteCounter
from penstock.engines.sqlite.reads import SqliteViews, glance
from penstock.engines.sqlite.wakeup import DataVersionWatch
from penstock.engines.sqlite.write_lock import FileGate
from penstock.engines.validation import check_drafts, check_outcomes, check_reports
from penstock.errors import EngineBusy, EngineClosed, EngineReplaced

# --- sqlite handle ------------------------------------------------------------------------------
#
# A handle on an SQLite file: its connections, its thread, and how a step runs on them.
#
# It has one connection on a thread of its own for its steps, one for the counter where jobs are
# handed in, and one to watch for commits.


Rest = ParamSpec("Rest")
Result = TypeVar("Result")


class SqliteHandle(Engine):
    """One handle on one SQLite file: how it opens, closes, and lets steps run; see ``sqlite``."""

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
        self._steps = SqliteLink(lambda: self._connect(self._busy_timeout))
        self._gate: FileGate | None = None
        self._counter: SqliteCounter | None = None
        self._file: tuple[int, int] | None = None
        self._turn = asyncio.Lock()  # opening and closing wait for each other
        self._watch: DataVersionWatch | None = None

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._turn:
            if self._thread is not None and self._thread.is_alive:
                return
            self._thread = SqliteThread(self.traits.name)
            try:
                await self._thread.run(self._open)
                with named_errors(self.traits.name, self.path):
                    link = SqliteLink(lambda: self._connect(wait=0.0))
                    log = f"{self.path}-wal"
                self._watch = DataVersionWatch(link, log, self.traits.name, self.clock)
                self._counter = self._open_counter(self._thread)
            except BaseException:
                await self._shut()
                raise

    def _open(self) -> None:
        with named_errors(self.traits.name, self.path):
            with self._transaction("BEGIN") as connection:  # another process may be migrating
                found = schema.version(connection, self.traits.name)
            self._gate = FileGate(self.path, self.traits.name, self.clock)
            with self._steps.use() as connection:
                # Whoever only wants to read must not wait for a writer that hangs.
                if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                    with self._gate.writing(self._busy_timeout):
                        connection.execute("PRAGMA journal_mode = WAL")
            self._file = _identity(self.path)
        if found < schema.newest():
            self._migrate()

    def _connect(self, wait: float) -> sqlite3.Connection:
        # A link passes its connection from thread to thread, never to two at once.
        connection = sqlite3.connect(
            self.path, timeout=wait, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA cache_size = -16000")
            # RETURNING and IN (...) would open a temporary file for each statement.
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_counter(self, thread: SqliteThread) -> SqliteCounter:
        with named_errors(self.traits.name, self.path):
            link = SqliteLink(lambda: self._connect(wait=0.0))
            gate = FileGate(self.path, self.traits.name, self.clock)
            return SqliteCounter(link, gate, thread, self.traits.name, self._enter)

    async def close(self) -> None:
        async with self._turn:
            await self._shut()

    async def _shut(self) -> None:
        thread, self._thread = self._thread, None
        watch, self._watch = self._watch, None
        if thread is None or not thread.is_alive:
            return  # a forked child has no thread, no connection and no gate to close
        try:
            if watch is not None:
                await watch.close()
        finally:
            await thread.close(self._close)

    def _close(self) -> None:
        self._steps.close()
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.close()
        if self._gate is not None:
            self._gate.close()
            self._gate = None

    async def migrate(self) -> int:
        return await self._on_thread(self._migrate)

    def _migrate(self) -> int:
        with self._writing() as connection:
            return schema.migrate(connection, self.traits.name)

    async def schema(self) -> Schema:
        return await asyncio.to_thread(self._schema)

    def _schema(self) -> Schema:
        found = 0
        with named_errors(self.traits.name, self.path):
            if _identity(self.path) is not None:
                with closing(self._connect(self._busy_timeout)) as connection:
                    found = schema.version(connection, self.traits.name)
        return Schema(found=found, newest=schema.newest())

    async def now(self) -> float:
        return self.clock.now()

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        from penstock.engines.sqlite.checkup import checkup

        return await asyncio.to_thread(checkup, self.path, thorough=thorough)

    # --- how a step runs -----------------------------------------------------------------------

    async def _on_thread(self, call: Callable[[], Result]) -> Result:
        if self._thread is None:
            raise EngineClosed(self.traits.name)
        return await self._thread.run(call)

    async def _write(
        self,
        step: Callable[Concatenate[SqliteJobs, Rest], Result],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step as one write transaction."""

        def call() -> Result:
            with self._writing() as connection:
                # The instant is read inside the transaction: time does not pass while it waits.
                return step(SqliteJobs(connection, self.clock.now()), *args, **kwargs)

        return await self._on_thread(call)

    async def _read(
        self,
        step: Callable[Concatenate[SqliteViews, Rest], Result],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step that only reads, on one snapshot."""

        def call() -> Result:
            with (
                named_errors(self.traits.name, self.path),
                self._same_file(),
                self._transaction("BEGIN") as it,
            ):
                return step(SqliteViews(it, self.clock.now()), *args, **kwargs)

        return await self._on_thread(call)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        if self._gate is None:
            raise EngineClosed(self.traits.name)
        with (
            named_errors(self.traits.name, self.path),
            self._same_file(),
            self._gate.writing(self._busy_timeout),
            self._steps.use() as connection,  # last, for a fork waits until it is free
            _transaction(connection, "BEGIN IMMEDIATE"),
        ):
            yield connection

    @contextmanager
    def _same_file(self) -> Iterator[None]:
        """Refuse a file that has lost its name: what it takes, nobody would ever find."""
        self._check_file()
        yield

    def _check_file(self) -> None:
        if _identity(self.path) != self._file:
            raise EngineReplaced(self.traits.name, "it was deleted or replaced under this process")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._steps.use() as connection, _transaction(connection, begin):
            yield connection

    def _enter(self, connection: sqlite3.Connection, drafts: Sequence[Draft]) -> list[Receipt]:
        self._check_file()
        return SqliteJobs(connection, self.clock.now()).enqueue(drafts)

    def _store(self, drafts: Sequence[Draft]) -> list[Receipt]:
        with self._writing() as connection:
            return self._enter(connection, drafts)


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has this name now."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# --- sqlite -------------------------------------------------------------------------------------


class SqliteEngine(SqliteHandle):
    """One handle on one SQLite file."""

    # --- in and work ---------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        drafts = tuple(drafts)
        check_drafts(self.traits.name, drafts)
        return await self._write(SqliteJobs.enqueue, drafts)

    @property
    def inlet(self) -> Inlet | None:
        return None if self._counter is None else self

    def put(self, drafts: Sequence[Draft], timeout: float | None) -> list[Receipt] | None:
        drafts = tuple(drafts)
        check_drafts(self.traits.name, drafts)
        counter = self._counter
        if counter is None:
            raise EngineClosed(self.traits.name)
        with contextlib.suppress(EngineBusy), named_errors(self.traits.name, self.path):
            receipts = counter.serve(drafts)
            if receipts is not None:
                return receipts
        if len(drafts) > 1:
            return None
        return [counter.stand(drafts[0], timeout, self._store)]

    async def join(self, worker: WorkerInfo) -> None:
        await self._write(SqliteJobs.join, worker)

    async def leave(self, worker: str) -> None:
        await self._write(SqliteJobs.leave, worker)

    async def beat(self, worker: str) -> None:
        await self._write(SqliteJobs.beat, worker)

    async def exchange(self, ask: Ask) -> Exchange:
        check_outcomes(self.traits.name, ask.outcomes)
        return await self._write(SqliteJobs.exchange, ask, self._entries)

    async def held(self, worker: str) -> list[Job]:
        return await self._read(SqliteViews.held, worker)

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        check_reports(self.traits.name, reports)
        return await self._write(SqliteJobs.progress, worker, reports)

    async def look(self, ask: Ask) -> float | None:
        return await self._read(SqliteViews.look, ask)

    # --- control -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        return await self._write(SqliteJobs.cancel, ids, reason)

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        return await self._write(SqliteJobs.retry, ids)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._write(SqliteJobs.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._write(SqliteJobs.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._read(SqliteViews.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        return await self._write(SqliteJobs.promote, limit)

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        return await self._write(SqliteJobs.rescue, dead, limit)

    async def prune(self, keep: float, limit: int) -> Pruned:
        return await self._write(SqliteJobs.prune, keep, limit)

    async def mend(self, *, rehearse: bool = False) -> Mended:
        return await self._write(SqliteJobs.mend, rehearse=rehearse)

    async def tidy(self) -> float:
        self._watching()
        return inf  # whoever writes does what is left to do

    # --- lead and small values -----------------------------------------------------------------

    async def lead(self, candidate: str, ttl: float) -> Term | None:
        return await self._write(SqliteJobs.lead, candidate, ttl)

    async def resign(self, holder: str, epoch: int) -> None:
        await self._write(SqliteJobs.resign, holder, epoch)

    async def leader(self) -> Term | None:
        return await self._read(SqliteViews.leader)

    async def cell(self, name: str) -> Cell:
        return await self._read(SqliteViews.cell, name)

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        return await self._write(SqliteJobs.set_cell, name, value, version)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._read(SqliteViews.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._read(SqliteViews.find, which, cursor, limit)

    async def count(self, which: Filter) -> int:
        return await self._read(SqliteViews.count, which)

    async def counts(self) -> list[Count]:
        return await self._read(SqliteViews.counts)

    async def glance(self, window: float, limit: int) -> Glance:
        return await self._read(glance, window, limit)

    async def workers(self) -> list[WorkerInfo]:
        return await self._read(SqliteViews.workers)

    async def hands(self) -> list[Hand]:
        return await self._read(SqliteViews.hands)

    async def line(self, id: str) -> Standing:
        return await self._read(SqliteViews.standing, id)

    async def version(self) -> int:
        return self._watching().version()

    async def listen(self, seen: int, timeout: float) -> int:
        return await self._watching().listen(seen, timeout)

    def _watching(self) -> DataVersionWatch:
        if self._watch is None or self._thread is None or not self._thread.is_alive:
            raise EngineClosed(self.traits.name)
        return self._watch
