"""What a test can see of the jobs in a sandbox: what was enqueued, and a snapshot of all."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from penstock.app import Penstock
from penstock.core.job import Draft, Job
from penstock.core.spec import Spec
from penstock.core.units import text
from penstock.errors import BadOption, BadPayload, BadTask
from penstock.options import DEFAULTS, Options, checked
from penstock.task import Sender
from penstock.testing.harness import Harness

AnyTask = Sender[..., Any] | str
"""A task, a task with options (``send.using(...)``), or a task's name."""

_FILLED_IN: Final = object()
_MOST: Final = 5
"""Entries that a message shows."""

_PLAIN: Final = (str, int, float, datetime, timedelta, list, tuple)

OPTIONS: Final = frozenset(DEFAULTS)
"""By what a job may be recognised beside its arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One job as it was enqueued."""

    draft: Draft
    arguments: Mapping[str, Any]
    """What the task is called with, by name, with its defaults."""
    at: float
    """The instant by the sandbox's clock."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self.draft.id

    @property
    def task(self) -> str:
        """The task's name."""
        return self.draft.task

    @property
    def delay(self) -> float:
        """How long after it was enqueued it is due."""
        run_at = self.draft.run_at
        return self.draft.delay if run_at is None else max(0.0, run_at - self.at)

    @property
    def run_at(self) -> float | None:
        """The instant at which it is due, where one was asked for, or a delay."""
        delay = self.draft.delay
        return self.at + delay if self.draft.run_at is None and delay else self.draft.run_at

    def __str__(self) -> str:
        call = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        unusual = [
            f"{name}={text(value) if name in _DURATIONS else repr(value)}"
            for name, default in DEFAULTS.items()
            if name not in _OF_ALL and (value := getattr(self.draft, name)) != default
        ]
        return f"{self.task}({call}){''.join(f' {each}' for each in unusual)}"


_OF_ALL: Final = frozenset({"id", "keep", "keep_failed"})
"""Every job has these, asked for or not."""
_DURATIONS: Final = frozenset({"delay", "expires_in", "unique_for", "keep", "keep_failed"})


def arguments_of(spec: Spec | None, payload: bytes) -> dict[str, Any]:
    """What a payload calls its task with, by name; plain JSON where no task knows better."""
    plain = msgspec.json.decode(payload)
    if spec is None:
        return dict(plain)
    try:
        args, kwargs = spec.signature.decode(payload, _FILLED_IN)
    except (BadPayload, BadTask):
        return dict(plain)
    bound = inspect.signature(spec.function).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if value is not _FILLED_IN}


@dataclass(frozen=True, slots=True)
class Expectation:
    """A task, and what is said of its arguments and options; what is not said may be anything."""

    task: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]

    def differences(self, entry: Entry) -> list[str]:
        """Where an entry is not as expected, in words."""
        if entry.task != self.task:
            return [f"its task is {entry.task}"]
        found = []
        for name, value in self.arguments.items():
            if name not in entry.arguments:
                found.append(f"{name} is not among its arguments")
            elif not _is_same(entry.arguments[name], value):
                found.append(f"{name} is {entry.arguments[name]!r}, not {value!r}")
        for name, value in self.options.items():
            actual = getattr(entry if name in ("delay", "run_at") else entry.draft, name)
            if not _is_same(actual, value):
                found.append(f"{name} is {actual!r}, not {value!r}")
        return found

    def __str__(self) -> str:
        said = [f"{name}={value!r}" for name, value in {**self.arguments, **self.options}.items()]
        return f"{self.task}({', '.join(said)})" if said else self.task


def _report(expected: Expectation, entries: Sequence[Entry], wanted: str) -> str:
    """Why a test's expectation is not met, with what was enqueued instead, nearest first."""
    lines = [f"{wanted} was to be enqueued as {expected}"]
    if not entries:
        return f"{lines[0]}, but nothing was enqueued at all"
    judged = [(expected.differences(entry), entry) for entry in entries]
    judged.sort(key=lambda pair: (pair[1].task != expected.task, len(pair[0])))
    lines.append("what was enqueued, nearest first:")
    for differences, entry in judged[:_MOST]:
        lines.append(f"  {entry}")
        lines += [f"    {each}" for each in differences or ["this one is as expected"]]
    if len(judged) > _MOST:
        lines.append(f"  and {len(judged) - _MOST} more")
    return "\n".join(lines)


def _chosen(options: Options, declared: Options) -> dict[str, Any]:
    """What ``using`` has changed."""
    return {
        each.name: getattr(options, each.name)
        for each in fields(Options)
        if each.name in DEFAULTS and getattr(options, each.name) != getattr(declared, each.name)
    }


def _option(name: str, value: Any, labels: Mapping[str, int]) -> Any:
    """An option as a draft has it; what only compares itself, such as ``ANY``, stays."""
    if value is None or not isinstance(value, _PLAIN):
        return value
    return checked(name, value, labels)


def _is_same(actual: Any, expected: Any) -> bool:
    if actual == expected:
        return True
    try:
        return bool(_json(actual) == _json(expected))
    except (TypeError, ValueError):
        return False


def _json(value: Any) -> Any:
    """The value as it comes back where no annotation says what it was."""
    return msgspec.json.decode(msgspec.json.encode(value))


class Inspector:
    """Looks at the store of one sandbox, with what the app knows of its tasks."""

    def __init__(self, app: Penstock, harness: Harness, start: float) -> None:
        self._app = app
        self._harness = harness
        self._start = start

    def declared(self, task: AnyTask) -> Sender[..., Any]:
        """The task as it was declared with this app. On failure: ``BadOption``."""
        name = task if isinstance(task, str) else task.name
        found = self._app.tasks.get(name)
        if found is None:
            known = ", ".join(self._app.tasks) or "no task at all"
            raise BadOption("task", name, f"the app of this sandbox does not know it, but {known}")
        return found

    def entries(self) -> list[Entry]:
        """What was enqueued, in order."""
        return [
            Entry(
                each.draft, arguments_of(self._spec(each.draft.task), each.draft.payload), each.at
            )
            for each in list(self._harness.log.stored)
        ]

    def enqueued(
        self, task: AnyTask, args: tuple[Any, ...], expected: Mapping[str, Any]
    ) -> list[Entry]:
        """Those of the entries that fit."""
        expectation = self._expectation(task, args, expected)
        return [entry for entry in self.entries() if not expectation.differences(entry)]

    def check_enqueued(
        self,
        task: AnyTask,
        args: tuple[Any, ...],
        expected: Mapping[str, Any],
        count: int | None,
    ) -> list[Entry]:
        """See ``Sandbox.assert_enqueued``."""
        found = self.enqueued(task, args, expected)
        if count is not None and "count" in self._parameters(task):
            why = "the task has a parameter of that name: give it by place, and count the jobs with"
            raise BadOption("count", count, f"{why} len(t.enqueued(...))")
        if (count is None and found) or len(found) == count:
            return found
        wanted = "a job"
        if count is not None:
            jobs = "job was" if count == 1 else "jobs were"
            wanted = f"{len(found)} jobs fit where {count} {jobs} expected: a job"
        raise self.unmet(task, args, expected, wanted)

    def unmet(
        self, task: AnyTask, args: tuple[Any, ...], expected: Mapping[str, Any], wanted: str
    ) -> AssertionError:
        """What is wrong with what was enqueued."""
        return AssertionError(
            _report(self._expectation(task, args, expected), self.entries(), wanted)
        )

    def _expectation(
        self, task: AnyTask, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> Expectation:
        """What ``assert_enqueued(task, *args, **given)`` means.

        A name is an argument if the task has such a parameter, else an option.
        On failure: ``BadOption`` for a name that is neither.
        """
        if not isinstance(task, Sender | str):
            raise BadOption("task", task, "give a task of the app, or its name")
        name, options = task if isinstance(task, str) else task.name, dict[str, Any]()
        if isinstance(task, Sender):
            options = _chosen(task.options, self.declared(task).options)
        spec = self._spec(name)
        parameters = self._parameters(task)
        arguments: dict[str, Any] = {}
        for each, value in given.items():
            if each in parameters or (spec is None and each not in OPTIONS):
                arguments[each] = value
            elif each in OPTIONS:
                options[each] = _option(each, value, self._app.settings.priorities)
            else:
                known = ", ".join([*parameters, *sorted(OPTIONS)])
                raise BadOption(each, value, f"{name} has no such parameter; there are {known}")
        if args:
            if spec is None:
                raise BadOption("args", args, f"{name} is not declared here; give them by name")
            try:
                placed = spec.signature.given.bind_partial(*args, **arguments).arguments
            except TypeError as error:
                raise BadOption("args", args, f"{error}; it is {name}{spec.signature}") from error
            arguments |= placed
        return Expectation(name, arguments, options)

    def _parameters(self, task: AnyTask) -> tuple[str, ...]:
        """What callers of the task give, by name; nothing where no such task is declared."""
        spec = self._spec(task if isinstance(task, str) else task.name)
        return () if spec is None else tuple(spec.signature.given.parameters)

    def snapshot(self) -> dict[str, Any]:
        """See ``Sandbox.snapshot``."""
        chosen = {each.draft.id for each in self._harness.log.stored if each.draft.remember > 0}
        specs = {name: task.spec for name, task in self._app.tasks.items()}
        now = self._harness.clock.now()
        return _picture(self._harness.jobs(), specs, self._start, now, frozenset(chosen))

    def _spec(self, name: str) -> Spec | None:
        task = self._app.tasks.get(name)
        return None if task is None else task.spec


# --- snapshot -----------------------------------------------------------------------------------

_FIELDS: Final = ("key", "unique", "name", "progress", "note", "attempt", "failures", "crashes")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_INSTANTS: Final = ("run_at", "expires_at", "finished_at", "hold_until")


def _picture(
    jobs: Sequence[Job], specs: Mapping[str, Spec], start: float, now: float, own: frozenset[str]
) -> dict[str, Any]:
    """The jobs in the order they were enqueued. What says nothing is left out.

    Instants are seconds since ``start``. An id is a number unless a caller chose it: ``own`` are
    those.
    """
    labels = {
        job.id: job.id if job.id in own else f"job {number}" for number, job in enumerate(jobs, 1)
    }
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.state.value] = counts.get(job.state.value, 0) + 1

    def named(words: str) -> str:
        for id, label in labels.items():
            words = words.replace(id, label)
        return words

    return {
        "at": _since(start, now),
        "counts": dict(sorted(counts.items())),
        "jobs": [_job(job, specs.get(job.task), start, named) for job in jobs],
    }


def _job(job: Job, spec: Spec | None, start: float, named: Callable[[str], str]) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "id": named(job.id),
        "task": job.task,
        "arguments": _builtins(arguments_of(spec, job.payload)),
        "state": job.state.value,
        "queue": job.queue,
        "enqueued_at": _since(start, job.enqueued_at),
    }
    if job.priority != 5:
        seen["priority"] = job.priority
    if job.tags:
        seen["tags"] = list(job.tags)
    for name in _FIELDS:
        if value := getattr(job, name):
            seen[name] = value
    for name in _INSTANTS:
        if (instant := getattr(job, name)) is not None:
            seen[name] = _since(start, instant)
    if job.hold is not None:
        seen["hold"] = job.hold.value
    if job.reason:
        seen["reason"] = _ADDRESS.sub("", named(job.reason))
    if job.result is not None:
        seen["result"] = _result(spec, job.result)
    if job.errors:
        told = [f"{each.kind}: {named(each.message)}" for each in job.errors]
        seen["errors"] = [_ADDRESS.sub("", each) for each in told]
    return seen


def _since(start: float, instant: float) -> float:
    return round(instant - start, 6)


def _builtins(arguments: Mapping[str, Any]) -> Any:
    # Defaults are any objects, and need no JSON form.
    return {name: _plain(value) for name, value in arguments.items()}


def _result(spec: Spec | None, result: bytes) -> Any:
    plain = msgspec.json.decode(result)
    if spec is None:
        return plain
    try:
        return msgspec.to_builtins(spec.signature.decode_result(result), order="deterministic")
    except (BadPayload, TypeError, ValueError):
        return plain


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, order="deterministic")  # a set has another order each run
    except (TypeError, ValueError):
        return _ADDRESS.sub("", repr(value))
