"""The stores under test: how to make each one, and how to open another handle on it.

An engine is imported when its store is made, so that one which cannot be imported fails its own
tests and no others.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.engines.engine import Engine
from penstock.testing.clock import FakeClock

NewHandle = Callable[[], Engine]
"""Makes one more handle on a store; it is not open yet."""


@dataclass(frozen=True)
class Made:
    """An empty store."""

    new_handle: NewHandle
    left_open: Callable[[], list[str]] = list
    """Says what a server still has open for handles; those of this process are seen without it."""


Maker = Callable[[Path, FakeClock], Made]
"""Makes an empty store, in an empty directory if it needs one."""


class Store:
    """One store and all handles that a test opened on it."""

    def __init__(self, new_handle: NewHandle, clock: FakeClock) -> None:
        self.clock = clock
        """Shared by all handles: moving it moves the store's time."""
        self.new_handle = new_handle
        """Makes a handle that the test closes itself, on whichever loop it lives."""
        self._handles: list[Engine] = []

    def handle(self) -> Engine:
        """Return a new handle that is not open yet."""
        handle = self.new_handle()
        self._handles.append(handle)
        return handle

    async def open(self) -> Engine:
        """Return a new open handle."""
        handle = self.handle()
        await handle.open()
        return handle

    async def close(self) -> None:
        """Close every handle, also those that a test closed itself."""
        for handle in self._handles:
            await handle.close()


def memory(place: Path, clock: FakeClock) -> Made:
    from penstock.engines.memory.engine import MemoryEngine
    from penstock.engines.memory.store import MemoryStore

    store = MemoryStore()
    return Made(lambda: MemoryEngine(store, clock=clock))


def sqlite(place: Path, clock: FakeClock) -> Made:
    from penstock.engines.sqlite.engine import SqliteEngine

    return Made(lambda: SqliteEngine(str(place / "jobs.db"), clock=clock))


def postgres(place: Path, clock: FakeClock) -> Made:
    from penstock.engines.postgres.engine import PostgresEngine
    from servers.emptied import emptied

    database = emptied()
    database.empty()
    return Made(lambda: PostgresEngine(database.url, clock, follows_clock=True), database.left_open)


def observed(place: Path, clock: FakeClock) -> Made:
    """What it adds is the same around every engine: one is enough."""
    from penstock.engines.observed import Observed
    from penstock.events import Bus

    made = memory(place, clock)
    return replace(made, new_handle=lambda: Observed(made.new_handle(), Bus()))


STORES: dict[str, Maker] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "observed-memory": observed,
}


class Watch:
    """Notes what is open before a test, to say afterwards what it left behind."""

    def __init__(self, place: Path, made: Made) -> None:
        self._place = str(place)
        self._made = made
        self._threads = set(threading.enumerate())

    def leaks(self) -> list[str]:
        """Tasks, threads, open files and connections of the store that should be gone."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        threads = set(threading.enumerate()) - self._threads
        return [
            *(f"task {task.get_name()}" for task in tasks if not task.done()),
            # The loop keeps its own executor's threads until it closes.
            *(f"thread {thread.name}" for thread in threads if "asyncio" not in thread.name),
            *(f"file {path}" for path in _open_files() if path.startswith(self._place)),
            *self._made.left_open(),
        ]


def _open_files() -> list[str]:
    """The files this process has open, where the system can tell."""
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        return []
    paths = []
    for number in os.listdir(folder):
        try:
            paths.append(os.readlink(f"{folder}/{number}"))
        except OSError:  # closed meanwhile
            continue
    return paths


def reference(clock: FakeClock) -> Engine:
    """A handle on a new store of the engine that the others are measured by."""
    return memory(Path(), clock).new_handle()
