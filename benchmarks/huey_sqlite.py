"""huey on its SQLite storage, as it comes."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from huey import SqliteHuey

from benchmarks.echo import Echo

logging.getLogger("huey").setLevel(logging.ERROR)


class HueySqlite:
    """The contender."""

    def __init__(self, place: Path, *, sync: bool = True) -> None:
        self._place = place
        self.huey = SqliteHuey(filename=str(place / "huey.db"))

        @self.huey.task()
        def noop(number: int) -> None: ...

        @self.huey.task()
        def stamp(number: int) -> None:
            Echo.answer()

        self._noop = noop
        self._stamp = stamp
        self._echo: Echo | None = None

    def enqueue(self, number: int) -> None:
        self._noop(number)

    def enqueue_many(self, count: int) -> None:
        for number in range(count):
            self._noop(number)

    def drain(self, count: int, *, sync: bool) -> float:
        consumer = self.huey.create_consumer(workers=8 if sync else 1, periodic=False)
        start = time.perf_counter()
        consumer.start()
        while self.huey.storage.queue_size():
            time.sleep(0.01)
        elapsed = time.perf_counter() - start
        consumer.stop(graceful=True)
        return elapsed

    def ping(self) -> float:
        if self._echo is None:
            self._echo = Echo(self._place, "benchmarks.huey_sqlite")
            self._stamp(0)
            self._echo.wait()
        sent = time.perf_counter()
        self._stamp(0)
        return self._echo.wait() - sent

    def close(self) -> None:
        if self._echo is not None:
            self._echo.close()


def serve(place: str) -> None:
    """Be the worker in another process."""
    HueySqlite(Path(place)).huey.create_consumer(workers=1, periodic=False).run()
