"""Enqueue and drain together for two minutes: does it go on as it began?

Four threads of this process enqueue single jobs while no more than a thousand wait; a worker in
another process runs them and tells of each by a pipe. So the speed is what the two can keep up
together, window by window.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

from benchmarks.contenders.contender import Contender
from benchmarks.elsewhere import Elsewhere, working_elsewhere
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario

SECONDS = 120.0
WINDOWS = 12
CALLERS = 4
MOST_WAITING = 1_000


class Circle:
    """Threads that enqueue as far as there is room, and one that makes room for each job done."""

    def __init__(self, contender: Contender, other: Elsewhere) -> None:
        self._contender = contender
        self._other = other
        self._room = threading.Semaphore(MOST_WAITING)
        self._is_over = False
        self.done = 0
        self._counter = threading.Thread(target=self._count)
        self._callers = [threading.Thread(target=self._enqueue) for _ in range(CALLERS)]
        for thread in (self._counter, *self._callers):
            thread.start()

    def close(self) -> None:
        """Enqueue no more, and end the worker."""
        self._is_over = True
        self._room.release(CALLERS)
        for thread in self._callers:
            thread.join()
        self._other.end()
        self._counter.join()

    def _enqueue(self) -> None:
        while self._room.acquire() and not self._is_over:
            self._contender.enqueue_stamp()

    def _count(self) -> None:
        while count := self._other.count():
            self.done += count
            self._room.release(count)


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second, the share of the first third that is left in the last, the greatest log,
    and the worker's memory at the end.
    """
    window = scale.seconds(SECONDS, least=2.4) / WINDOWS
    windows = []
    with working_elsewhere(contender) as other:
        circle = Circle(contender, other)
        try:
            for _ in range(WINDOWS):
                began_at, before = time.perf_counter(), circle.done
                time.sleep(window)
                rate = (circle.done - before) / (time.perf_counter() - began_at)
                windows.append({"rate": rate, **_sizes(contender.place, other)})
        finally:
            circle.close()
    third = WINDOWS // 3
    rates = [each["rate"] for each in windows]
    return {
        "rate": statistics.mean(rates),
        "flat": statistics.mean(rates[-third:]) / statistics.mean(rates[:third]),
        "log": max(each["log"] for each in windows),
        "memory": windows[-1]["memory"],
        "windows": windows,
    }


def _sizes(place: Path, other: Elsewhere) -> dict[str, float]:
    """MiB of the log, the store and the worker."""
    log = sum(path.stat().st_size for path in place.glob("*-wal"))
    store = sum(path.stat().st_size for path in place.glob("*.db"))
    return {"log": log / (1 << 20), "store": store / (1 << 20), "memory": other.memory()}


SCENARIO = Scenario(
    about="enqueue and drain together for 2 minutes",
    figures=(
        Figure("rate", "jobs/s"),
        Figure("flat", "of 1", Goal(least=0.9)),
        Figure("log", "MiB", less_is_better=True),
        Figure("memory", "MiB", less_is_better=True),
    ),
    run=measure,
    contenders=("penstock",),
    rounds=1,
)
