"""A declared task: still the function it was, and the ways to enqueue it.

A name belongs to one function. It may be declared again only by the same module and name, and not
in the same run of that module: that is a reload, or a cell of a notebook run again, and the newer
one counts. Functions made inside others never may: they are many under one name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper
from pathlib import PurePath
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

from penstock.config import Settings
from penstock.connection_parameters import Supplier
from penstock.context import Context, current
from penstock.core.hooks import Hooks
from penstock.core.job import Draft
from penstock.core.retry import RETRIES, UNLIMITED, Never, Policy, Retries, make_policy
from penstock.core.signature import Signature
from penstock.core.spec import Spec
from penstock.core.unique_keys import Scope
from penstock.core.units import Duration, seconds, size
from penstock.engines.records import QueueSettings, Receipt
from penstock.errors import (
    BadArguments,
    BadDuration,
    BadItem,
    BadOption,
    BadTask,
    DuplicateTask,
    NotIncluded,
    UsageError,
)
from penstock.handle import Handle, Origin, handles
from penstock.options import (
    EnqueueOptions,
    Options,
    answers,
    decided,
    draft,
    drafts,
    merged,
    route,
    several,
    word,
)
from penstock.sync import Facade

P = ParamSpec("P")
R = TypeVar("R")

Item = tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""One call of many: positional arguments, or keyword arguments by name."""

# A dict itself: to call something with the names of another mapping takes four times as long.
_NO_NAMES: Final[Mapping[str, Any]] = {}

_ENQUEUE: Final = "call .enqueue(...), or await .aenqueue(...) in async code"
_OPTIONS: Final = 'with options: .using(delay="5m", queue="mail").enqueue(...)'
_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "delay": _ENQUEUE,
        "apply_async": f"{_ENQUEUE}; {_OPTIONS}",
        "send": _ENQUEUE,
        "send_with_options": f"{_ENQUEUE}; {_OPTIONS}",
        "defer": _ENQUEUE,
    }
)
"""What tasks of Celery, Dramatiq and Procrastinate have, and what to write here."""

LEAST_MEMORY: Final = 32 << 20
"""Bytes below which no child process could even begin."""

_NO_FUNCTION: Final = "is not a function; decorate a def or an async def"
_OF_THE_TASK: Final = frozenset(
    {
        "name",
        "retries",
        "retry_for",
        "timeout",
        "stall",
        "isolation",
        "max_memory",
        "keep_result",
        "transactional",
        "on_success",
        "on_failure",
        "redact",
    }
)

TRANSACTION: Final = 30.0
"""Seconds that a transactional attempt may take unless its task says otherwise."""


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
    unique_scope: Scope | None
    unique_until: Literal["done", "start"] | None
    unique_for: Duration | None
    at_most_once: bool | None
    tags: Iterable[str] | None
    keep: Duration | None
    """How long its jobs stay after their end, with their results, unless they have failed."""
    keep_failed: Duration | None
    """How long its failed jobs stay."""
    keep_result: bool | None
    """Whether what it returns is stored; if not, that may be anything, and ``result()`` is None."""
    retries: Retries
    """How often to try again after a failure, and when. By default 10 times over about a day, with
    waits that grow from 2 seconds to 6 hours; None or 0: never."""
    retry_for: Duration | None
    """How long after the first failure to go on trying; no retry begins later. Without ``retries``
    their number has no limit then."""
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
    on_success: Sender[..., Any] | str | None
    """A task, or its name, that is enqueued in the very step in which a job succeeds."""
    on_failure: Sender[..., Any] | str | None
    """Likewise when one has finally failed."""
    redact: Iterable[str] | None
    """Arguments that are hidden where jobs are shown, at any depth, beside those whose names say
    that they are secret: ``password``, ``token``, ``api_key`` and the like."""


class _Injected:
    """Stands for the context of the attempt that runs when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(current(), name)


INJECTED: Final[Any] = _Injected()
"""The default of a ``Context`` parameter: ``def send(to: str, ctx: Context = INJECTED)``.

It tells type checkers that callers leave it out, and does so beside ``Annotated[..., Depends(f)]``,
too. A direct call gets the context of the attempt it is made in."""


class Sender(Generic[P, R]):
    """A task with options, ready to enqueue. Never changes: ``using`` returns another."""

    def __init__(self, facade: Facade, settings: Settings, spec: Spec, options: Options) -> None:
        self._bind(facade, settings, spec, options)

    def _bind(self, facade: Facade, settings: Settings, spec: Spec, options: Options) -> None:
        self._facade = facade
        self._settings = settings
        self.spec = spec
        self.options = options

    @property
    def name(self) -> str:
        """What the store calls the task."""
        return self.spec.name

    if not TYPE_CHECKING:  # a type checker knows what a task has

        def __getattr__(self, name: str) -> Any:
            """Say what to call instead of what other libraries' tasks have."""
            hint = _ELSEWHERE.get(name)
            if hint is None or "spec" not in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"task {self.name!r} has no {name!r}; {hint}")

    def using(self, **options: Unpack[EnqueueOptions]) -> Sender[P, R]:
        """The same task with other options, for one call or for many."""
        checked = merged(self.options, options, self._settings.priorities)
        return Sender(self._facade, self._settings, self.spec, checked)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store one job; it is committed when this returns.

        With ``using(connection=...)`` it is part of that connection's transaction instead.

        On failure: ``BadArguments`` (a TypeError) and its kin if the call does not fit the
        function, ``IdConflict`` if a job of another task has its id, ``EngineUnavailable`` and
        its kin if the store does not take it.
        """
        job, limit = self._draft(args, kwargs), self._settings.enqueue_timeout
        return self._handle(job, self._facade.enqueue(job, limit, self.options.connection))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The same, awaited."""
        job, limit = self._draft(args, kwargs), self._settings.enqueue_timeout
        return self._handle(job, await self._facade.aenqueue(job, limit, self.options.connection))

    def enqueue_many(self, items: Iterable[Item]) -> list[Handle[R]]:
        """Store many jobs: tuples of positional, or dicts of keyword arguments.

        All items are checked before the first is stored. A long list is stored in several commits;
        if one fails, a note on the error says how many jobs are stored. An ``IdConflict`` is
        raised when all other jobs are stored, and has their ids. With ``using(connection=...)``
        all are part of that connection's transaction.
        """
        jobs, limit = self._drafts(items), self._settings.enqueue_timeout
        receipts = self._facade.enqueue_many(jobs, limit, self.options.connection)
        return self._handles(jobs, receipts)

    async def aenqueue_many(self, items: Iterable[Item]) -> list[Handle[R]]:
        """The same, awaited."""
        jobs, limit = self._drafts(items), self._settings.enqueue_timeout
        receipts = await self._facade.aenqueue_many(jobs, limit, self.options.connection)
        return self._handles(jobs, receipts)

    def adopt(self, arguments: Mapping[str, Any]) -> Draft:
        """The draft of a job whose arguments come by name, in the shape they are stored in."""
        return self.drafted(
            self.spec.signature.encode_object(arguments, self._settings.max_payload)
        )

    def job(self, id: str) -> Handle[R]:
        """The handle of one of this task's jobs by its id. Asks nothing yet.

        If the job turns out to be of another task, ``status`` and ``result`` raise ``WrongTask``.
        """
        return Handle(self._origin, Receipt(word("id", id), True))

    def _signature_of(self, task: str) -> Signature | None:
        return self.spec.signature if task == self.name else None

    def _draft(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Draft:
        return self.drafted(self.spec.signature.encode(args, kwargs, self._settings.max_payload))

    def drafted(self, payload: bytes) -> Draft:
        """The draft of a job with this payload, whatever is in it."""
        options = decided(self.options, self.spec, payload, self._settings)
        before = self.spec.hooks.before_enqueue
        return draft(self.spec.name, payload, options, self._settings, before)

    def _drafts(self, items: Iterable[Item]) -> Sequence[Draft]:
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            why = f"enqueue_many takes a list of tuples or dicts, one per job, not {items!r}"
            raise BadArguments(self.name, why)
        payloads: list[bytes] = []
        said: list[dict[str, Any]] = []
        has_hooks = bool(self.options.hooks)
        encode, most = self.spec.signature.encode, self._settings.max_payload
        index = 0
        for item in items:
            try:
                args, kwargs = (item, _NO_NAMES) if type(item) is tuple else self._call(item)
                payload = encode(args, kwargs, most)
                if has_hooks:
                    said.append(answers(self.options, self.spec, payload, self._settings))
                payloads.append(payload)
            except UsageError as error:
                raise BadItem(self.name, index, error) from error
            except Exception as error:
                error.add_note(f"this was raised for item {index}; nothing was stored")
                raise
            index += 1
        if self.options.id is not None and index > 1:
            why = f"one id for {index} jobs; give a function of the arguments instead"
            raise BadOption("id", self.options.id, why)
        before = self.spec.hooks.before_enqueue
        return drafts(self.spec.name, payloads, self.options, self._settings, said, before)

    def _call(self, item: Item) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        match item:
            case tuple() | list():
                return tuple(item), {}
            case Mapping():
                return (), item
        why = f"give a tuple of positional or a dict of keyword arguments, not {item!r}"
        raise BadArguments(self.name, why)

    def _handle(self, job: Draft, receipt: Receipt) -> Handle[R]:
        return self._handles((job,), (receipt,))[0]

    def _handles(self, jobs: Sequence[Draft], receipts: Sequence[Receipt]) -> list[Handle[R]]:
        return handles(self._origin, jobs, receipts)

    @property
    def _origin(self) -> Origin:
        is_borrowed = self.options.connection is not None
        return Origin(self._facade, self._signature_of, self.name, is_borrowed)


class _Declared(Sender[P, R]):
    """What carries the name, the documentation and the signature of its function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """A task whose app is not known yet; ``complete`` makes it whole."""
        self.function = function
        # The function's own attributes stay with it: they must not shadow ours.
        update_wrapper(cast(Any, self), function, updated=())

    def complete(
        self, facade: Facade, settings: Settings, spec: Spec, options: Options
    ) -> Sender[P, R]:
        """Belong to an app from now on."""
        self._bind(facade, settings, spec, options)
        return self

    if not TYPE_CHECKING:  # a type checker knows what a task has

        def __getattr__(self, name: str) -> Any:
            if name in ("spec", "options", "name", "_facade", "_settings"):
                raise NotIncluded(default_name(self.function))
            return super().__getattr__(name)

    def __repr__(self) -> str:
        spec = getattr(self, "spec", None)
        name = default_name(self.function) if spec is None else spec.name
        return f"<{type(self).__name__} {name}>"

    def __reduce__(self) -> str:
        """Pickled as a function is: by its name in its module."""
        return self.function.__qualname__

    def _check_direct(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        spec = getattr(self, "spec", None)
        if spec is not None and spec.signature.plan.steps:
            spec.signature.refuse_unmet(args, kwargs)


class Task(_Declared[P, R]):
    """A declared function. Calling it runs it here and now; enqueuing it has a worker run it.

    A direct call has no worker that makes dependencies: it passes them, as a test would.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_direct(args, kwargs)
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(_Declared[P, R]):
    """A declared ``async def``. Calling it gives its coroutine, to be awaited here."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_direct(args, kwargs)
        result: R = await self.function(*args, **kwargs)
        return result


AnyTask = Task[..., Any] | AsyncTask[..., Any]


def undeclared(function: Callable[..., Any], options: TaskOptions) -> AnyTask:
    """The task that a function will be, once an app has declared it.

    On failure: ``BadTask`` for what no app could declare.
    """
    name = options.get("name") or default_name(function)
    _check(function, name)
    return (AsyncTask if is_async(function) else Task)(function)


# --- a declaration, read ------------------------------------------------------------------------


def declared(
    function: Callable[..., Any],
    given: TaskOptions,
    settings: Settings,
    hooks: Hooks,
    owner: str | None = None,
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
    name = default_name(function) if name is None else word("name", name)
    _check(function, name)
    enqueue = {option: value for option, value in given.items() if option not in _OF_THE_TASK}
    base = Options(queue=route(name, settings.routes))
    options = merged(base, cast(EnqueueOptions, enqueue), settings.priorities)
    is_awaited = is_async(function)
    redact = tuple(word("redact", each) for each in several("redact", given.get("redact") or ()))
    options = replace(options, redact=redact)
    supplier = _supplier(given, name, hooks, is_awaited, options.at_most_once)
    signature = Signature.of(function, name, inject=Context, supplier=supplier)
    if not is_awaited:
        signature.plan.refuse_async(name)
    isolation = _isolation(given, function, name)
    timeout = _limit("timeout", given.get("timeout"))
    if timeout is None and supplier is not None:
        timeout = TRANSACTION
    retry_for = given.get("retry_for")
    spec = Spec(
        name=name,
        function=function,
        is_async=is_awaited,
        signature=signature,
        policy=_policy(given, options.at_most_once),
        retry_for=None if retry_for is None else seconds(retry_for, name="retry_for"),
        timeout=timeout,
        stall=_limit("stall", given.get("stall")),
        at_most_once=options.at_most_once,
        isolation=isolation,
        max_memory=_max_memory(given, isolation),
        max_result=settings.max_result,
        keep_result=_keeps_result(given),
        redact=redact,
        need=None if supplier is None or timeout is None else supplier.need(timeout),
        hooks=hooks,
        owner=owner,
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


def is_async(function: Callable[..., Any]) -> bool:
    """It is an ``async def``, or an object that is called as one."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def _policy(given: TaskOptions, at_most_once: bool) -> Policy:
    limit = given.get("retry_for")
    if not at_most_once:
        policy = make_policy(given.get("retries", RETRIES if limit is None else UNLIMITED))
        if limit is not None and isinstance(policy, Never):
            why = f"retries={given.get('retries')!r} never tries again; leave one of the two out"
            raise BadOption("retry_for", limit, why)
        return policy
    for name in ("retries", "retry_for"):
        if given.get(name):
            why = "a task that runs at most once is never tried again; leave one of the two out"
            raise BadOption(name, given.get(name), why)
    return Never()


def _keeps_result(given: TaskOptions) -> bool:
    value = given.get("keep_result")
    if not isinstance(value, bool | None):
        raise BadOption("keep_result", value, "give True or False")
    return value is not False


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


def default_name(function: Callable[..., Any]) -> str:
    """What the store calls the task of a function, unless it is told otherwise."""
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
