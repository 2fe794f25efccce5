"""What a caller may ask for when a job is enqueued, and the draft that is made of it.

Options are checked once, merged, and never changed.
"""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple, TypedDict

from msgspec import structs

from penstock.clock import SystemClock
from penstock.config import Settings
from penstock.context import CURRENT
from penstock.core.hooks import Hook as BeforeEnqueue
from penstock.core.ids import Ids, new_id, new_ids
from penstock.core.job import LONGEST_KEEP, Draft, DraftBatch, priority_number
from penstock.core.metadata import NewJob, checked_meta, write_meta
from penstock.core.spec import Spec
from penstock.core.unique_keys import Scope
from penstock.core.units import Duration, seconds
from penstock.errors import BadDuration, BadItem, BadOption, UsageError

LONGEST_NAME: Final = 255
_YEAR_10000: Final = 253_402_300_800.0

Hook = Callable[..., Any]
"""Decides an option from the job's arguments: it is called as the task itself would be, with the
defaults of its parameters filled in."""


class EnqueueOptions(TypedDict, total=False):
    """What ``using(...)``, ``@app.task(...)`` and ``app.enqueue(...)`` take; None: not given."""

    queue: str | None
    priority: str | int | Callable[..., str | int | None] | None
    """A label (high, normal, low, or your own) or a number; lower runs first."""
    delay: Duration | Callable[..., Duration | None] | None
    """How long to wait first, by the store's clock."""
    run_at: datetime | float | None
    """When to run: an aware datetime, or seconds since 1970."""
    expires_in: Duration | None
    """How long the job may wait before it is cancelled instead."""
    key: str | Callable[..., str | None] | None
    """The tenant or resource it belongs to."""
    id: str | Callable[..., str | None] | None
    """An id of your own: enqueuing it again does nothing, and says so. It belongs to its task: for
    another one it is an ``IdConflict``."""
    unique: str | Callable[..., str | None] | None
    """While another job has this key, enqueuing does nothing, and says so."""
    unique_scope: Scope | None
    """Whose key it is: "task" (default), so that other tasks may use the same, or "app" for all."""
    unique_until: Literal["done", "start"] | None
    unique_for: Duration | None
    """How long the key stays taken, even if the job is done earlier."""
    at_most_once: bool | None
    """Rather not at all than twice: no retries, and none after a crash."""
    tags: Iterable[str] | None
    name: str | None
    """What people call this job."""
    correlation_id: str | None
    """What it belongs to; inside a job, that job's own unless given."""
    keep: Duration | None
    """How long it stays after its end, with its result; by default ``keep_finished`` says."""
    keep_failed: Duration | None
    """How long it stays if it fails; by default ``keep_failed`` of the app says, or ``keep`` if
    that is longer."""
    meta: Mapping[str, Any] | None
    """What travels with it, and to the jobs it enqueues: JSON, at most 4 KiB. It is added to what
    was given before, and, inside a job, to that job's own."""
    connection: Any
    """A connection of your own to the database that has the jobs: the job becomes part of its open
    transaction. PostgreSQL only."""


class Call(NamedTuple):
    """A job to be stored of a task by its name: its arguments by name, and what is asked for it."""

    task: str
    args: Mapping[str, Any] | None = None
    options: EnqueueOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options. Those in ``hooks`` are decided at each enqueue, by the arguments."""

    queue: str = "default"
    priority: int = 5
    delay: float = 0.0
    run_at: float | None = None
    expires_in: float | None = None
    key: str | None = None
    id: str | None = None
    unique: str | None = None
    unique_scope: Scope = "task"
    unique_until: Literal["done", "start"] = "done"
    unique_for: float = 0.0
    at_most_once: bool = False
    tags: tuple[str, ...] = ()
    name: str | None = None
    correlation_id: str | None = None
    keep: float | None = None
    keep_failed: float | None = None
    meta: Mapping[str, Any] | None = None
    connection: Any = None
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    redact: tuple[str, ...] = ()
    """Arguments that the task calls secret."""


DEFAULTS: Final[Mapping[str, Any]] = {
    option.name: option.default
    for option in fields(Options)
    if option.name not in ("hooks", "connection", "redact")
}
"""What a draft says where nothing was asked for."""
HOOKABLE: Final = frozenset({"priority", "delay", "key", "id", "unique"})


def merged(options: Options, given: EnqueueOptions, labels: Mapping[str, int]) -> Options:
    """``options`` with what is given in their place; ``labels`` are the priorities known here."""
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "delay" in values and "run_at" in values:
        raise BadOption("run_at", values["run_at"], "delay is given too; give one of the two")
    replaced = {*values, "run_at"} if "delay" in values else {*values}
    replaced |= {"delay"} if "run_at" in values else set()
    hooks = {name: hook for name, hook in options.hooks.items() if name not in replaced}
    hooks |= {name: value for name, value in values.items() if _is_hook(name, value)}
    changes = {name: DEFAULTS[name] for name in replaced if name in DEFAULTS}
    for name, value in values.items():
        if name not in hooks:
            changes[name] = checked(name, value, labels)
    if options.meta and "meta" in changes:
        changes["meta"] = {**options.meta, **changes["meta"]}
    result = replace(options, **changes, hooks=hooks)
    if result.unique is None and "unique" not in hooks:
        for name in ("unique_for", "unique_scope", "unique_until"):
            if name in values:
                raise BadOption(name, values[name], "it says nothing without unique=...")
    return result


def route(task: str, routes: Mapping[str, str]) -> str:
    """The queue of a task that names none: of the first pattern that fits its name."""
    for pattern, queue in routes.items():
        if fnmatchcase(task, pattern):
            return queue
    return "default"


def _is_hook(name: str, value: object) -> bool:
    return name in HOOKABLE and callable(value)


def checked(name: str, value: Any, labels: Mapping[str, int]) -> Any:
    """The value as a draft has it; a named error if it is none."""
    match name:
        case "priority":
            return priority_number(value, labels)
        case "delay" | "unique_for":
            return seconds(value, name=name)
        case "keep" | "keep_failed":
            if (duration := seconds(value, name=name)) > LONGEST_KEEP:
                raise BadDuration(value, f"{name} is more than 300 years")
            return duration
        case "expires_in":
            if not (duration := seconds(value, name=name)):
                raise BadDuration(value, "expires_in is 0: the job could never run")
            return duration
        case "run_at":
            return instant(name, value)
        case "queue" | "key" | "id" | "unique" | "name" | "correlation_id":
            return word(name, value)
        case "tags":
            return _tags(value)
        case "meta":
            return checked_meta(value)
        case "connection":
            return value
        case "at_most_once":
            if not isinstance(value, bool):
                raise BadOption(name, value, "give True or False")
            return value
        case "unique_until":
            if value not in ("done", "start"):
                raise BadOption(name, value, "give 'done' or 'start'")
            return value
        case "unique_scope":
            if value not in ("task", "app"):
                raise BadOption(name, value, "give 'task' or 'app'")
            return value
    known = ", ".join(EnqueueOptions.__annotations__)
    raise BadOption(name, value, f"no such option; there are {known}")


def word(name: str, value: object, limit: int = LONGEST_NAME) -> str:
    """Text that every store can keep as it is: not empty, not endless, and Unicode."""
    if not isinstance(value, str):
        raise BadOption(name, value, f"give text, not {type(value).__name__}")
    if not value:
        raise BadOption(name, value, "it is empty; give at least one character")
    if len(value) > limit:
        short = f"{value[:20]}...{value[-10:]}"
        raise BadOption(name, short, f"{len(value)} characters are too many; give up to {limit}")
    if "\0" in value:
        raise BadOption(name, value, "it contains the character NUL, which no store can keep")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise BadOption(name, value, "it contains half a character (a lone surrogate)")
    return value


def several(name: str, value: object) -> tuple[object, ...]:
    """What is in a list, or the one word that stands alone."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        raise BadOption(name, value, "give a word or a list of words")
    return tuple(value)


def _tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise BadOption("tags", value, "give a list of words")
    return tuple(word("tags", tag) for tag in several("tags", value))


def instant(name: str, value: object) -> float:
    """Seconds since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            why = "it has no time zone; give one, such as datetime.now(timezone.utc)"
            raise BadOption(name, value, why)
        found: float = value.timestamp()
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadOption(name, value, "give an aware datetime, or seconds since 1970")
    else:
        found = value
    if not 0 <= found < _YEAR_10000:
        why = "no instant from 1970 to 9999; give seconds (not milliseconds) since 1970"
        raise BadOption(name, value, why)
    return float(found)


# --- from a call to a draft ---------------------------------------------------------------------

_FILLED_IN: Final = object()


def decided(options: Options, spec: Spec, payload: bytes, settings: Settings) -> Options:
    """The options with every hook replaced by what it says of these arguments."""
    if not options.hooks:
        return options
    return replace(options, **answers(options, spec, payload, settings), hooks={})


def answers(options: Options, spec: Spec, payload: bytes, settings: Settings) -> dict[str, Any]:
    """What the hooks say of these arguments, checked; what one answers with None is left out.

    A hook sees the arguments as the task will: read back from the payload, with its defaults.
    """
    args, kwargs = _arguments(spec, payload)
    said = {name: hook(*args, **kwargs) for name, hook in options.hooks.items()}
    return {
        name: checked(name, answer, settings.priorities)
        for name, answer in said.items()
        if answer is not None
    }


def _arguments(spec: Spec, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the task will be called with, less what the worker fills in."""
    args, kwargs = spec.signature.decode(payload, _FILLED_IN)
    if not args and (defaults := _by_place(spec.function)) is not None:
        # What ``bind_partial`` would come to, at a tenth of its cost.
        values = tuple([kwargs.get(name, default) for name, default in defaults])
        if not any(value is _FILLED_IN for value in values):
            return values, {}
    bound = _parameters(spec.function).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    for name in [name for name, value in bound.arguments.items() if value is _FILLED_IN]:
        del bound.arguments[name]
    return bound.args, bound.kwargs


@lru_cache(maxsize=256)
def _by_place(function: Callable[..., Any]) -> tuple[tuple[str, Any], ...] | None:
    """The parameters of a function with their defaults, if all can be given by place or by name."""
    found = _parameters(function).parameters.values()
    if any(each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for each in found):
        return None
    return tuple((each.name, each.default) for each in found)


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def drafts(
    task: str,
    payloads: Sequence[bytes],
    options: Options,
    settings: Settings,
    said: Sequence[Mapping[str, Any]] = (),
    before: Sequence[BeforeEnqueue] = (),
) -> Sequence[Draft]:
    """The drafts of many jobs; ``said`` are the answers of the hooks for each, if there are hooks.

    Otherwise, and unless a hook ``before`` looks at each, they differ in their payloads only.
    """
    first, at = draft(task, b"", options, settings), SystemClock.now()
    if not options.hooks and not before:
        count = len(payloads)
        ids = [first.id] * count if options.id is not None else Ids(at, count)
        return DraftBatch(first, ids, payloads)
    jobs = []
    # Several jobs have no id that is given for all: the caller has refused it.
    some_ids = new_ids(at) if options.id is None else [first.id]
    for id, payload, its in zip(some_ids, payloads, said or repeat(_NOTHING_SAID), strict=False):
        remember = settings.remember if "id" in its else first.remember
        job = structs.replace(first, payload=payload, remember=remember, **{"id": id, **its})
        try:
            jobs.append(announced(job, options, before) if before else job)
        except UsageError as error:
            raise BadItem(task, len(jobs), error) from error
        except Exception as error:
            error.add_note(f"this was raised for item {len(jobs)}; nothing was stored")
            raise
    return jobs


_NOTHING_SAID: Final[Mapping[str, Any]] = {}


def announced(job: Draft, options: Options, before: Sequence[BeforeEnqueue]) -> Draft:
    """The draft after each hook has seen it, and added to it what it wants.

    On failure: whatever a hook raises to refuse the job; ``BadOption`` for what it has added.
    """
    new = NewJob(job)
    for hook in before:
        hook.function(new)
    correlation_id = new.correlation_id
    if correlation_id is not None:
        word("correlation_id", correlation_id)
    meta = write_meta(checked_meta(new.meta), options.redact)
    return structs.replace(job, meta=meta, correlation_id=correlation_id)


def draft(
    task: str,
    payload: bytes,
    options: Options,
    settings: Settings,
    before: Sequence[BeforeEnqueue] = (),
) -> Draft:
    """The draft of one job. Its id is made here, so that repeating the call is safe."""
    running = CURRENT.get(None)
    correlation_id, meta = options.correlation_id, options.meta or {}
    if running is not None:
        if correlation_id is None:
            correlation_id = running.correlation_id
        if running.job.meta is not None:
            meta = {**running.meta, **meta}
    keep = settings.keep_finished if options.keep is None else options.keep
    keep_failed = options.keep_failed
    made = Draft(
        id=options.id or new_id(SystemClock.now()),
        remember=settings.remember if options.id else 0.0,
        task=task,
        payload=payload,
        queue=options.queue,
        priority=options.priority,
        delay=options.delay,
        run_at=options.run_at,
        expires_in=options.expires_in,
        key=options.key,
        unique=options.unique,
        unique_scope=options.unique_scope,
        unique_until=options.unique_until,
        unique_for=options.unique_for,
        at_most_once=options.at_most_once,
        name=options.name,
        tags=options.tags,
        correlation_id=correlation_id,
        enqueued_by=(running and running.job.worker) or _process(os.getpid()),
        meta=write_meta(meta, options.redact) if meta or options.redact else None,
        keep=keep,
        keep_failed=max(settings.keep_failed, keep) if keep_failed is None else keep_failed,
    )
    return announced(made, options, before) if before else made


@lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """The name of this process, for jobs that no attempt enqueues."""
    return f"{socket.gethostname()}:{pid}"
