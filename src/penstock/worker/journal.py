"""What a worker says in the log: one line per event, the event's name first, then its fields."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.errors import EngineError

_log = logging.getLogger("penstock.worker")


class Journal:
    """The log of one worker; any of its threads may write."""

    def __init__(self) -> None:
        self._is_away = False
        self._unknown: set[str] = set()

    def joined(self, worker: str, queues: Sequence[str], tasks: int) -> None:
        """It has its lease."""
        _log.info("worker joined worker=%s queues=%s tasks=%d", worker, ",".join(queues), tasks)

    def left(self, worker: str, stats: object) -> None:
        """It is over."""
        _log.info("worker left worker=%s %s", worker, stats)

    def draining(self, worker: str, seconds: float, running: int) -> None:
        """It claims no more."""
        _log.info("worker draining worker=%s seconds=%g running=%d", worker, seconds, running)

    def gave_up(self, worker: str, running: int, outcomes: int) -> None:
        """It ends although not everything could be settled; a leader will see to the rest."""
        _log.warning("worker gave up worker=%s running=%d unsettled=%d", worker, running, outcomes)

    def left_behind(self, name: str) -> None:
        """A thread of ours did not end in time."""
        _log.warning("thread left behind thread=%s", name)

    def unavailable(self, verb: str, error: Exception) -> None:
        """The store did not do it. Said once aloud, then quietly until it answers again."""
        level = logging.DEBUG if self._is_away else logging.WARNING
        self._is_away = True
        _log.log(level, "store unavailable verb=%s error=%r: %s", verb, type(error).__name__, error)

    def available(self) -> None:
        """The store answers."""
        if self._is_away:
            self._is_away = False
            _log.info("store available again")

    def lease_lost(self, worker: str, dropped: int) -> None:
        """Its jobs belong to others now."""
        _log.warning("lease lost worker=%s dropped=%d", worker, dropped)

    def recovered(self, worker: str, unknown: int, gone: int) -> None:
        """After a lost reply the store was asked what this worker has."""
        _log.info("lost reply worker=%s adopted=%d dropped=%d", worker, unknown, gone)

    def stale(self, worker: str, count: int) -> None:
        """Outcomes came too late and were dropped by the store."""
        _log.warning("outcomes stale worker=%s count=%d", worker, count)

    def unknown_task(self, task: str, known: Sequence[str]) -> None:
        """A job came whose task this process does not have; said once per task."""
        if task in self._unknown:
            return
        self._unknown.add(task)
        _log.error(
            "task unknown task=%r known=%s: its jobs are held until a worker joins that has it; "
            "import the module that declares it before the worker starts",
            task,
            ",".join(sorted(known)) or "none",
        )

    def stuck(self, job: str, task: str, is_replaced: bool) -> None:
        """An attempt must end, and nothing ends it."""
        what = (
            "its process is replaced"
            if is_replaced
            else 'its slot stays taken until this process ends; isolation="process" can be killed'
        )
        _log.error("attempt stuck job=%s task=%s: %s", job, task, what)

    def blocked(self, worker: str, seconds: float, code: str) -> None:
        """The worker's loop does not come round."""
        _log.error(
            "loop blocked worker=%s seconds=%.1f: a coroutine does not let others run; this is "
            "where it is:\n%s",
            worker,
            seconds,
            code,
        )

    def given_back(self, worker: str, count: int) -> None:
        """Jobs that waited behind a loop that does not come round."""
        _log.warning("jobs given back worker=%s count=%d", worker, count)

    def refused(self, job: str, error: EngineError) -> None:
        """The store cannot keep an outcome."""
        _log.error("outcome refused job=%s: %s", job, error)

    def suspect(self, job: str, task: str, crashes: int, where: str) -> None:
        """A job that was in a crash runs apart from the others."""
        _log.warning("suspect job=%s task=%s crashes=%d runs=%s", job, task, crashes, where)
