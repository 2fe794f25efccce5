"""What a worker and a child say about one attempt, and what it means if the child dies.

The worker writes a ``Request``; the child answers ``Began``, any number of ``Said``, and ``Ended``;
or ``Unfit``. If the child dies

| here                       | then                                                            |
|----------------------------|-----------------------------------------------------------------|
| before it reads a request  | the attempt has not started: it may run in another child        |
| before ``Began``           | the same                                                        |
| after ``Began``            | the attempt is ``crashed``, with the way its process died; or   |
|                            | what the worker wanted when it killed it                        |
| after ``Ended``            | the outcome stands, even if the worker was about to kill it     |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

import msgspec

from penstock.core.duration import text
from penstock.core.job import ErrorRecord, Outcome, OutcomeKind
from penstock.engines.records import Report
from penstock.worker.attempt import Attempt
from penstock.worker.child.frames import Began, Ended, Request, Said, Unfit
from penstock.worker.child.process import ChildProcess, died
from penstock.worker.memory import resident

START_UP: Final = 60.0
"""Seconds that a child may take to reach the task."""

LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the memory of a child."""


@dataclass(frozen=True, slots=True)
class Died:
    """The child did not live to the end of the attempt."""

    how: str
    has_begun: bool
    used: int | None = None
    """The bytes of memory for which it was killed, if it was."""


def talk(
    child: ChildProcess, request: Request, attempt: Attempt, began: Callable[[], object]
) -> Unfit | Ended | Died:
    """Let a child run an attempt; return its last word, or how it died.

    Blocks until then. ``began`` is called when the handler is. A child that has died is buried.
    """
    child.send(request)
    limit = attempt.spec.max_memory
    patience: float | None = START_UP
    has_begun, used, how = False, None, ""
    while True:
        try:
            frame = child.receive(patience)
        except TimeoutError:
            if not has_begun:
                how = f"did not reach the task in {text(START_UP)}"
            elif (found := resident(child.pid)) is None or limit is None or found <= limit:
                continue
            else:
                used = found
            child.kill()
            patience = None
            continue
        except msgspec.DecodeError as error:
            how = f"was killed: it wrote what nobody can read ({error})"
            child.kill()
            frame = None
        match frame:
            case Began():
                has_begun = True
                patience = None if limit is None else LOOK_EVERY
                began()
            case Said(report):
                relay(attempt, report)
            case Ended():
                if frame.report is not None:
                    relay(attempt, frame.report)
                return frame
            case Unfit():
                return frame
            case None:
                code = child.bury()
                return Died(how or died(code), has_begun, used)
            case _:
                assert_never(frame)


def relay(attempt: Attempt, report: Report | None) -> None:
    """Let the worker's own context say what the child's has said."""
    if report is None or report.fraction is None:
        attempt.context.alive()
    else:
        attempt.context.progress(report.fraction, report.note or "")


def crashed(attempt: Attempt, how: str, at: float, worker: str) -> Outcome:
    """The outcome of an attempt whose process died."""
    job, message = attempt.job, f"its process {how}"
    error = ErrorRecord(attempt=job.attempt, at=at, kind="crash", message=message, worker=worker)
    return Outcome(
        job=job.id, attempt=job.attempt, kind=OutcomeKind.CRASHED, reason=message, error=error
    )
