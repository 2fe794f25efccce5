"""Enqueue and drain together, as fast as both can keep up, measured window by window.

Threads of this process enqueue while no more than a certain number waits; a worker in another
process runs the jobs and reports each by a pipe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.contenders.contender import Contender
from benchmarks.worker_process import WorkerProcess


class Throughput:
    """Threads that enqueue as far as there is room, and one that makes room for each job done."""

    def __init__(
        self,
        contender: Contender,
        other: WorkerProcess,
        *,
        room: int,
        callers: int = 1,
        bulk: int = 1,
    ) -> None:
        self._contender = contender
        self._other = other
        self._bulk = bulk
        self._room = threading.Semaphore(room)
        self._is_over = False
        self.done = 0
        self._counter = threading.Thread(target=self._count)
        self._callers = [threading.Thread(target=self._enqueue) for _ in range(callers)]
        for thread in (self._counter, *self._callers):
            thread.start()

    def windows(
        self, seconds: float, count: int, note: Callable[[], Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """The rate in each of ``count`` windows, with what is to be noted at its end."""
        found = []
        for _ in range(count):
            began_at, before = time.perf_counter(), self.done
            time.sleep(seconds / count)
            rate = (self.done - before) / (time.perf_counter() - began_at)
            found.append({"rate": rate, **note()})
        return found

    def close(self) -> None:
        """Enqueue no more, and end the worker."""
        self._is_over = True
        self._room.release(len(self._callers) * self._bulk)
        for thread in self._callers:
            thread.join()
        self._other.end()
        self._counter.join()

    def _enqueue(self) -> None:
        while True:
            for _ in range(self._bulk):
                self._room.acquire()
            if self._is_over:
                return
            if self._bulk == 1:
                self._contender.enqueue_stamp()
            else:
                self._contender.enqueue_stamps(self._bulk)

    def _count(self) -> None:
        while count := self._other.count():
            self.done += count
            self._room.release(count)
