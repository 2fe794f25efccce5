"""Penstock: the tasks of one application, and the way to its store.

    app = Penstock("sqlite:///jobs.db")

    @app.task(queue="mail", retries=5, timeout="30s")
    def send(to: str, body: str) -> str: ...

    job = send.enqueue("a@b.c", body="hi")        # await send.aenqueue(...) in async code
    job.result(timeout=10)

Making one opens nothing: the store is opened by the first call that needs it, in each process anew.
This is the composition root: the only module that knows the engines by name, when it needs them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

import msgspec

from penstock import config
from penstock.clock import Clock, SystemClock
from penstock.context import Context
from penstock.core.hooks import Hooks
from penstock.core.job import PRIORITIES, Draft, Job
from penstock.core.signature import encode_plain
from penstock.core.spec import Spec
from penstock.core.units import seconds
from penstock.engines.records import Receipt
from penstock.errors import (
    BadItem,
    BadOption,
    UsageError,
)
from penstock.events import Bus, Event
from penstock.handle import BY_A_PERSON, Handle, Origin
from penstock.operations import Operations
from penstock.options import Call, EnqueueOptions, Options, draft, merged, word
from penstock.stores import StoreOpener, StoreSource, connector, effects, lender, observed, parse
from penstock.sync import Facade, blocking
from penstock.task import AsyncTask, Sender, Task, TaskOptions, declared, refuse_duplicate

if TYPE_CHECKING:
    from penstock.hosting import WorkerOptions, WorkerThread
    from penstock.worker.status import Parent
    from penstock.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Event)
S = TypeVar("S", bound=Callable[[], object])
M = TypeVar("M", bound=Callable[[Context], Iterator[None] | AsyncIterator[None]])


class Declare(Protocol):
    """``@app.task(...)``: makes a task of the function below it."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Penstock(Operations):
    """One application: its tasks, its settings, its store.

    Settings come from the arguments, else from the environment (``PENSTOCK_URL``, ...), else from
    ``penstock.toml`` or ``[tool.penstock]`` in ``pyproject.toml``: see ``penstock.config``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        clock: Clock | None = None,
        **settings: Unpack[config.SettingsGiven],
    ) -> None:
        found = config.load({"url": url, **settings}, seconds=seconds)
        self.settings = replace(found, priorities={**PRIORITIES, **found.priorities})
        self.url = parse(self.settings.url)
        self.bus = Bus()
        clock = clock or SystemClock()
        wait = self.settings.wait_for_store
        connect = partial(observed, connector(self.url, clock), self.bus, self.settings)
        self._source = StoreSource(StoreOpener(connect, clock), lender(self.url))
        self._facade = Facade(self._source, str(self.url), wait, self.settings.enqueue_batch)
        self._tasks: dict[str, Sender[..., Any]] = {}
        self._specs: dict[str, Spec] = {}
        self.hooks = Hooks()

    def __repr__(self) -> str:
        return f"<Penstock {self.url}, {len(self._tasks)} tasks>"

    @property
    def clock(self) -> Clock:
        """The clock that the app was made with; in a test's sandbox, the virtual one."""
        return self._source.opener.clock

    # --- tasks ---------------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> Declare: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Any:
        """Declare a task: ``@app.task`` or ``@app.task(queue="mail", ...)`` above a function.

        On failure: ``DuplicateTask``, ``BadTask``, or the error of an option that does not fit.
        """
        if function is None:
            return partial(self._declare, options=options)
        return self._declare(function, options)

    def _declare(self, function: Callable[..., Any], options: TaskOptions) -> Sender[..., Any]:
        if options.get("transactional") and self.hooks.effects is None:
            self.hooks.effects = effects(self.url)
        spec, chosen = declared(function, options, self.settings, self.hooks)
        if spec.name in self._specs:
            refuse_duplicate(self._specs[spec.name], spec)
        kind = AsyncTask if spec.is_async else Task
        task: Sender[..., Any] = kind(self._facade, self.settings, spec, chosen)
        self._tasks[spec.name] = task
        self._specs[spec.name] = spec
        return task

    @property
    def tasks(self) -> Mapping[str, Sender[..., Any]]:
        """The tasks that are declared here, by name."""
        return MappingProxyType(self._tasks)

    # --- jobs ----------------------------------------------------------------------------------

    def enqueue(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[Any]:
        """Store one job of a task by its name, with its arguments by name.

        A task that is declared here checks the arguments and brings its own options. Any other is
        stored as it is, and waits for a worker that knows it.
        """
        job, connection = self._named(task, args, options), options.get("connection")
        receipt = self._facade.enqueue(job, self.settings.enqueue_timeout, connection)
        return self._handle(receipt, connection)

    async def aenqueue(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[Any]:
        """The same, awaited."""
        job, connection = self._named(task, args, options), options.get("connection")
        receipt = await self._facade.aenqueue(job, self.settings.enqueue_timeout, connection)
        return self._handle(receipt, connection)

    def enqueue_many(
        self, calls: Iterable[Call | tuple[Any, ...]], *, connection: Any = None
    ) -> list[Handle[Any]]:
        """Store many jobs by the names of their tasks: each a ``Call``, or a tuple of the same.

        All are checked before the first is stored. A long list is stored in several commits; if one
        fails, a note on the error says how many jobs are stored. With a ``connection`` of your own,
        all are part of its transaction.
        """
        jobs, limit = self._called(calls), self.settings.enqueue_timeout
        receipts = self._facade.enqueue_many(jobs, limit, connection)
        return [self._handle(receipt, connection) for receipt in receipts]

    async def aenqueue_many(
        self, calls: Iterable[Call | tuple[Any, ...]], *, connection: Any = None
    ) -> list[Handle[Any]]:
        """The same, awaited."""
        jobs, limit = self._called(calls), self.settings.enqueue_timeout
        receipts = await self._facade.aenqueue_many(jobs, limit, connection)
        return [self._handle(receipt, connection) for receipt in receipts]

    def job(self, id: str) -> Handle[Any]:
        """The handle of a job by its id. Asks nothing yet."""
        return Handle(Origin(self._facade, self._decode), Receipt(word("id", id), True))

    async def acancel(self, id: str, reason: str = BY_A_PERSON) -> bool:
        """Cancel a job if it waits, ask it to end if it runs; say whether that changed anything."""
        return await self.job(id).acancel(reason)

    cancel = blocking(acancel)

    def _named(self, task: str, args: Mapping[str, Any] | None, options: EnqueueOptions) -> Draft:
        known = self._tasks.get(word("task", task))
        args = {} if args is None else args
        if known is not None:
            return known.using(**options).adopt(args)
        payload = encode_plain(args, task, self.settings.max_payload)
        chosen = merged(Options(), options, self.settings.priorities)
        if chosen.hooks:
            why = f"a function needs a task that is declared here, and {task!r} is not"
            raise BadOption(*next(iter(chosen.hooks.items())), why)
        return draft(task, payload, chosen, self.settings)

    def _called(self, calls: Iterable[Call | tuple[Any, ...]]) -> list[Draft]:
        jobs = []
        for index, call in enumerate(calls):
            task, args, options = Call(*call)
            try:
                if options and options.get("connection") is not None:
                    why = "all jobs go over one; give it to enqueue_many itself"
                    raise BadOption("connection", options["connection"], why)
                jobs.append(self._named(task, args, options or {}))
            except UsageError as error:
                raise BadItem(str(task), index, error) from error
        return jobs

    def _handle(self, receipt: Receipt, connection: object | None) -> Handle[Any]:
        return Handle(Origin(self._facade, self._decode, connection is not None), receipt)

    def _decode(self, job: Job) -> Any:
        known = self._tasks.get(job.task)
        return msgspec.json.decode(job.result or b"null") if known is None else known.decode(job)

    # --- events --------------------------------------------------------------------------------

    @overload
    def on(self, kind: type[E], /) -> Callable[[Callable[[E], R]], Callable[[E], R]]: ...
    @overload
    def on(self, kind: type[E], listener: Callable[[E], object], /) -> Callable[[], None]: ...
    def on(self, kind: type[E], listener: Callable[[E], object] | None = None, /) -> Any:
        """Call a function for each event of a kind: ``@app.on(Failed)``, or ``app.on(Failed, f)``.

        The second form returns a function that ends it. A listener runs on Penstock's own loop and
        must not block it; see ``penstock.events``.
        """
        if not isinstance(kind, type) or not issubclass(kind, Event):
            why = "give a class of events, such as @app.on(penstock.events.Failed)"
            raise BadOption("kind", kind, why)
        if listener is not None:
            return self._subscribed(kind, listener)

        def subscribed(listener: Callable[[E], R]) -> Callable[[E], R]:
            self._subscribed(kind, listener)
            return listener

        return subscribed

    def _subscribed(self, kind: type[E], listener: Callable[[E], object]) -> Callable[[], None]:
        if not callable(listener):
            raise BadOption("listener", listener, "give a function that takes the event")
        return self.bus.subscribe(kind, listener)

    # --- hooks ---------------------------------------------------------------------------------

    def startup(self, function: S, /) -> S:
        """Let a function without parameters run when a worker starts: ``@app.startup``.

        It may be a coroutine function, or a generator of either kind with one yield: what comes
        after that runs when the worker ends. Each process that runs jobs calls it once, in the
        order of declaration, on the worker's loop. If it raises, the worker does not start.
        """
        self.hooks.add_startup(function)
        return function

    def shutdown(self, function: S, /) -> S:
        """Let a function, or coroutine function, run when a worker ends: ``@app.shutdown``.

        The latest declared is the first to run. If one raises, that is logged.
        """
        self.hooks.add_shutdown(function)
        return function

    def middleware(self, function: M, /) -> M:
        """Wrap every attempt in a generator with one yield: ``@app.middleware``.

        It gets the ``Context``; the handler's value comes out of its yield, and an exception is
        raised there: it may raise another, or swallow it, whereupon the attempt succeeds with None.
        The first declared is the outermost. An async generator wraps async tasks only; any other
        wraps them on their loop, which it must not block.
        """
        self.hooks.add_middleware(function)
        return function

    def override(
        self, maker: Callable[..., Any], instead: Callable[..., Any], /
    ) -> AbstractContextManager[None]:
        """Let ``instead`` make what tasks get by ``Depends(maker)``, for a test.

        It holds for the attempts of this app's workers in this process that begin meanwhile.
        """
        for each in (maker, instead):
            if not callable(each):
                why = "give the function that makes a dependency, and the one to call instead"
                raise BadOption("override", each, why)
        return self.hooks.override(maker, instead)

    # --- workers -------------------------------------------------------------------------------

    def worker(
        self, **options: Unpack[WorkerOptions]
    ) -> AbstractAsyncContextManager[Worker, bool | None]:
        """A worker beside other work on this loop: ``async with app.worker() as worker: ...``.

        It has its lease when the block begins, and is drained when the block ends.
        """
        from penstock.hosting import beside

        return beside(self._worker(options), self._facade.loop_client)

    def worker_thread(self, **options: Unpack[WorkerOptions]) -> WorkerThread:
        """A worker in a thread of this process: ``start`` it, or use it with ``with``."""
        from penstock.hosting import WorkerThread

        return WorkerThread(self._worker(options), self._facade.loop_client)

    def run_worker(self, *, until_empty: bool = False, **options: Unpack[WorkerOptions]) -> None:
        """Be a worker until SIGTERM or Ctrl-C, which drains it; the second one does not wait, and
        a third ends a process whose loop is blocked.

        With ``until_empty``, also return when nothing is left that is due. This is one process
        without a supervisor to restart it, and a handler that holds the interpreter for
        longer than ``lease`` loses it. The command ``penstock worker`` has one.
        """
        from penstock.hosting import run_process

        worker = self._worker(options)
        run_process(worker, self._facade.loop_client, until_empty=until_empty)

    def _worker(self, options: WorkerOptions, parent: Parent | None = None) -> Worker:
        from penstock.hosting import upkeep, worker_settings
        from penstock.worker.worker import Worker

        queues = ("default", *(task.options.queue for task in self._tasks.values()))
        settings = worker_settings(options, self.settings, queues)
        opener = self._source.opener
        return Worker(
            opener.connect,
            MappingProxyType(self._specs),
            settings,
            clock=opener.clock,
            parent=parent,
            upkeep=upkeep(settings, opener.clock, self.bus),
        )

    # --- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the store go. Idempotent, and optional: the next use opens it again."""
        self._facade.close()

    async def aclose(self) -> None:
        """The same, awaited."""
        await self._facade.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        """Give the running loop a way of its own to the store, until the block ends."""
        self._facade.join_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        if await self._facade.leave_loop():
            await self.aclose()
