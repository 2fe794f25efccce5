"""Penstock: a task queue and job scheduler. One model, five engines, nothing lost.

>>> from penstock import Penstock
>>> app = Penstock("memory://")
>>> @app.task
... def double(number: int) -> int:
...     return 2 * number
>>> double(21)
42
"""

from penstock import errors, events
from penstock.app import Penstock
from penstock.context import Cancel, Context, Interrupted, Retry, Snooze, current
from penstock.core.job import Job, State
from penstock.core.needs import Depends
from penstock.core.payload import Payload
from penstock.core.retry import Delays, Exponential, Fixed, Never, PerException
from penstock.errors import (
    EngineError,
    EngineUnavailable,
    JobCancelled,
    JobFailed,
    JobGone,
    PenstockError,
    ResultTimeout,
    UniqueConflict,
    UsageError,
)
from penstock.handle import Handle
from penstock.task import INJECTED, AsyncTask, Sender, Task

__all__ = [
    # an application
    "Penstock",
    "Task",
    "AsyncTask",
    "Sender",
    "Handle",
    "Job",
    "State",
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
    "EngineError",
    "EngineUnavailable",
    # what happened
    "events",
]
