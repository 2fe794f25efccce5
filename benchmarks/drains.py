"""Drains of new stores by one worker of this process, whatever the jobs and the queues are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.contenders.contender import Contender
from benchmarks.scenario import Scale
from benchmarks.stopwatch import seconds
from penstock import Penstock, State

JOBS = {"memory": 40_000, "sqlite": 20_000, "postgres": 60_000}
"""A drain takes a second or so if they do nothing: starting and ending a worker is in it."""


class Drains:
    """Stores with so many jobs each, made and drained when asked for."""

    def __init__(self, contender: Contender, scale: Scale) -> None:
        self._location = contender.location
        self.count = scale.jobs(JOBS[contender.engine])
        self.items = [(number,) for number in range(self.count)]
        """What an ``enqueue_many`` of all of them takes."""

    def rate(
        self,
        name: str,
        enqueue: Callable[[Any], object] | None = None,
        *,
        act: Callable[[], None] | None = None,
        task: Mapping[str, Any] | None = None,
        worker: Mapping[str, Any] | None = None,
        queue: Mapping[str, Any] | None = None,
    ) -> float:
        """Jobs per second, from the start of the worker to its end, when no job is left to be run.

        ``enqueue`` gets the task, which takes a number, and stores all jobs, if that is not simply
        done; each of them does ``act``. ``task``, ``worker`` and ``queue`` are the options of the
        task, of the worker and of the queue "default".
        """
        app = Penstock(self._location.url(name))

        @app.task(name="idle", **task or {})
        async def idle(number: int) -> None:
            if act is not None:
                act()

        app.worker_thread()  # imports what a worker needs
        if queue:
            app.set_queue("default", **queue)
        if enqueue is None:
            idle.enqueue_many(self.items)
        else:
            enqueue(idle)
        self._location.settle(name)
        elapsed = seconds(lambda: app.run_worker(until_empty=True, **worker or {}))
        counts = {each.state: each.jobs for each in app.counts() if each.jobs}
        app.close()
        assert not {State.READY, State.RUNNING} & counts.keys(), counts
        return self.count / elapsed
