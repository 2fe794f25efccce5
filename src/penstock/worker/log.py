"""What a worker writes to the log: one line per event, the event's name first, then its fields."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock.core.job import Job, Outcome, OutcomeKind
from penstock.logs import say, say_given_up

_log: Final = logging.getLogger("penstock.worker")

_BAD: Final[Mapping[OutcomeKind, tuple[int, str]]] = MappingProxyType(
    {
        OutcomeKind.FAILED: (logging.ERROR, "job failed"),
        OutcomeKind.RETRY: (logging.WARNING, "attempt failed"),
        OutcomeKind.CRASHED: (logging.WARNING, "attempt crashed"),
    }
)


class WorkerLog:
    """The log of one worker; any of its threads may write. It remembers what is said only once."""

    def __init__(self) -> None:
        self._is_away = False
        self._unknown: set[str] = set()

    @property
    def is_verbose(self) -> bool:
        """Attempts that end well are logged, too."""
        return _log.isEnabledFor(logging.DEBUG)

    def info(self, event: str, **fields: Any) -> None:
        say(_log, logging.INFO, event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        say(_log, logging.WARNING, event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        say(_log, logging.ERROR, event, **fields)

    def unavailable(self, verb: str, error: Exception) -> None:
        """A call to the store failed: a warning the first time, then quiet until it answers."""
        level = logging.DEBUG if self._is_away else logging.WARNING
        self._is_away = True
        say(_log, level, "store unavailable", verb=verb, error=type(error).__name__, why=str(error))

    def available(self) -> None:
        """A call to the store succeeded."""
        if self._is_away:
            self._is_away = False
            self.info("store available again")

    def attempt_ended(self, job: Job, outcome: Outcome) -> None:
        """An attempt has ended; only one that ended badly is more than a detail."""
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

    def given_up(self, job: str, reason: str) -> None:
        """An attempt has crashed, and the store has let its job fail."""
        say_given_up(_log, job, reason)

    def unknown_task(self, task: str, known: Iterable[str]) -> None:
        """A job came whose task this process does not have; said once per task."""
        if task in self._unknown:
            return
        self._unknown.add(task)
        event = (
            "task unknown: its jobs are held until a worker joins that has it; import the module "
            "that declares it before the worker starts"
        )
        self.error(event, task=task, known=",".join(sorted(known)) or "none")
