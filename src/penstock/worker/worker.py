"""The worker, as its owner sees it: run it, stop it from anywhere, look at its counters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

from penstock.clock import Clock
from penstock.core.spec import Spec
from penstock.engines.engine import Engine
from penstock.worker.overseer import Nobody, Overseer
from penstock.worker.settings import WorkerSettings
from penstock.worker.shift import Shift
from penstock.worker.stats import Stats


class Worker:
    """Runs jobs of the tasks in ``specs``. ``connect`` makes a new, unopened handle each time it is
    called; the worker opens and closes what it gets.
    """

    def __init__(
        self,
        connect: Callable[[], Engine],
        specs: Mapping[str, Spec],
        settings: WorkerSettings | None = None,
        *,
        clock: Clock,
        overseer: Overseer | None = None,
    ) -> None:
        self.settings = settings or WorkerSettings()
        self.ready = asyncio.Event()
        """Set once the store has given it its lease."""
        self.stats = Stats()
        self._connect = connect
        self._specs = specs
        self._clock = clock
        self._overseer = overseer or Nobody()
        self._lock = threading.Lock()
        self._shift: Shift | None = None
        self._stop_in: float | None = None
        self._ends_when_empty = False

    @property
    def id(self) -> str:
        """Its present id: new with each run and after each lost lease; empty before the first."""
        return self._shift.lease.worker if self._shift is not None else ""

    async def run(self, *, until_empty: bool = False) -> None:
        """Run jobs until ``stop``, and return when everything is settled.

        With ``until_empty``, also when no job of its queues is ready, runs or is due any more. Jobs
        that are scheduled for later do not count, retries included; nor do those that wait for an
        unknown task, a dependency, a breaker or in a paused queue.

        Being cancelled is a ``stop(0)``: what runs is given back before this raises.
        On failure: what ``open`` raises, except that a store which is away is waited for.
        """
        shift = Shift(
            self._connect,
            self._specs,
            self.settings,
            self._clock,
            self.stats,
            self._overseer,
            self.ready.set,
        )
        with self._lock:
            self._shift = shift
            self._ends_when_empty = self._ends_when_empty or until_empty
        shift.heed(self._stop_in, self._ends_when_empty)
        await shift.work()

    def stop(self, drain: float | None = None) -> None:
        """Let ``run`` end, from any thread: running attempts may go on for ``drain`` seconds, by
        default those of the settings. Called again, the shorter time counts.
        """
        seconds = self.settings.drain if drain is None else max(0.0, drain)
        with self._lock:
            self._stop_in = seconds if self._stop_in is None else min(seconds, self._stop_in)
            self._tell(seconds)

    def stop_when_empty(self) -> None:
        """Let ``run`` end when there is nothing left to do, from any thread; see ``run``."""
        with self._lock:
            self._ends_when_empty = True
            self._tell(None)

    def _tell(self, seconds: float | None) -> None:
        shift = self._shift
        if shift is not None:
            try:
                shift.loop.call_soon_threadsafe(shift.heed, seconds, self._ends_when_empty)
            except RuntimeError:
                pass  # its loop is closed: it has stopped
