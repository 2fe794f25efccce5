"""Callbacks: the job that is enqueued in the very step that ends another one.

A task names them (``on_success=``, ``on_failure=``). What a callback is given, by name, as far as
it takes it:

| parameter   | on success                     | on failure                                      |
|-------------|--------------------------------|-------------------------------------------------|
| `job_id`    | the job that has ended         | the same                                        |
| `task`      | its task                       | the same                                        |
| `arguments` | what it was called with        | the same; None if that is no JSON object        |
| `meta`      | its metadata, or None          | the same                                        |
| `result`    | what the task returned         |                                                 |
| `error`     |                                | why it has failed, as text                      |

Who ends the job makes the draft: the worker, or the leader if the worker died. The leader may not
know the task, so workers tell, when they join, which callback their tasks have for a failure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from penstock.core.job import Draft, Job, State

COMMON: Final = ("job_id", "task", "arguments", "meta")
ON_SUCCESS: Final = (*COMMON, "result")
ON_FAILURE: Final = (*COMMON, "error")


class Callback(msgspec.Struct, frozen=True, kw_only=True):
    """The callback of one task for a failure, as it can be told to other processes."""

    draft: Draft
    """What its jobs have in common."""
    takes: tuple[str, ...]
    """What it is given."""

    def after(self, job: Job, id: str) -> Draft:
        """The draft, under this id, for a job that has failed."""
        return replace(
            self.draft,
            id=id,
            payload=payload_after(job, self.takes),
            correlation_id=self.draft.correlation_id or job.correlation_id,
            meta=self.draft.meta or job.meta,
        )


class Callbacks(Protocol):
    """The callbacks of one task, in a process that knows it."""

    def after(self, job: Job) -> tuple[Draft, ...]:
        """What to store with the end of a job, which is given as it will be then.

        On failure: whatever an option says that is a function of the arguments.
        """

    @property
    def on_failure(self) -> Callback | None:
        """What other processes have to know; None: there is none for a failure."""


def payload_after(job: Job, takes: Collection[str]) -> bytes:
    """The arguments of a callback for a job that has ended, as far as it takes them."""
    known = {
        "job_id": job.id,
        "task": job.task,
        "arguments": _raw(job.payload),
        "meta": _raw(job.meta),
        "result": _raw(job.result),
        "error": job.reason or "",
    }
    return msgspec.json.encode({name: known[name] for name in takes})


def has_ended(job: Job) -> bool:
    """The job has ended as something that has callbacks: a cancellation has none."""
    return job.state is State.SUCCEEDED or job.state is State.FAILED


def _raw(found: bytes | None) -> msgspec.Raw | None:
    """Stored JSON as it is; None for what is none."""
    if found is None:
        return None
    try:
        msgspec.json.decode(found, type=msgspec.Raw)
        found.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.Raw(found)
