"""What a worker says in the log: one line per event, the event's name first, then its fields."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from penstock.core.job import Job, Outcome, OutcomeKind
from penstock.errors import EngineError
from penstock.logs import say
from penstock.worker.status import Stats

_log: Final = logging.getLogger("penstock.worker")

_BAD: Final[Mapping[OutcomeKind, tuple[int, str]]] = MappingProxyType(
    {
        OutcomeKind.FAILED: (logging.ERROR, "job failed"),
        OutcomeKind.RETRY: (logging.WARNING, "attempt failed"),
        OutcomeKind.CRASHED: (logging.WARNING, "attempt crashed"),
    }
)


class Journal:
    """The log of one worker; any of its threads may write."""

    def __init__(self) -> None:
        self._is_away = False
        self._unknown: set[str] = set()

    @property
    def is_verbose(self) -> bool:
        """Attempts that end well are logged, too."""
        return _log.isEnabledFor(logging.DEBUG)

    # --- the worker ----------------------------------------------------------------------------

    def joined(self, worker: str, queues: Sequence[str], tasks: int) -> None:
        """It has its lease."""
        say(
            _log, logging.INFO, "worker joined", worker=worker, queues=",".join(queues), tasks=tasks
        )

    def left(self, worker: str, stats: Stats) -> None:
        """It is over."""
        say(_log, logging.INFO, "worker left", worker=worker, **stats.counted())

    def start_up_cut_short(self, worker: str) -> None:
        """It was told to stop before its start-up hooks had ended."""
        say(_log, logging.WARNING, "start-up cut short", worker=worker)

    def draining(self, worker: str, seconds: float, running: int) -> None:
        """It claims no more."""
        event = "worker draining"
        say(_log, logging.INFO, event, worker=worker, seconds=round(seconds, 3), running=running)

    def gave_up(self, worker: str, running: int, outcomes: int) -> None:
        """It ends although not everything could be settled; a leader will see to the rest."""
        event = "worker gave up"
        say(_log, logging.WARNING, event, worker=worker, running=running, unsettled=outcomes)

    def left_behind(self, name: str) -> None:
        """A thread of ours did not end in time."""
        say(_log, logging.WARNING, "thread left behind", thread=name)

    def blocked(self, worker: str, seconds: float, code: str) -> None:
        """The worker's loop does not come round."""
        event = "loop blocked: a coroutine does not let others run"
        say(_log, logging.ERROR, event, worker=worker, seconds=round(seconds, 1), code=code)

    def given_back(self, worker: str, count: int) -> None:
        """Jobs that waited behind a loop that does not come round."""
        say(_log, logging.WARNING, "jobs given back", worker=worker, count=count)

    # --- the store -----------------------------------------------------------------------------

    def unavailable(self, verb: str, error: Exception) -> None:
        """The store did not do it. SignOfLife once aloud, then quietly until it answers again."""
        level = logging.DEBUG if self._is_away else logging.WARNING
        self._is_away = True
        say(_log, level, "store unavailable", verb=verb, error=type(error).__name__, why=str(error))

    def available(self) -> None:
        """The store answers."""
        if self._is_away:
            self._is_away = False
            say(_log, logging.INFO, "store available again")

    def lease_lost(self, worker: str, dropped: int) -> None:
        """Its jobs belong to others now."""
        say(_log, logging.WARNING, "lease lost", worker=worker, dropped=dropped)

    def recovered(self, worker: str, unknown: int, gone: int) -> None:
        """After a lost reply the store was asked what this worker has."""
        say(_log, logging.INFO, "lost reply", worker=worker, adopted=unknown, dropped=gone)

    def stale(self, worker: str, count: int) -> None:
        """Outcomes came too late and were dropped by the store."""
        say(_log, logging.WARNING, "outcomes stale", worker=worker, count=count)

    # --- jobs ----------------------------------------------------------------------------------

    def ended(self, job: Job, outcome: Outcome) -> None:
        """An attempt has ended; said aloud if it ended badly."""
        level, event = _BAD.get(outcome.kind, (logging.DEBUG, "attempt ended"))
        if not _log.isEnabledFor(level):
            return
        facts: dict[str, Any] = {"job": job.id, "task": job.task, "attempt": job.attempt}
        if job.correlation_id is not None:
            facts["correlation_id"] = job.correlation_id
        if level == logging.DEBUG:
            facts["outcome"] = outcome.kind.value
        if outcome.kind is OutcomeKind.RETRY:
            facts["again_in"] = round(outcome.delay, 3)
        say(_log, level, event, **facts, reason=outcome.reason or "")

    def unknown_task(self, task: str, known: Sequence[str]) -> None:
        """A job came whose task this process does not have; said once per task."""
        if task in self._unknown:
            return
        self._unknown.add(task)
        event = (
            "task unknown: its jobs are held until a worker joins that has it; import the module "
            "that declares it before the worker starts"
        )
        say(_log, logging.ERROR, event, task=task, known=",".join(sorted(known)) or "none")

    def refused(self, job: str, error: EngineError) -> None:
        """The store cannot keep an outcome."""
        say(_log, logging.ERROR, "outcome refused", job=job, why=str(error))

    def suspect(self, job: str, task: str, crashes: int, where: str) -> None:
        """A job that was in a crash runs apart from the others."""
        say(_log, logging.WARNING, "suspect", job=job, task=task, crashes=crashes, runs=where)

    def stuck(self, job: str, task: str, is_replaced: bool) -> None:
        """An attempt must end, and nothing ends it."""
        event = "attempt stuck: its process is replaced"
        if not is_replaced:
            event = (
                "attempt stuck: its slot stays taken until this process ends; a task with "
                'isolation="process" can be killed'
            )
        say(_log, logging.ERROR, event, job=job, task=task)
