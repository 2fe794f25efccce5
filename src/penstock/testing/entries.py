"""What was enqueued in a sandbox, and whether it is what a test expects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from penstock.core.duration import text
from penstock.core.job import Draft
from penstock.core.spec import Spec
from penstock.errors import BadOption, BadPayload
from penstock.options import DEFAULTS, Options, checked
from penstock.task import Sender

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
            if name != "id" and (value := getattr(self.draft, name)) != default
        ]
        return f"{self.task}({call}){''.join(f' {each}' for each in unusual)}"


_DURATIONS: Final = frozenset({"delay", "expires_in", "unique_for"})


def arguments_of(spec: Spec | None, payload: bytes) -> dict[str, Any]:
    """What a payload calls its task with, by name; plain JSON where no task knows better."""
    plain = msgspec.json.decode(payload)
    if spec is None:
        return dict(plain)
    try:
        args, kwargs = spec.signature.decode(payload, _FILLED_IN)
    except BadPayload:
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

    @classmethod
    def of(
        cls,
        task: Sender[..., Any] | str,
        declared: Sender[..., Any] | None,
        spec_of: Callable[[str], Spec | None],
        labels: Mapping[str, int],
        args: Sequence[Any],
        given: Mapping[str, Any],
    ) -> Expectation:
        """What ``assert_enqueued(task, *args, **given)`` means.

        A name is an argument if the task has such a parameter, else an option.
        On failure: ``BadOption`` for a name that is neither.
        """
        name = task if isinstance(task, str) else task.name
        spec = spec_of(name)
        options: dict[str, Any] = {}
        if declared is not None and not isinstance(task, str):
            options = _chosen(task.options, declared.options)
        parameters = () if spec is None else tuple(spec.signature.given.parameters)
        arguments: dict[str, Any] = {}
        for each, value in given.items():
            if each in parameters or (spec is None and each not in OPTIONS):
                arguments[each] = value
            elif each in OPTIONS:
                options[each] = _option(each, value, labels)
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
        return cls(name, arguments, options)

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


def report(expected: Expectation, entries: Sequence[Entry], wanted: str) -> str:
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
