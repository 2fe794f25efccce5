"""What a handler can see and say of the attempt it runs.

    @app.task
    def resize(album: str, ctx: Context) -> Retry | None:
        for done, photo in enumerate(photos := load(album)):
            if ctx.cancelled:
                raise Cancel("stopped half-way")
            if not shrink(photo):
                return Retry("1m", reason="disk is full")
            ctx.progress(done / len(photos), photo.name)

What ``ctx.checkpoint(value)`` saves is ``ctx.saved`` in the next attempt: a long task goes on where
it stopped.

``Retry``, ``Snooze`` and ``Cancel`` may be raised or returned. Anywhere below the handler, without
passing it along, ``penstock.current()`` is the same context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

import msgspec

from penstock.clock import SystemClock
from penstock.core.codec import Codec, foreign
from penstock.core.job import Job
from penstock.core.metadata import read_meta
from penstock.core.transactions import Effect
from penstock.core.units import Duration, seconds
from penstock.engines.records import Report
from penstock.errors import (
    BadCheckpoint,
    CheckpointTooLarge,
    NoCheckpoint,
    NoTransaction,
    PayloadTooLarge,
    PenstockError,
    Unencodable,
)

REAL: Final = SystemClock()

LONGEST_NOTE: Final = 1000
"""Characters of a progress note that are kept."""

LARGEST_CHECKPOINT: Final = 64 << 10
"""Bytes of JSON that a checkpoint may have: it is written again and again."""

_CHECKPOINT: Final = Codec(Any, lambda path: f"checkpoint{path}")


class NoContext(PenstockError, LookupError):
    """``current()`` was asked where no attempt runs."""

    def __str__(self) -> str:
        return (
            "no attempt runs here: penstock.current() works inside a task that a worker runs; "
            "a thread you start yourself needs the context passed along"
        )


class Interrupted(BaseException):
    """Raised inside a sync handler whose attempt must end: out of time, without a sign of life,
    cancelled, out of its lease, or shutting down. Let it pass: ``finally`` and ``with`` clean up.

    It comes between two steps of Python code; code that blocks in C is not reached by it.
    """

    def __str__(self) -> str:
        return "the attempt must end"


class Context:
    """One attempt, as its handler sees it. Safe to use from any thread."""

    __slots__ = (
        "_checkpoint",
        "_has_noticed",
        "_is_stopping",
        "_latest",
        "_meta",
        "_monotonic",
        "_sent",
        "alive_at",
        "effect",
        "job",
    )

    def __init__(self, job: Job, monotonic: Callable[[], float] = REAL.monotonic) -> None:
        self.job = job
        self.alive_at: float | None = None
        """When it last showed a sign of life, on the monotonic clock."""
        self.effect: Effect | None = None
        """Its transaction, if its task is transactional."""
        self._monotonic = monotonic
        self._meta: Mapping[str, Any] | None = None
        self._is_stopping = False
        self._has_noticed = False
        self._latest: tuple[float, str] | None = None
        self._checkpoint: bytes | None = None
        self._sent: tuple[tuple[float, str] | None, bytes | None] = (None, None)

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def task(self) -> str:
        """The task's name."""
        return self.job.task

    @property
    def attempt(self) -> int:
        """Which execution this is: the first is 1. What was given back before it began is none."""
        return self.job.attempt

    @property
    def failures(self) -> int:
        """How many attempts before this one counted against the retries."""
        return self.job.failures

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self.job.queue

    @property
    def key(self) -> str | None:
        """The tenant or resource it belongs to."""
        return self.job.key

    @property
    def correlation_id(self) -> str | None:
        """What ties it to other work."""
        return self.job.correlation_id

    @property
    def tags(self) -> tuple[str, ...]:
        """Its labels."""
        return self.job.tags

    @property
    def meta(self) -> Mapping[str, Any]:
        """What travels with it: given by its caller, or added by ``@app.before_enqueue``. The jobs
        that it enqueues get it, too.
        """
        if self._meta is None:
            self._meta = MappingProxyType(read_meta(self.job.meta))
        return self._meta

    @property
    def connection(self) -> Any:
        """The connection of a transactional task: what is written there commits with the job's end,
        or not at all. ``NoTransaction`` in any other task.
        """
        if self.effect is None:
            why = "declare it with @app.task(transactional=True)"
            raise NoTransaction(self.task, why)
        return self.effect.connection

    @property
    def cancelled(self) -> bool:
        """The attempt should end now: cancelled, out of time, out of its lease, or shutting down.

        A handler that has read True here and then returns did what it was asked: its attempt ends
        as that request says, not as a success.
        """
        if self._is_stopping:
            self._has_noticed = True
        return self._is_stopping

    @property
    def saved(self) -> Any:
        """What the last checkpoint saved, of this attempt or of one before; None: nothing yet."""
        found = self.job.checkpoint if self._checkpoint is None else self._checkpoint
        return None if found is None else msgspec.json.decode(found)

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the attempt has come, from 0 to 1. Costs nothing: the latest one is stored
        with the worker's next flush, and the last one with the attempt's outcome.
        """
        # Lone surrogates and NUL are what some stores cannot keep.
        plain = note[:LONGEST_NOTE].encode("utf-8", "backslashreplace").decode()
        self._latest = (min(1.0, max(0.0, float(fraction))), plain.replace("\x00", "\\x00"))
        self.alive()

    def checkpoint(self, value: Any) -> None:
        """Save where the work stands, as JSON: it is ``saved`` in the next attempt, whatever ends
        this one. Cheap: the latest one is stored within about half a second, and the last one with
        the attempt's outcome.

        On failure: ``BadCheckpoint`` for what JSON would not give back, ``CheckpointTooLarge``
        above 64 KiB, ``NoCheckpoint`` in a transactional task.
        """
        if self.effect is not None:
            raise NoCheckpoint(self.task)
        try:
            saved = _CHECKPOINT.write(value, self.task, LARGEST_CHECKPOINT)
        except PayloadTooLarge as error:
            raise CheckpointTooLarge(self.task, error.size, error.limit) from None
        except Unencodable as error:
            raise BadCheckpoint(self.task, f"{error.where}: {error.why}") from None
        if (flaw := foreign(value, "checkpoint")) is not None:
            raise BadCheckpoint(self.task, f"{flaw.path}: {flaw.why}")
        self._checkpoint = saved
        self.alive()

    def alive(self) -> None:
        """Show a sign of life, where there is no progress to tell. Log lines count as such too."""
        self.alive_at = self._monotonic()

    # --- for the worker ------------------------------------------------------------------------

    def now(self) -> float:
        """The present instant of the monotonic clock."""
        return self._monotonic()

    def stop(self) -> None:
        """Let ``cancelled`` be true from now on."""
        self._is_stopping = True

    @property
    def has_noticed(self) -> bool:
        """The handler has read that it should stop."""
        return self._has_noticed

    @property
    def progress_so_far(self) -> tuple[float | None, str | None]:
        """How far it has come, and its note; (None, None): it has not said so."""
        return self._latest or (None, None)

    def take_report(self, *, is_last: bool = False) -> Report | None:
        """Return what has not been sent yet and mark it as sent; None: nothing.

        Only the worker's loop takes; a report that comes meanwhile is never lost. The last one
        repeats the checkpoint: a store may have passed over one that it had no time for.
        """
        latest, checkpoint = self._latest, self._checkpoint
        is_new = latest is not self._sent[0] or checkpoint is not self._sent[1]
        if not is_new and not (is_last and checkpoint is not None):
            return None
        new = checkpoint if is_last or checkpoint is not self._sent[1] else None
        self._sent = (latest, checkpoint)
        fraction, note = latest or (None, None)
        return Report(
            job=self.job.id, claim=self.job.claim, fraction=fraction, note=note, checkpoint=new
        )

    def relay(self, report: Report) -> None:
        """Say what the context of the same attempt in another process has said."""
        if report.fraction is not None:
            self._latest = (report.fraction, report.note or "")
        if report.checkpoint is not None:
            self._checkpoint = report.checkpoint
        self.alive()


CURRENT: Final[ContextVar[Context]] = ContextVar("penstock_context")
"""The attempt that runs here; the worker sets it around each handler."""


def current() -> Context:
    """Return the context of the attempt that this code runs in; ``NoContext`` outside of one."""
    try:
        return CURRENT.get()
    except LookupError:
        raise NoContext from None


# --- how a handler ends its attempt -------------------------------------------------------------


class Signal(Exception):
    """How a handler wants its attempt to end; raised or returned. Not an error."""

    reason: str | None

    def __str__(self) -> str:
        return self.reason or ""


class Retry(Signal):
    """Try again: counts as a failure and obeys the task's retry limit.

    ``delay`` replaces the wait that the task's policy has for this failure.
    """

    def __init__(self, delay: Duration | None = None, reason: str | None = None) -> None:
        super().__init__(delay, reason)
        self.delay = None if delay is None else seconds(delay, name="delay")
        self.reason = reason


class Snooze(Signal):
    """Run again after ``delay``; no failure is counted."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        super().__init__(delay, reason)
        self.delay = seconds(delay, name="delay")
        self.reason = reason


class Cancel(Signal):
    """End the job as cancelled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: str = reason
