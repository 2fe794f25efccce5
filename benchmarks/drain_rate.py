"""How fast Penstock's worker drains some jobs of a store that holds many others."""

from __future__ import annotations

import statistics
import threading
import time

from benchmarks.copy_jobs import copy_job
from benchmarks.locations import Location
from benchmarks.scenario import Figure, Figures, Goal, Scale
from penstock import Penstock

TURNS = 5


class DrainMeter:
    """A store with a task that counts, and notes when the first and the last of some jobs ran."""

    def __init__(self, location: Location, name: str) -> None:
        self._location = location
        self._name = name
        self.app = Penstock(location.url(name))
        self._count = 0
        self._first = 0
        self._last = 0
        self._began_at = 0.0
        self._ended_at = 0.0
        self._is_over = threading.Event()

        @self.app.task(name="count")
        async def count(number: int) -> None:
            self._tick()

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
        """Let a worker run ``count`` waiting jobs; return jobs per second.

        The first tenth warms up: what is measured is how fast it goes, not how it starts.
        """
        self._count, self._first, self._last = 0, max(1, count // 10), count
        self._is_over.clear()
        with self.app.worker_thread():
            assert self._is_over.wait(600), f"{self._count} of {count} jobs in ten minutes"
        return (self._last - self._first) / (self._ended_at - self._began_at)

    def _copy(self, id: str, count: int) -> None:
        copy_job(self._location.url(self._name), id, count)
        self._location.settle(self._name)

    def _tick(self) -> None:
        self._count += 1
        if self._count == self._first:
            self._began_at = time.perf_counter()
        elif self._count == self._last:
            self._ended_at = time.perf_counter()
            self._is_over.set()

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
