"""How fast Penstock's worker drains jobs: of any kind, or some of a store with many others."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.copy_jobs import copy_job
from benchmarks.locations import Location
from benchmarks.scenario import Figure, Figures, Goal, Scale
from penstock import Penstock

TURNS = 5


class StartCounter:
    """Counts starts, and notes when the first and the last of some jobs did.

    The first tenth warms up: what is measured is how fast it goes, not how it starts.
    """

    def __init__(self, jobs: int) -> None:
        self.count = 0
        self._first, self._last = max(1, jobs // 10), jobs
        self._began_at = self._ended_at = 0.0
        self._is_over = threading.Event()

    def tick(self) -> None:
        """A job starts."""
        self.count += 1
        if self.count == self._first:
            self._began_at = time.perf_counter()
        elif self.count == self._last:
            self._ended_at = time.perf_counter()
            self._is_over.set()

    def rate(self) -> float:
        """Wait until all have started; return jobs per second."""
        assert self._is_over.wait(600), f"{self.count} of {self._last} jobs in ten minutes"
        return (self._last - self._first) / (self._ended_at - self._began_at)


def drained(
    location: Location,
    name: str,
    jobs: int,
    enqueue: Callable[[Any], object],
    *,
    act: Callable[[], None] | None = None,
    task: Mapping[str, Any] | None = None,
    worker: Mapping[str, Any] | None = None,
    queue: Mapping[str, Any] | None = None,
) -> float:
    """How many jobs per second start from a new store.

    ``enqueue`` gets the task, an async one that takes a number, and stores so many jobs of it;
    each of them does ``act``. ``task``, ``worker`` and ``queue`` are the options of the task, of
    the worker that runs them and of the queue "default".
    """
    starts = StartCounter(jobs)
    app = Penstock(location.url(name))

    @app.task(name="idle", **task or {})
    async def idle(number: int) -> None:
        starts.tick()
        if act is not None:
            act()

    if queue:
        app.set_queue("default", **queue)
    enqueue(idle)
    location.settle(name)
    with app.worker_thread(**worker or {}):
        rate = starts.rate()
    app.close()
    return rate


class DrainMeter:
    """A store with a task that counts."""

    def __init__(self, location: Location, name: str) -> None:
        self._location = location
        self._name = name
        self.app = Penstock(location.url(name))
        self._starts = StartCounter(0)

        @self.app.task(name="count")
        async def count(number: int) -> None:
            self._starts.tick()

        self._task = count

    def fill(self, count: int) -> None:
        """Let so many more jobs wait."""
        self._copy(self._task.enqueue(1).id, count)

    def fill_history(self, count: int) -> None:
        """Let so many jobs have succeeded."""
        job = self._task.enqueue(1)
        with self.app.worker_thread():
            job.result(timeout=60)
        self.app.close()
        self._copy(job.id, count)

    def rate(self, count: int) -> float:
        """Let a worker run ``count`` waiting jobs; return jobs per second."""
        self._starts = StartCounter(count)
        with self.app.worker_thread():
            return self._starts.rate()

    def _copy(self, id: str, count: int) -> None:
        copy_job(self._location.url(self._name), id, count)
        self._location.settle(self._name)

    def close(self) -> None:
        """Let the store go."""
        self.app.close()


SHARE = (
    Figure("empty", "jobs/s"),
    Figure("full", "jobs/s"),
    Figure("share", "of 1", (Goal(least=0.8),)),
)


def shares(location: Location, full: DrainMeter, count: int, scale: Scale) -> Figures:
    """Jobs per second from stores with nothing else, from the full one, and what it keeps of them.

    They are drained in turns, so that each machine is its own measure however busy it is.
    """
    rates: dict[str, list[float]] = {"empty": [], "full": []}
    for turn in range(scale.jobs(TURNS, least=2)):
        empty = DrainMeter(location, f"empty_{turn}")
        empty.fill(count)
        rates["empty"].append(empty.rate(count))
        empty.close()
        full.fill(count)
        rates["full"].append(full.rate(count))
    full.close()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return {**medians, "share": medians["full"] / medians["empty"], "turns": rates}
