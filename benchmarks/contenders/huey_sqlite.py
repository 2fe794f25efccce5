"""huey on its SQLite storage, as it comes."""

from __future__ import annotations

import logging
import time

from huey import SqliteHuey

from benchmarks.contenders.contender import Contender, Kind
from benchmarks.locations import Location
from benchmarks.worker_process import report_start

logging.getLogger("huey").setLevel(logging.ERROR)


class HueySqlite(Contender):
    """The contender. It has neither coroutines nor a call for many jobs."""

    engine = "sqlite"
    name = "huey"
    statement = "from huey import SqliteHuey"

    def __init__(self, location: Location, kind: Kind) -> None:
        super().__init__(location, kind)
        self.huey = SqliteHuey(filename=location.url("huey").removeprefix("sqlite:///"))

        @self.huey.task()
        def idle(number: int) -> None: ...

        @self.huey.task()
        def stamp(number: int) -> None:
            report_start()

        self._idle = idle
        self._stamp = stamp

    def enqueue(self, number: int) -> None:
        self._idle(number)

    async def aenqueue(self, number: int) -> None:
        self._idle(number)

    def enqueue_many(self, count: int) -> None:
        for number in range(count):
            self._idle(number)

    def drain(self, count: int) -> float:
        consumer = self._consumer()
        start = time.perf_counter()
        consumer.start()
        while self.huey.storage.queue_size():
            time.sleep(0.01)
        elapsed = time.perf_counter() - start
        consumer.stop(graceful=True)
        return elapsed

    def enqueue_stamp(self, delay: float = 0.0) -> None:
        if delay:
            self._stamp.schedule((0,), delay=delay)
        else:
            self._stamp(0)

    def enqueue_stamps(self, count: int) -> None:
        for _ in range(count):
            self._stamp(0)

    def serve(self) -> None:
        self._consumer().run()

    def left(self) -> int:
        return int(self.huey.storage.queue_size() + self.huey.storage.schedule_size())

    def close(self) -> None:
        self.huey.storage.close()

    def _consumer(self):
        return self.huey.create_consumer(workers=1 if self.kind == "async" else 8, periodic=False)
