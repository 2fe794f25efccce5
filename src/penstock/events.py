"""What happened, as frozen records, and the bus that carries them to subscribers.

Only ``engines.observed`` publishes; engines, workers and the leader know nothing of it.

    unsubscribe = bus.subscribe(Failed, lambda event: alert(event.task, event.error))
    bus.subscribe((WorkerJoined, WorkerLeft), census)
    bus.subscribe(JobEvent, log)          # a base class: everything about jobs
    bus.subscribe(None, log)              # everything

An event is published after its change is committed, by the process that made the change. If that
process dies in between, or the store's reply is lost, no event is published: events are for logs,
metrics and alerts; what must not be missed is read from the store.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar, overload

import msgspec

MAX_UNFINISHED: Final = 10_000
"""Async listeners under way at once; beyond that they are too slow, and events pass them by."""

E = TypeVar("E", bound="Event")


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something that happened; ``at`` by the wall clock of the process that says so."""

    at: float


# --- jobs ---------------------------------------------------------------------------------------


class JobEvent(Event, frozen=True, kw_only=True):
    """Something happened to a job. What the publisher cannot know is None."""

    job: str
    task: str | None = None
    queue: str | None = None
    correlation_id: str | None = None


class Enqueued(JobEvent, frozen=True, kw_only=True):
    """A new job is stored; one that was known already is not enqueued again."""

    priority: int
    key: str | None = None
    enqueued_by: str = ""


class Claimed(JobEvent, frozen=True, kw_only=True):
    """A worker has a job."""

    attempt: int
    claim: int
    worker: str
    waited: float
    """Seconds from when it was due to the claim, by the store's clock."""
    starts: bool
    """It starts at once, instead of waiting in the worker's hands."""


class AttemptEnded(JobEvent, frozen=True, kw_only=True):
    """An attempt ended, or a job that will have no further one.

    It is told in the words of its worker, unless those were overruled: a job that was to wait again
    but whose cancellation was asked for, or whose unique key is taken, is ``Cancelled``; one that
    has crashed too often, or may not run again, is ``Failed``.
    """

    attempt: int | None = None
    claim: int | None = None
    """None: the job was not running."""
    worker: str | None = None
    duration: float | None = None
    """Seconds from claim to settlement as this process saw them, waiting in its hands included."""
    reason: str | None = None
    error: str | None = None
    delay: float = 0.0
    hold: str | None = None


class Succeeded(AttemptEnded, frozen=True, kw_only=True):
    """The job is done."""


class Failed(AttemptEnded, frozen=True, kw_only=True):
    """The job has failed for good: out of retries, not to be retried, or lost in crashes."""


class Retried(AttemptEnded, frozen=True, kw_only=True):
    """The attempt failed; the next one is due after ``delay``."""


class Snoozed(AttemptEnded, frozen=True, kw_only=True):
    """The job asked to run again after ``delay``; no failure."""


class Released(AttemptEnded, frozen=True, kw_only=True):
    """The worker gave the job back unfinished, under ``hold`` if it cannot start now."""


class Crashed(AttemptEnded, frozen=True, kw_only=True):
    """The attempt's process died; its worker lives, and the job waits to run again."""


class Cancelled(AttemptEnded, frozen=True, kw_only=True):
    """The job was cancelled: while it waited, by itself, or by its worker as it was asked to."""


class Expired(AttemptEnded, frozen=True, kw_only=True):
    """A worker had the job only after its ``expires_at``.

    Jobs that expire while they wait are cancelled by the store, which does not say which.
    """


class Revived(JobEvent, frozen=True, kw_only=True):
    """A person sent a failed or cancelled job back to ready."""


class Rescued(JobEvent, frozen=True, kw_only=True):
    """A job was taken from a dead worker; ``state`` is where it is now."""

    attempt: int
    worker: str | None
    crashes: int
    state: str


class Stale(JobEvent, frozen=True, kw_only=True):
    """The fence refused an outcome: the job is not this worker's, or was handed out again."""

    claim: int
    worker: str
    outcome: str


# --- processes and the store --------------------------------------------------------------------


class WorkerEvent(Event, frozen=True, kw_only=True):
    """Something happened to a worker."""

    worker: str


class WorkerJoined(WorkerEvent, frozen=True, kw_only=True):
    """A worker has a lease, or said anew what it can do."""

    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    host: str
    pid: int
    slots: int


class WorkerLeft(WorkerEvent, frozen=True, kw_only=True):
    """A worker gave its lease back."""


class LeaseWasLost(WorkerEvent, frozen=True, kw_only=True):
    """The store refused a worker it no longer knows."""

    verb: str


class LeaderElected(Event, frozen=True, kw_only=True):
    """A new term has begun, led by ``leader``."""

    leader: str
    epoch: int


class Faulted(Event, frozen=True, kw_only=True):
    """A call to the store failed for want of the store."""

    verb: str
    error: str
    kind: str
    """The name of the error's class."""
    tried: int
    """How often it was tried by now."""
    delay: float | None
    """Seconds until the next try; None: there is none, the caller got the error."""


class Polling(Event, frozen=True, kw_only=True):
    """What other processes commit is not told to this one: it polls, and jobs start later."""

    why: str


class Listening(Event, frozen=True, kw_only=True):
    """What other processes commit is told to this one again."""


# --- the bus ------------------------------------------------------------------------------------

Listener = Callable[[E], object]
Kinds = tuple[type[Event], ...]


class _Table:
    """The subscriptions as they were at one moment, and what was looked up in them since."""

    def __init__(self, entries: tuple[tuple[Kinds, Listener[Any]], ...] = ()) -> None:
        self.entries = entries
        self.listeners: dict[type[Event], tuple[Listener[Any], ...]] = {}
        self.wanted: dict[type[Event], bool] = {}


class Bus:
    """Carries events from publishers to subscribers; safe from any thread.

    A plain listener is called at once, on the thread that publishes, usually the engine's event
    loop: it must not block. An async listener becomes a task on the loop that publishes, started
    in the order of the events and not waited for; without a running loop it is refused. What a
    listener raises is logged and goes no further.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced, never changed: readers need no lock.
        self._table = _Table()
        self._unfinished: set[asyncio.Task[object]] = set()
        self._is_crowded = False
        self._log = logging.getLogger("penstock")

    @overload
    def subscribe(self, kind: type[E], listener: Listener[E]) -> Callable[[], None]: ...
    @overload
    def subscribe(
        self, kind: tuple[type[E], ...] | None, listener: Listener[Any]
    ) -> Callable[[], None]: ...
    def subscribe(
        self, kind: type[Event] | tuple[type[Event], ...] | None, listener: Listener[Any]
    ) -> Callable[[], None]:
        """Call ``listener`` for each event of a kind, of several, or (None) of any.

        Returns a function that ends the subscription; calling it again does nothing.
        """
        kinds = (Event,) if kind is None else kind if isinstance(kind, tuple) else (kind,)
        entry = (kinds, listener)
        with self._lock:
            self._table = _Table((*self._table.entries, entry))

        def unsubscribe() -> None:
            with self._lock:
                self._table = _Table(
                    tuple(other for other in self._table.entries if other is not entry)
                )

        return unsubscribe

    def wants(self, kind: type[Event]) -> bool:
        """Say whether an event of this kind, or of one below it, has a subscriber."""
        table = self._table
        if (known := table.wanted.get(kind)) is not None:
            return known
        wanted = any(
            issubclass(kind, each) or issubclass(each, kind)
            for kinds, _ in table.entries
            for each in kinds
        )
        return table.wanted.setdefault(kind, wanted)

    def publish(self, event: Event) -> None:
        """Call every subscriber to events like this one. Never raises."""
        table = self._table
        listeners = table.listeners.get(type(event))
        if listeners is None:
            found = tuple(call for kinds, call in table.entries if isinstance(event, kinds))
            listeners = table.listeners.setdefault(type(event), found)
        for listener in listeners:
            try:
                answer = listener(event)
                if asyncio.iscoroutine(answer):
                    self._start(answer, listener, event)
            except (Exception, asyncio.CancelledError) as error:
                self._complain("listener failed", listener, event, error)

    async def drain(self) -> None:
        """Wait until the async listeners on this loop have ended, however they ended."""
        here, me = asyncio.get_running_loop(), asyncio.current_task()
        while mine := {
            task for task in tuple(self._unfinished) if task.get_loop() is here and task is not me
        }:
            await asyncio.wait(mine)

    def _start(
        self, answer: Coroutine[Any, Any, object], listener: Listener[Any], event: Event
    ) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            answer.close()
            hint = "it is async and this thread has no running loop; subscribe a plain function"
            self._complain("listener refused", listener, event, hint=hint)
            return
        if len(self._unfinished) >= MAX_UNFINISHED:
            answer.close()
            if not self._is_crowded:
                self._is_crowded = True
                hint = (
                    f"{MAX_UNFINISHED} async listeners have not ended; until some have, events "
                    "pass async listeners by: hand events to a queue instead"
                )
                self._complain("listeners too slow", listener, event, hint=hint)
            return
        task = loop.create_task(answer)
        self._unfinished.add(task)
        task.add_done_callback(partial(self._finish, listener, event))

    def _finish(self, listener: Listener[Any], event: Event, task: asyncio.Task[object]) -> None:
        self._unfinished.discard(task)
        self._is_crowded = False
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complain("listener failed", listener, event, error)

    def _complain(
        self,
        name: str,
        listener: Listener[Any],
        event: Event,
        error: BaseException | None = None,
        **more: str,
    ) -> None:
        """Log an event of ours with its fields, as ``penstock.logs`` does above this layer."""
        who = f"{listener.__module__}.{getattr(listener, '__qualname__', type(listener).__name__)}"
        fields = {"listener": who, "kind": type(event).__name__, **more}
        text = "".join([f" {field}={value!r}" for field, value in fields.items()])
        self._log.error("%s", name + text, exc_info=error, extra={"event": name, "fields": fields})
