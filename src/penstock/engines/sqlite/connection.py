"""How the SQLite engine reaches its file: a connection that no fork can tear, the thread that it
is used on, and one transaction on it.

SQLite keeps its file locks per process, together with counters in the process's memory. A forked
child inherits the counters but not the locks: what it opens on the same file afterwards believes
that it has locks which it has not, and a parent that closes the file takes the child's commits with
it. So no connection is open at the moment of a fork: the parent closes each one between two uses,
and both sides open anew at their next use.

| if the process forks        | then                                                            |
|-----------------------------|-----------------------------------------------------------------|
| while a step is under way   | the fork waits until the step has ended                         |
| between two steps           | the connection is closed; the next step opens it again          |

SQLite blocks, so it has a thread of its own: steps are handed over and come back as futures. A
caller that is cancelled does not stop a step that has begun: it is a lost reply, like any other. A
step that has not begun is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from operator import methodcaller
from queue import SimpleQueue
from typing import Any, Final, TypeVar
from weakref import WeakSet

import msgspec
from msgspec.structs import replace

from penstock.engines.records import QueueSettings, WorkerInfo
from penstock.engines.sql_files import statements
from penstock.engines.sqlite.rows import Row
from penstock.errors import EngineClosed

Result = TypeVar("Result")
_settings = msgspec.json.Decoder(QueueSettings)
_worker = msgspec.json.Decoder(WorkerInfo)

SQL_FILES: Final = ("sqlite/steps.sql", "sqlite/key_lines.sql", "sqlite/reads.sql")


class ForkSafeConnection:
    """One connection, opened when it is needed."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self.lock: Any = threading.RLock()  # typed as Any: it can say who owns it
        """The thread that has it has the connection; the process does not fork meanwhile."""
        self.raw: sqlite3.Connection | None = None
        self.times_opened = 0
        with _fork_lock:
            _connections.add(self)

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Have the lock and the connection."""
        with self.lock:
            yield self.open()

    def open(self) -> sqlite3.Connection:
        """The connection; the calling thread must have the lock."""
        if self.raw is None:
            self.raw = self._connect()
            self.times_opened += 1
        return self.raw

    @property
    def is_mine(self) -> bool:
        """The calling thread has the lock."""
        return bool(self.lock._is_owned())

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self.lock:
            raw, self.raw = self.raw, None
            if raw is not None:
                raw.close()


# Fork hooks can never be taken back, so there is one set for all connections.
_connections: WeakSet[ForkSafeConnection] = WeakSet()
_fork_lock: Any = threading.RLock()  # one fork at a time, and no new connection meanwhile
_locks: list[Any] = []
_taken: list[bool] = []
_given: list[None] = []
_take = methodcaller("acquire")
_give = methodcaller("release")


def _before_fork() -> None:
    """Have all locks and close all connections; the process forks even if this raises."""
    try:
        _pause()
    except BaseException:  # out of a signal handler
        _pause()
        raise


def _after_fork() -> None:
    """Give back what was taken, on both sides."""
    try:
        _resume()
    finally:
        _resume()


# Locks are taken and counted in one call of C, where no signal handler can come in between. So both
# of these go on where they were interrupted.


def _pause() -> None:
    if not _fork_lock._is_owned():
        _fork_lock.acquire()
    if not _locks:
        _locks[:] = [connection.lock for connection in _connections]
    _taken.extend(map(_take, _locks[len(_taken) :]))
    for connection in list(_connections):
        connection.close()


def _resume() -> None:
    if _fork_lock._is_owned():
        _given.extend(map(_give, _locks[len(_given) : len(_taken)]))
        _locks.clear()
        _taken.clear()
        _given.clear()
        _fork_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class SqliteThread:
    """Runs one step at a time, in the order they come."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._steps = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"penstock-{name}", daemon=True)
        self._is_closed = False
        self._thread.start()

    async def run(self, step: Callable[[], Result]) -> Result:
        """Run ``step`` on the thread; its error is the caller's."""
        if not self.is_alive:
            raise EngineClosed(self._name)
        return await self._hand_over(step)

    async def close(self, last: Callable[[], None]) -> None:
        """Finish what was handed over, then ``last``; then end the thread, also if cancelled."""
        if self.is_alive:
            self._is_closed = True
            ended = self._hand_over(last)
            self._steps.put(None)
            await asyncio.shield(ended)
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Steps are taken. In a forked child they are not: a fork copies no threads."""
        return not self._is_closed and self._thread.is_alive()

    def _hand_over(self, step: Callable[[], Result]) -> asyncio.Future[Result]:
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._steps.put((step, answer))
        return answer

    def _work(self) -> None:
        while (item := self._steps.get()) is not None:
            step, answer = item
            result, error = None, None
            try:
                if not answer.cancelled():
                    result = step()
            except BaseException as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                answer.get_loop().call_soon_threadsafe(_answer, answer, result, error)
            del item, step, answer, result, error


def _answer(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


class SqliteTransaction:
    """One transaction: runs statements of ``sql/sqlite`` by their names, at one instant."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.now = now
        self._execute = connection.execute
        self._execute_many = connection.executemany
        self._sql = statements(*SQL_FILES)

    def run(self, name: str, values: Sequence[object] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """Run a statement."""
        return self._execute(self._sql[name], values)

    def run_many(self, name: str, rows: Iterable[Row]) -> sqlite3.Cursor:
        """Run a statement once for each row of values."""
        return self._execute_many(self._sql[name], rows)

    def one(self, name: str, values: Sequence[object] | Mapping[str, Any] = ()) -> Row | None:
        """Return the first row of a statement, if it has any."""
        row: Row | None = self._execute(self._sql[name], values).fetchone()
        return row

    def all(self, name: str, values: Sequence[object] | Mapping[str, Any] = ()) -> list[Row]:
        """Return all rows of a statement."""
        return self._execute(self._sql[name], values).fetchall()

    def matching(self, name: str, conditions: Mapping[str, Any], **more: object) -> list[Row]:
        """Return all rows of a statement that has ``{fits}`` where conditions go.

        Each condition is named ``if_...`` in SQL and has its value here; those whose value is None
        are left out, so that they cannot spoil the plan.
        """
        given = {name: value for name, value in conditions.items() if value is not None}
        fits = " AND ".join(self._sql[f"if_{each}"] for each in given) or "true"
        values = {**dict.fromkeys(conditions), **given, **more}
        return self._execute(self._sql[name].replace("{fits}", fits), values).fetchall()

    def insert(self, columns: Sequence[str], jobs: int, rows: Sequence[Row]) -> int:
        """Insert so many jobs with each row of values; return how many of them were new."""
        if not rows:
            return 0
        places = f"({', '.join('?' * len(columns))})"
        given = {"columns": ", ".join(columns), "rows": ", ".join([places] * jobs)}
        return self._execute_many(self._sql["insert"].format(**given), rows).rowcount

    @contextmanager
    def savepoint(self) -> Iterator[Callable[[], object]]:
        """A part of the transaction that can be undone: by what is yielded."""
        self._execute("SAVEPOINT part")
        yield lambda: self._execute("ROLLBACK TO part")
        self._execute("RELEASE part")

    @cached_property
    def settings(self) -> dict[str, QueueSettings]:
        """What was decided about queues; those without a decision are not in it."""
        return {name: _settings.decode(text) for name, text in self.run("settings")}

    def workers(self) -> list[WorkerInfo]:
        """Every worker that has a lease."""
        return [
            replace(_worker.decode(info), beat=beat, joined_at=joined_at)
            for _, beat, joined_at, info in self.run("workers")
        ]

    @cached_property
    def known_tasks(self) -> frozenset[str]:
        """The tasks of all workers that have a lease: read once, however many jobs ask."""
        return frozenset(task for worker in self.workers() for task in worker.tasks)
