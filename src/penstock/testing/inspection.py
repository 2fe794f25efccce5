"""What a test can see and say of the jobs in a sandbox."""

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
from penstock.errors import BadOption, BadPayload
from penstock.options import DEFAULTS, Options, checked
from penstock.task import Sender
from penstock.testing.harness import Bench

# --- entries ------------------------------------------------------------------------------------
#
# What was enqueued in a sandbox, and whether it is what a test expects.


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


# --- snapshot -----------------------------------------------------------------------------------
#
# A picture of a store as plain data, the same for every run of the same test.


_FIELDS = ("key", "unique", "name", "progress", "note", "attempt", "failures", "crashes")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_INSTANTS = ("run_at", "expires_at", "finished_at", "hold_until")


def picture(
    jobs: Sequence[Job], specs: Mapping[str, Spec], start: float, now: float, own: frozenset[str]
) -> dict[str, Any]:
    """The jobs in the order they were enqueued. What says nothing is left out.

    Instants are seconds since ``start``. An id that nobody chose is a number; ``own`` are the
    others.
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


# --- looking ------------------------------------------------------------------------------------


AnyTask = Sender[..., Any] | str
"""A task, a task with options (``send.using(...)``), or a task's name."""


class Looking:
    """The part of a sandbox that only looks."""

    app: Penstock
    _bench: Bench
    _start: float

    def enqueued(self, task: AnyTask | None = None, /, *args: Any, **expected: Any) -> list[Entry]:
        """What was enqueued since the block began, in order: all of it, of one task, or what fits.

        Arguments may be given by place or by name, and options by name, as for
        ``assert_enqueued``. What the store knew already (same id, same unique key) is not there.
        """
        entries = [
            Entry(
                each.draft, arguments_of(self._spec(each.draft.task), each.draft.payload), each.at
            )
            for each in list(self._bench.watch.stored)
        ]
        if task is None:
            return entries
        if not isinstance(task, Sender | str):
            raise BadOption("task", task, "give a task of the app, or its name")
        expectation = self._expectation(task, args, expected)
        return [entry for entry in entries if not expectation.differences(entry)]

    def assert_enqueued(
        self, task: AnyTask, /, *args: Any, count: int | None = None, **expected: Any
    ) -> list[Entry]:
        """Fail unless such a job was enqueued, or exactly ``count`` of them; return those.

        What is not said may be anything. A name is an argument if the task has such a parameter,
        else an option: ``queue``, ``key``, ``delay``, ``run_at``, ``unique``, ``priority``, ... An
        option whose name is taken by a parameter is said with ``using``:
        ``t.assert_enqueued(send.using(key="7"), to="a@b.c")``. Defaults count as given. A parameter
        that is called ``count`` can only be given by place.
        """
        found = self.enqueued(task, *args, **expected)
        spec = self._spec(task if isinstance(task, str) else task.name)
        if count is not None and spec is not None and "count" in spec.signature.given.parameters:
            why = "the task has a parameter of that name: give it by place, and count the jobs with"
            raise BadOption("count", count, f"{why} len(t.enqueued(...))")
        if (count is None and found) or len(found) == count:
            return found
        if count is None:
            wanted = "a job"
        else:
            jobs = "job was" if count == 1 else "jobs were"
            wanted = f"{len(found)} jobs fit where {count} {jobs} expected: a job"
        raise self._unmet(task, args, expected, wanted)

    def assert_not_enqueued(self, task: AnyTask, /, *args: Any, **expected: Any) -> None:
        """Fail if such a job was enqueued."""
        if self.enqueued(task, *args, **expected):
            raise self._unmet(task, args, expected, "no job")

    @property
    def jobs(self) -> list[Job]:
        """All jobs as they are now, in the order they were enqueued."""
        return self._bench.jobs()

    @property
    def waiting(self) -> list[Job]:
        """Those that are ready or scheduled, with the reason if they are held."""
        return [job for job in self._bench.jobs() if job.state.is_waiting]

    def snapshot(self) -> dict[str, Any]:
        """The store as plain data that is the same in each run: for snapshot tests and diffs.

        Instants are seconds since the block began, ids are "job 1", "job 2" unless chosen; what
        says nothing is left out, and so are tracebacks.
        """
        chosen = {each.draft.id for each in self._bench.watch.stored if each.draft.remember > 0}
        specs = {name: task.spec for name, task in self.app.tasks.items()}
        now = self._bench.clock.now()
        return picture(self._bench.jobs(), specs, self._start, now, frozenset(chosen))

    def _unmet(
        self, task: AnyTask, args: tuple[Any, ...], given: dict[str, Any], wanted: str
    ) -> AssertionError:
        expectation = self._expectation(task, args, given)
        return AssertionError(report(expectation, self.enqueued(), wanted))

    def _expectation(
        self, task: AnyTask, args: tuple[Any, ...], given: dict[str, Any]
    ) -> Expectation:
        declared = self._known(task) if isinstance(task, Sender) else None
        return Expectation.of(task, declared, self._spec, self.app.settings.priorities, args, given)

    def _known(self, task: AnyTask) -> Sender[..., Any]:
        """The task as it was declared with this app."""
        name = task if isinstance(task, str) else task.name
        found = self.app.tasks.get(name)
        if found is None:
            known = ", ".join(self.app.tasks) or "no task at all"
            raise BadOption("task", name, f"the app of this sandbox does not know it, but {known}")
        return found

    def _spec(self, name: str) -> Spec | None:
        task = self.app.tasks.get(name)
        return None if task is None else task.spec
