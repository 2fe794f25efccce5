"""A declared task: still the function it was, and the ways to enqueue it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Final, Generic, ParamSpec, TypeVar, Unpack, cast

from penstock.config import Settings
from penstock.context import current
from penstock.core.job import Draft, Job
from penstock.core.spec import Spec
from penstock.draft import decided, draft, drafts
from penstock.engines.records import Receipt
from penstock.errors import BadArguments, BadItem, BadOption, UsageError
from penstock.handle import Handle, Origin
from penstock.options import EnqueueOptions, Options, merged
from penstock.sync import Facade

P = ParamSpec("P")
R = TypeVar("R")

Item = tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""One call of many: positional arguments, or keyword arguments by name."""

# A dict itself: to call something with the names of another mapping takes four times as long.
_NO_NAMES: Final[Mapping[str, Any]] = {}


class _Injected:
    """Stands for the context of whatever attempt runs when it is used."""

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
        self._facade = facade
        self._settings = settings
        self.spec = spec
        self.options = options

    @property
    def name(self) -> str:
        """What the store calls the task."""
        return self.spec.name

    def using(self, **options: Unpack[EnqueueOptions]) -> Sender[P, R]:
        """The same task with other options, for one call or for many."""
        checked = merged(self.options, options, self._settings.priorities)
        return Sender(self._facade, self._settings, self.spec, checked)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store one job; it is committed when this returns.

        With ``using(connection=...)`` it is part of that connection's transaction instead.

        On failure: ``BadArguments`` (a TypeError) and its kin if the call does not fit the
        function, ``EngineUnavailable`` and its kin if the store does not take it.
        """
        job, limit = self._draft(args, kwargs), self._settings.enqueue_timeout
        return self._handle(self._facade.enqueue(job, limit, self.options.connection))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The same, awaited."""
        job, limit = self._draft(args, kwargs), self._settings.enqueue_timeout
        return self._handle(await self._facade.aenqueue(job, limit, self.options.connection))

    def enqueue_many(self, items: Iterable[Item]) -> list[Handle[R]]:
        """Store many jobs: tuples of positional, or dicts of keyword arguments.

        All items are checked before the first is stored. A long list is stored in several commits;
        if one fails, a note on the error says how many jobs are stored. With
        ``using(connection=...)`` all are part of that connection's transaction.
        """
        jobs, limit = self._drafts(items), self._settings.enqueue_timeout
        receipts = self._facade.enqueue_many(jobs, limit, self.options.connection)
        return self._handles(receipts)

    async def aenqueue_many(self, items: Iterable[Item]) -> list[Handle[R]]:
        """The same, awaited."""
        jobs, limit = self._drafts(items), self._settings.enqueue_timeout
        receipts = await self._facade.aenqueue_many(jobs, limit, self.options.connection)
        return self._handles(receipts)

    def adopt(self, arguments: Mapping[str, Any]) -> Draft:
        """The draft of a job whose arguments come by name, in the shape they are stored in."""
        return self._drafted(
            self.spec.signature.encode_object(arguments, self._settings.max_payload)
        )

    def decode(self, job: Job) -> R:
        """What the task returned."""
        result: R = self.spec.signature.decode_result(job.result or b"null")
        return result

    def _draft(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Draft:
        return self._drafted(self.spec.signature.encode(args, kwargs, self._settings.max_payload))

    def _drafted(self, payload: bytes) -> Draft:
        options = decided(self.options, self.spec, payload, self._settings)
        return draft(self.spec.name, payload, options, self._settings)

    def _drafts(self, items: Iterable[Item]) -> Sequence[Draft]:
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            why = f"enqueue_many takes a list of tuples or dicts, one per job, not {items!r}"
            raise BadArguments(self.name, why)
        payloads: list[bytes] = []
        jobs: list[Draft] = []
        has_hooks = bool(self.options.hooks)
        encode, most = self.spec.signature.encode, self._settings.max_payload
        index = 0
        for item in items:
            try:
                args, kwargs = (item, _NO_NAMES) if type(item) is tuple else self._call(item)
                payload = encode(args, kwargs, most)
                if has_hooks:
                    jobs.append(self._drafted(payload))
                else:
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
        if has_hooks:
            return jobs
        return drafts(self.spec.name, payloads, self.options, self._settings)

    def _call(self, item: Item) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        match item:
            case tuple() | list():
                return tuple(item), {}
            case Mapping():
                return (), item
        why = f"give a tuple of positional or a dict of keyword arguments, not {item!r}"
        raise BadArguments(self.name, why)

    def _handle(self, receipt: Receipt) -> Handle[R]:
        return self._handles((receipt,))[0]

    def _handles(self, receipts: Iterable[Receipt]) -> list[Handle[R]]:
        origin = Origin(self._facade, self.decode, self.options.connection is not None)
        return [Handle(origin, receipt) for receipt in receipts]


class _Declared(Sender[P, R]):
    """What carries the name, the documentation and the signature of its function."""

    def __init__(self, facade: Facade, settings: Settings, spec: Spec, options: Options) -> None:
        super().__init__(facade, settings, spec, options)
        # The function's own attributes stay with it: they must not shadow ours.
        update_wrapper(cast(Any, self), spec.function, updated=())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> str:
        """Pickled as a function is: by its name in its module."""
        return self.spec.function.__qualname__


class Task(_Declared[P, R]):
    """A declared function. Calling it runs it here and now; enqueuing it has a worker run it.

    A direct call has no worker that makes dependencies: it passes them, as a test would.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.spec.signature.plan.steps:
            self.spec.signature.refuse_unmet(args, kwargs)
        result: R = self.spec.function(*args, **kwargs)
        return result


class AsyncTask(_Declared[P, R]):
    """A declared ``async def``. Calling it gives its coroutine, to be awaited here."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.spec.signature.plan.steps:
            self.spec.signature.refuse_unmet(args, kwargs)
        result: R = await self.spec.function(*args, **kwargs)
        return result
