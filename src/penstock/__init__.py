"""Penstock: a task queue and job scheduler. One model, five engines, nothing lost.

>>> from penstock import Penstock
>>> app = Penstock("memory://")
>>> @app.task
... def double(number: int) -> int:
...     return 2 * number
>>> double(21)
42

Names are found when they are first used, so that a test run or a command that needs none of them
does not wait for any.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock import errors, events
    from penstock.app import Penstock
    from penstock.context import Cancel, Context, Interrupted, Retry, Snooze, current
    from penstock.core.injection import Depends
    from penstock.core.job import State
    from penstock.core.metadata import NewJob
    from penstock.core.retry import Delays, Exponential, Fixed, Never, PerException
    from penstock.core.signature import Payload
    from penstock.errors import (
        EngineError,
        EngineUnavailable,
        IdConflict,
        JobCancelled,
        JobFailed,
        JobGone,
        PenstockError,
        ResultTimeout,
        UniqueConflict,
        UsageError,
    )
    from penstock.handle import Handle
    from penstock.job import FailedAttempt, Job
    from penstock.options import Call
    from penstock.results import agather, as_completed, gather
    from penstock.router import Router
    from penstock.task import INJECTED, AsyncTask, Sender, Task

__all__ = [
    # an application
    "Penstock",
    "Router",
    "Task",
    "AsyncTask",
    "Sender",
    "Handle",
    "Call",
    "NewJob",
    "Job",
    "FailedAttempt",
    "State",
    "gather",
    "agather",
    "as_completed",
    # inside a task
    "Context",
    "INJECTED",
    "Depends",
    "Payload",
    "current",
    "Retry",
    "Snooze",
    "Cancel",
    "Interrupted",
    # retry policies
    "Exponential",
    "Fixed",
    "Delays",
    "Never",
    "PerException",
    # what can go wrong
    "errors",
    "PenstockError",
    "UsageError",
    "JobFailed",
    "JobCancelled",
    "JobGone",
    "ResultTimeout",
    "UniqueConflict",
    "IdConflict",
    "EngineError",
    "EngineUnavailable",
    # what happened
    "events",
]

_HOMES: Final = {
    "app": "Penstock",
    "context": "Cancel Context Interrupted Retry Snooze current",
    "core.job": "State",
    "core.injection": "Depends",
    "core.metadata": "NewJob",
    "core.signature": "Payload",
    "core.retry": "Delays Exponential Fixed Never PerException",
    "errors": "EngineError EngineUnavailable IdConflict JobCancelled JobFailed JobGone "
    "PenstockError ResultTimeout UniqueConflict UsageError",
    "handle": "Handle",
    "job": "FailedAttempt Job",
    "options": "Call",
    "results": "agather as_completed gather",
    "router": "Router",
    "task": "INJECTED AsyncTask Sender Task",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "events"):
        return import_module(f"penstock.{name}")
    for home, names in _HOMES.items():
        if name in names.split():
            found = globals()[name] = getattr(import_module(f"penstock.{home}"), name)
            return found
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
