"""The callbacks that a task was declared with, and the drafts that are made of them.

A callback may be named before it is declared: it is looked up when it is needed, and checked when a
worker starts. One that this app does not know is enqueued all the same, with all that there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.config import Settings
from penstock.core.callbacks import ON_FAILURE, ON_SUCCESS, Callback, payload_after
from penstock.core.job import Draft, Job, State
from penstock.core.spec import Spec
from penstock.errors import BadOption
from penstock.options import Options, draft, word
from penstock.task import Sender, TaskOptions

Target = Sender[..., Any] | str
"""A task, a task with options, or a task's name."""


def with_callbacks(
    spec: Spec, given: TaskOptions, tasks: Mapping[str, Sender[..., Any]], settings: Settings
) -> Spec:
    """The task with the callbacks that it was declared with; ``tasks`` are all of the app.

    On failure: ``BadOption``.
    """
    success = _target("on_success", given.get("on_success"))
    failure = _target("on_failure", given.get("on_failure"))
    if success is None and failure is None:
        return spec
    callbacks = TaskCallbacks(success, failure, tasks, settings)
    callbacks.check()
    return replace(spec, callbacks=callbacks)


def check_callbacks(specs: Mapping[str, Spec]) -> None:
    """Raise ``BadOption`` for a callback that wants what it is never given."""
    for spec in specs.values():
        if isinstance(spec.callbacks, TaskCallbacks):
            spec.callbacks.check()


@dataclass(frozen=True, slots=True)
class TaskCallbacks:
    """See ``penstock.core.callbacks.Callbacks``."""

    success: Target | None
    failure: Target | None
    tasks: Mapping[str, Sender[..., Any]]
    settings: Settings

    def check(self) -> None:
        """Raise ``BadOption`` if one that is declared by now wants what it is never given."""
        if self.success is not None:
            self._takes("on_success", self.success, ON_SUCCESS)
        if self.failure is not None:
            self._takes("on_failure", self.failure, ON_FAILURE)

    def after(self, job: Job) -> tuple[Draft, ...]:
        """See the protocol."""
        if job.state is State.SUCCEEDED and self.success is not None:
            takes = self._takes("on_success", self.success, ON_SUCCESS)
            return (self._draft(self.success, payload_after(job, takes)),)
        if job.state is State.FAILED and self.failure is not None:
            takes = self._takes("on_failure", self.failure, ON_FAILURE)
            return (self._draft(self.failure, payload_after(job, takes)),)
        return ()

    @property
    def on_failure(self) -> Callback | None:
        """See the protocol. Options that are functions of the arguments stay behind."""
        if self.failure is None:
            return None
        takes = self._takes("on_failure", self.failure, ON_FAILURE)
        task = self._found(self.failure)
        options = Options() if task is None else replace(task.options, hooks={})
        name = str(self.failure) if task is None else task.name
        return Callback(draft=draft(name, b"{}", options, self.settings), takes=takes)

    def _found(self, target: Target) -> Sender[..., Any] | None:
        return self.tasks.get(target) if isinstance(target, str) else target

    def _draft(self, target: Target, payload: bytes) -> Draft:
        task = self._found(target)
        if task is None:
            return draft(str(target), payload, Options(), self.settings)
        return task.drafted(payload)

    def _takes(self, option: str, target: Target, there: Sequence[str]) -> tuple[str, ...]:
        """What of all that is there the callback takes."""
        task = self._found(target)
        if task is None:
            return tuple(there)
        try:
            return task.spec.signature.taken(there)
        except TypeError as error:
            why = f"{error}; a callback is given {', '.join(there)}"
            raise BadOption(option, task.name, why) from None


def _target(option: str, value: object) -> Target | None:
    if value is None or isinstance(value, Sender):
        return value
    if isinstance(value, str):
        return word(option, value)
    raise BadOption(option, value, "give a task, or the name of one")
