"""The stores under test: how to make each one, and how to open another handle on it.

An engine is imported when its store is made, so that one which cannot be imported fails its own
tests and no others.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.engines.engine import Engine
from penstock.testing.clock import FakeClock

NewHandle = Callable[[], Engine]
"""Makes one more handle on a store; it is not open yet."""


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


def memory(place: Path, clock: FakeClock) -> NewHandle:
    from penstock.engines.memory import MemoryEngine, MemoryStore

    store = MemoryStore()
    return lambda: MemoryEngine(store, clock=clock)


def sqlite(place: Path, clock: FakeClock) -> NewHandle:
    from penstock.engines.sqlite import SqliteEngine

    return lambda: SqliteEngine(str(place / "jobs.db"), clock=clock)


def observed_memory(place: Path, clock: FakeClock) -> NewHandle:
    return _observed(memory(place, clock))


def observed_sqlite(place: Path, clock: FakeClock) -> NewHandle:
    return _observed(sqlite(place, clock))


def _observed(inner: NewHandle) -> NewHandle:
    from penstock.engines.observed import Observed
    from penstock.events import Bus

    return lambda: Observed(inner(), Bus())


STORES: dict[str, Callable[[Path, FakeClock], NewHandle]] = {
    "memory": memory,
    "sqlite": sqlite,
    "observed-memory": observed_memory,
    "observed-sqlite": observed_sqlite,
}


class Watch:
    """Notes what is open before a test, to say afterwards what it left behind."""

    def __init__(self, place: Path) -> None:
        self._place = str(place)
        self._threads = set(threading.enumerate())

    def leaks(self) -> list[str]:
        """Tasks, threads and open files of the store that should be gone."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        threads = set(threading.enumerate()) - self._threads
        return [
            *(f"task {task.get_name()}" for task in tasks if not task.done()),
            # The loop keeps its own executor's threads until it closes.
            *(f"thread {thread.name}" for thread in threads if "asyncio" not in thread.name),
            *(f"file {path}" for path in _open_files() if path.startswith(self._place)),
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
    return memory(Path(), clock)()
