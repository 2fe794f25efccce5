"""A handle on an SQLite file: its connections, its thread, and how a step runs on them.

It has one connection on a thread of its own for its steps, one for the counter where jobs are
handed in, and one to watch for commits.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Concatenate, Literal, ParamSpec, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.core.finding import Finding
from penstock.core.job import Draft
from penstock.engines import sqlite_schema
from penstock.engines.engine import Engine
from penstock.engines.file_gate import FileGate
from penstock.engines.records import Receipt, Schema, Traits
from penstock.engines.sqlite_counter import SqliteCounter
from penstock.engines.sqlite_jobs import SqliteJobs
from penstock.engines.sqlite_link import SqliteLink
from penstock.engines.sqlite_thread import SqliteThread, named_errors
from penstock.engines.sqlite_views import SqliteViews
from penstock.engines.sqlite_watch import DataVersionWatch
from penstock.errors import EngineClosed, EngineReplaced

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
        self.traits = Traits(
            name=f"sqlite file {path!r}",
            is_durable=True,
            is_shared=True,
            has_own_clock=False,
            max_batch=1000,
        )
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
                found = sqlite_schema.version(connection, self.traits.name)
            self._gate = FileGate(self.path, self.traits.name, self.clock)
            with self._steps.use() as connection:
                # Whoever only wants to read must not wait for a writer that hangs.
                if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                    with self._gate.writing(self._busy_timeout):
                        connection.execute("PRAGMA journal_mode = WAL")
            self._file = _identity(self.path)
        if found < sqlite_schema.newest():
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
            return sqlite_schema.migrate(connection, self.traits.name)

    async def schema(self) -> Schema:
        return await asyncio.to_thread(self._schema)

    def _schema(self) -> Schema:
        found = 0
        with named_errors(self.traits.name, self.path):
            if _identity(self.path) is not None:
                with closing(self._connect(self._busy_timeout)) as connection:
                    found = sqlite_schema.version(connection, self.traits.name)
        return Schema(found=found, newest=sqlite_schema.newest())

    async def now(self) -> float:
        return self.clock.now()

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        from penstock.engines.sqlite_checkup import checkup

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
