"""From a call to a draft: the options that the arguments decide, and what the process adds."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from penstock.clock import SystemClock
from penstock.config import Settings
from penstock.context import CURRENT
from penstock.core.ids import Ids, new_id
from penstock.core.job import Draft
from penstock.core.lot import Lot
from penstock.core.spec import Spec
from penstock.options import Options, checked

_FILLED_IN: Final = object()


def decided(options: Options, spec: Spec, payload: bytes, settings: Settings) -> Options:
    """The options with every hook replaced by what it says of these arguments.

    A hook sees the arguments as the task will: read back from the payload, with its defaults. What
    it answers with None stays at its default.
    """
    if not options.hooks:
        return options
    args, kwargs = _arguments(spec, payload)
    answers = {name: hook(*args, **kwargs) for name, hook in options.hooks.items()}
    values = {
        name: checked(name, answer, settings.priorities)
        for name, answer in answers.items()
        if answer is not None
    }
    return replace(options, **values, hooks={})


def _arguments(spec: Spec, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the task will be called with, less what the worker fills in."""
    args, kwargs = spec.signature.decode(payload, _FILLED_IN)
    bound = _parameters(spec.function).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    for name in [name for name, value in bound.arguments.items() if value is _FILLED_IN]:
        del bound.arguments[name]
    return bound.args, bound.kwargs


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def drafts(task: str, payloads: Sequence[bytes], options: Options, settings: Settings) -> Lot:
    """The drafts of many jobs that differ in their payloads only."""
    first, at, count = draft(task, b"", options, settings), SystemClock.now(), len(payloads)
    return Lot(first, [first.id] * count if options.id is not None else Ids(at, count), payloads)


def draft(task: str, payload: bytes, options: Options, settings: Settings) -> Draft:
    """The draft of one job. Its id is made here, so that repeating the call is safe."""
    running = CURRENT.get(None)
    correlation_id = options.correlation_id
    if correlation_id is None and running is not None:
        correlation_id = running.correlation_id
    return Draft(
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
        unique_until=options.unique_until,
        unique_for=options.unique_for,
        at_most_once=options.at_most_once,
        name=options.name,
        tags=options.tags,
        correlation_id=correlation_id,
        enqueued_by=(running and running.job.worker) or _process(os.getpid()),
    )


@lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """Who enqueues, where no attempt does."""
    return f"{socket.gethostname()}:{pid}"
