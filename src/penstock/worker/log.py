"""What a worker writes to the log: one line per event, the event's name first, then its fields."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock.context import Retry
from penstock.core.job import Job, Outcome, OutcomeKind
from penstock.logs import OutageLog, say, say_given_up
from penstock.worker.error_record import kind_of

_log: Final = logging.getLogger("penstock.worker")

_BAD: Final[Mapping[OutcomeKind, tuple[int, str]]] = MappingProxyType(
    {
        OutcomeKind.FAILED: (logging.ERROR, "job failed"),
        OutcomeKind.RETRY: (logging.WARNING, "attempt failed"),
        OutcomeKind.CRASHED: (logging.WARNING, "attempt crashed"),
    }
)


NO_TASKS: Final = (
    'import the modules that declare tasks: Penstock(imports=["mail.tasks"]), or '
    "penstock worker --import mail.tasks"
)

_ASKED: Final = kind_of(Retry())
"""A retry that the handler asked for is no error: its traceback tells nothing."""

LONGEST_REASON: Final = 300
"""Characters of a reason in a log line; all of it is in the traceback and in the store."""


class WorkerLog:
    """The log of one worker; any of its threads may write. It remembers what is said only once."""

    def __init__(self) -> None:
        self._outage = OutageLog(_log)
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

    def unavailable(self, verb: str, error: Exception, *, caller: str = "exchange") -> None:
        """A call to the store failed: a warning if that is news, then quiet until it is over."""
        self._outage.failed(caller, verb, error)

    def available(self, caller: str = "exchange") -> None:
        """What this caller goes on trying has succeeded."""
        self._outage.succeeded(caller)

    def attempt_ended(
        self, job: Job, outcome: Outcome, raised: BaseException | None = None
    ) -> None:
        """An attempt has ended; only one that ended badly is more than a detail.

        Its traceback is the one in the outcome's record. ``raised`` is the exception itself, where
        it was raised in this process.
        """
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
        facts["reason"] = _brief(outcome.reason or "")
        error = outcome.error
        trace = None if error is None or error.kind == _ASKED else error.traceback
        say(_log, level, event, exc_info=raised if trace else None, trace=trace, **facts)

    def blocked(self, worker: str, seconds: float, code: str) -> None:
        """A coroutine does not let others run; ``code`` is where, as a stack."""
        say(
            _log,
            logging.ERROR,
            "loop blocked",
            trace=code,
            worker=worker,
            seconds=seconds,
            hint="a coroutine does not let others run; await what takes long",
        )

    def given_up(self, job: str, reason: str) -> None:
        """An attempt has crashed, and the store has let its job fail."""
        say_given_up(_log, job, reason)

    def unknown_task(self, task: str, known: Iterable[str]) -> None:
        """A job came whose task this process does not have; said once per task."""
        if task in self._unknown:
            return
        self._unknown.add(task)
        say(
            _log,
            logging.ERROR,
            "task unknown",
            task=task,
            known=",".join(sorted(known)) or "none",
            hint=f"its jobs are held until a worker has it; {_where(task)}",
        )

    def no_tasks(self, worker: str) -> None:
        """This worker has joined, and there is nothing that it could run."""
        say(_log, logging.WARNING, "no tasks", worker=worker, hint=NO_TASKS)


def _where(task: str) -> str:
    """What to import, as far as the task's name tells."""
    module = task.rpartition(".")[0]
    if not module:
        return "import the module that declares it"
    return f"import the module that declares it: penstock worker --import {module}"


def _brief(reason: str) -> str:
    """The first line of a reason, bounded."""
    line, _, more = reason.partition("\n")
    if len(line) > LONGEST_REASON:
        return f"{line[:LONGEST_REASON]}..."
    return f"{line} ..." if more else line
