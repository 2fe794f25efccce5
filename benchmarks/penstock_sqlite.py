"""Penstock on an SQLite file, with history and results, as it comes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.echo import Echo
from penstock import Penstock


class PenstockSqlite:
    """The contender."""

    def __init__(self, place: Path, *, sync: bool = False) -> None:
        self._place = place
        self.app = Penstock(f"sqlite:///{place}/penstock.db")

        @self.app.task(name="async_noop")
        async def async_noop(number: int) -> None: ...

        @self.app.task(name="sync_noop")
        def sync_noop(number: int) -> None: ...

        @self.app.task(name="stamp", queue="pings")
        async def stamp(number: int) -> None:
            Echo.answer()

        self._noop: Any = sync_noop if sync else async_noop
        self._stamp = stamp
        self._echo: Echo | None = None

    def enqueue(self, number: int) -> None:
        self._noop.enqueue(number)

    def enqueue_many(self, count: int) -> None:
        self._noop.enqueue_many([(number,) for number in range(count)])

    def drain(self, count: int, *, sync: bool) -> float:
        done = threading.Event()
        start = time.perf_counter()
        thread = threading.Thread(target=done.wait, daemon=True)
        thread.start()
        self.app.run_worker(until_empty=True)
        elapsed = time.perf_counter() - start
        done.set()
        counts = {(count.state.value): count.jobs for count in self.app.counts()}
        assert counts == {"succeeded": count}, counts
        return elapsed

    def ping(self) -> float:
        if self._echo is None:
            self._echo = Echo(self._place, "benchmarks.penstock_sqlite")
            self._stamp.enqueue(0)
            self._echo.wait()
        sent = time.perf_counter()
        self._stamp.enqueue(0)
        return self._echo.wait() - sent

    def close(self) -> None:
        if self._echo is not None:
            self._echo.close()
        self.app.close()


def serve(place: str) -> None:
    """Be the worker in another process."""
    PenstockSqlite(Path(place)).app.run_worker(queues="pings")
