"""A declaration, read: what ``@app.task(...)`` makes of a function, complete and checked.

A name belongs to one function. It may be declared again only by the same module and name, and not
in the same run of that module: that is a reload, or a cell of a notebook run again, and the newer
one counts. Functions made inside others never may: they are many under one name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, Final, Literal, TypedDict, cast

from penstock.config import Settings
from penstock.context import Context
from penstock.core.duration import Duration, seconds
from penstock.core.hooks import Hooks
from penstock.core.payload import Signature
from penstock.core.retry import RETRIES, Never, Policy, Retries, make_policy
from penstock.core.size import size
from penstock.core.spec import Spec
from penstock.engines.records import QueueSettings
from penstock.errors import BadDuration, BadOption, BadTask, DuplicateTask
from penstock.options import EnqueueOptions, Options, merged, word
from penstock.worker.supplies import Supplier


class TaskOptions(TypedDict, total=False):
    """What ``@app.task(...)`` takes; None: not given.

    ``priority``, ``delay``, ``key`` and ``unique`` may be functions of the job's arguments.
    """

    name: str | None
    """What the store calls the task; by default its module and name."""
    queue: str | None
    priority: str | int | Callable[..., str | int | None] | None
    delay: Duration | Callable[..., Duration | None] | None
    expires_in: Duration | None
    key: str | Callable[..., str | None] | None
    unique: str | Callable[..., str | None] | None
    unique_until: Literal["done", "start"] | None
    unique_for: Duration | None
    at_most_once: bool | None
    tags: Iterable[str] | None
    retries: Retries
    """How often to try again after a failure, and when; 3 times by default, None or 0: never."""
    timeout: Duration | None
    """How long one attempt may take."""
    stall: Duration | None
    """How long one attempt may go without a sign of life: progress, a log line, ``ctx.alive()``."""
    isolation: Literal["process"] | None
    """Where attempts run apart from the worker: in child processes, which can be killed."""
    max_memory: int | str | None
    """What such a child may use, in bytes or as text: ``"512MB"``, ``"2GiB"``."""
    transactional: bool | None
    """Whether attempts write in a transaction that also ends their job: all of it, or nothing."""


LEAST_MEMORY: Final = 32 << 20
"""Bytes below which no child process could even begin."""

_NO_FUNCTION: Final = "is no function; decorate a def or an async def"
_OF_THE_TASK: Final = frozenset(
    {"name", "retries", "timeout", "stall", "isolation", "max_memory", "transactional"}
)

TRANSACTION: Final = 30.0
"""Seconds that a transactional attempt may take unless its task says otherwise."""


def declared(
    function: Callable[..., Any], given: TaskOptions, settings: Settings, hooks: Hooks
) -> tuple[Spec, Options]:
    """How to run the task, and how to enqueue it unless a caller says otherwise."""
    unknown = [option for option in given if option not in TaskOptions.__annotations__]
    if unknown:
        known = ", ".join(TaskOptions.__annotations__)
        why = f"no such option of a task; there are {known}"
        if unknown[0] in QueueSettings.__struct_fields__:
            why = f"it belongs to a queue; say app.set_queue(..., {unknown[0]}=...)"
        raise BadOption(unknown[0], given.get(unknown[0]), why)
    name = given.get("name")
    name = _default_name(function) if name is None else word("name", name)
    _check(function, name)
    enqueue = {option: value for option, value in given.items() if option not in _OF_THE_TASK}
    options = merged(Options(), cast(EnqueueOptions, enqueue), settings.priorities)
    is_async = _is_async(function)
    supplier = _supplier(given, name, hooks, is_async, options.at_most_once)
    signature = Signature.of(function, name, inject=Context, supplier=supplier)
    if not is_async:
        signature.plan.refuse_async(name)
    isolation = _isolation(given, function, name)
    timeout = _limit("timeout", given.get("timeout"))
    if timeout is None and supplier is not None:
        timeout = TRANSACTION
    spec = Spec(
        name=name,
        function=function,
        is_async=is_async,
        signature=signature,
        policy=_policy(given, options.at_most_once),
        timeout=timeout,
        stall=_limit("stall", given.get("stall")),
        at_most_once=options.at_most_once,
        isolation=isolation,
        max_memory=_max_memory(given, isolation),
        max_result=settings.max_result,
        need=None if supplier is None or timeout is None else supplier.need(timeout),
        hooks=hooks,
    )
    return spec, options


def refuse_duplicate(old: Spec, new: Spec) -> None:
    """Raise ``DuplicateTask`` unless the same function is declared anew."""
    first, second = old.function, new.function
    is_same = _origin(first) == _origin(second) and "<locals>" not in _origin(second)[1]
    if not is_same or _is_first_run(_origin(second)[0]):
        raise DuplicateTask(new.name, _place(first), _place(second))


def _check(function: Callable[..., Any], name: str) -> None:
    if inspect.isclass(function) or not callable(function):
        raise BadTask(name, f"{function!r} {_NO_FUNCTION}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadTask(name, "it yields; a task returns its result once")
    owner = _origin(function)[1].rpartition("<locals>.")[2].rpartition(".")[0]
    code = getattr(function, "__code__", None)
    if owner and code and code.co_varnames[: code.co_argcount][:1] in (("self",), ("cls",)):
        raise BadTask(name, f"it is a method of {owner}; declare a function that calls it")


def _is_async(function: Callable[..., Any]) -> bool:
    """It is an ``async def``, or an object that is called as one."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def _policy(given: TaskOptions, at_most_once: bool) -> Policy:
    if not at_most_once:
        return make_policy(given.get("retries", RETRIES))
    if given.get("retries"):
        why = "a task that runs at most once is never tried again; leave one of the two out"
        raise BadOption("retries", given.get("retries"), why)
    return Never()


def _supplier(
    given: TaskOptions, name: str, hooks: Hooks, is_async: bool, at_most_once: bool
) -> Supplier | None:
    transactional = given.get("transactional")
    if not isinstance(transactional, bool | None):
        raise BadOption("transactional", transactional, "give True or False")
    if not transactional:
        return None
    if at_most_once:
        why = (
            "nothing of a failed attempt stays, so it can be tried again, and a task that runs at "
            "most once never is; leave one of the two out"
        )
        raise BadOption("transactional", transactional, why)
    assert hooks.effects is not None, "the app has asked its store"
    return Supplier(hooks.effects, name, is_async=is_async)


def _limit(name: str, value: Duration | None) -> float | None:
    if value is None:
        return None
    limit = seconds(value, name=name)
    if not limit:
        raise BadDuration(value, f"{name} is 0: no attempt could ever end in time")
    return limit


def _isolation(
    given: TaskOptions, function: Callable[..., Any], name: str
) -> Literal["process"] | None:
    isolation = given.get("isolation")
    if isolation is None:
        return None
    if isolation != "process":
        raise BadOption("isolation", isolation, "give 'process', or leave it out")
    if "<" in _origin(function)[1]:
        why = (
            f"a child process could not import {_origin(function)[1]}; "
            "with isolation='process', declare a function at the top of its module"
        )
        raise BadTask(name, why)
    return isolation


def _max_memory(given: TaskOptions, isolation: str | None) -> int | None:
    value = given.get("max_memory")
    if value is None:
        return None
    limit = size(value, name="max_memory")
    if isolation is None:
        why = "it limits a child process; give isolation='process' too"
        raise BadOption("max_memory", value, why)
    if limit < LEAST_MEMORY:
        why = f"Python itself needs more; give {LEAST_MEMORY >> 20}MiB at least"
        raise BadOption("max_memory", value, why)
    return limit


# --- names --------------------------------------------------------------------------------------


def _default_name(function: Callable[..., Any]) -> str:
    module, qualname = _origin(function)
    if isinstance(function, str):
        why = f"it is text; the decorator takes a name as @app.task(name={function!r})"
        raise BadTask(repr(function), why)
    if not callable(function):
        raise BadTask(repr(function), f"it {_NO_FUNCTION}")
    if not qualname or qualname.endswith("<lambda>"):
        raise BadTask(repr(function), "it has no name of its own; give one with name=...")
    return word("name", f"{_importable(module)}.{qualname}")


def _origin(function: Callable[..., Any]) -> tuple[str, str]:
    return getattr(function, "__module__", "") or "", getattr(function, "__qualname__", "")


def _importable(module: str) -> str:
    """The name under which others import what runs as ``__main__`` here."""
    main = sys.modules.get("__main__")
    if module not in ("__main__", "__mp_main__") or main is None:
        return module
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else module


def _is_first_run(module: str) -> bool:
    """The module's body runs for the first time: not a reload, nor a notebook's next cell."""
    found = sys.modules.get(module)
    if module == "__main__":
        return hasattr(found, "__file__")
    return bool(getattr(getattr(found, "__spec__", None), "_initializing", False))


def _place(function: Callable[..., Any]) -> str:
    module, qualname = _origin(function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"{module}.{qualname}{where}"
