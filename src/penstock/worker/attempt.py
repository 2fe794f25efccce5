"""One job in this worker's hands, from the claim to its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from penstock.context import REAL, Context
from penstock.core.job import Job, Outcome, OutcomeKind
from penstock.core.spec import Spec
from penstock.worker.pool import Pool
from penstock.worker.window import SHUT, Window

Key = tuple[str, int]
"""A job and its attempt: with the worker's id, the fence."""


class Ending(Enum):
    """Why the worker, not the handler, ends an attempt."""

    TIMEOUT = auto()
    STALL = auto()
    CANCEL = auto()
    SHUTDOWN = auto()
    LOST = auto()
    """It belongs to another worker now: whatever becomes of it, nobody wants to know."""


class Attempt:
    """One execution of a job, waiting or running. Belongs to the worker's loop, except that the
    thread which runs it sets ``started_at``.
    """

    __slots__ = (
        "_token",
        "context",
        "ending",
        "is_abandoned",
        "is_announced",
        "is_cleaning",
        "is_held_up",
        "is_over",
        "is_reported",
        "is_stuck",
        "job",
        "key",
        "number",
        "pool",
        "spec",
        "started_at",
        "taken_at",
        "task",
        "window",
    )

    def __init__(
        self,
        job: Job,
        spec: Spec,
        number: int,
        taken_at: float,
        monotonic: Callable[[], float] = REAL.monotonic,
    ) -> None:
        self.job = job
        self.spec = spec
        self.key: Key = (job.id, job.attempt)
        self.context = Context(job, monotonic)
        self.number = number
        """Its place among all that this worker claimed."""
        self.taken_at = taken_at
        """When it was claimed, on the monotonic clock."""
        self.started_at: float | None = None
        self.is_reported = job.started
        """The store knows that it has started, or need not: a crash of this process is not its
        doing.
        """
        self.is_announced = False
        """It starts as soon as the store knows."""
        self.is_abandoned = False
        """The slot that runs it must end, whatever the handler does."""
        self.is_cleaning = False
        """Its coroutine has come to its end and what surrounds it cleans up: let it."""
        self.is_held_up = False
        """It waits for what its handler needs, which is not its doing: its time does not run."""
        self.is_stuck = False
        """It must end, and nothing that was tried has ended it."""
        self.is_over = False
        """It has ended, or was withdrawn: it uses nothing any more."""
        self._token = [None]
        self.pool: Pool | None = None
        """Where it waits or runs."""
        self.ending: Ending | None = None
        self.task: asyncio.Task[None] | None = None
        """The slot that runs it, while one does."""
        self.window = SHUT if spec.is_async else Window()
        """When its handler can be hit, if it runs in a thread."""

    def seize(self) -> bool:
        """Decide that it starts, or that it never does: whoever seizes it, from whatever thread,
        is the only one.
        """
        try:
            self._token.pop()
        except IndexError:
            return False
        return True

    @property
    def is_waiting(self) -> bool:
        """Nobody has seized it."""
        return bool(self._token)

    @property
    def is_out_of_time(self) -> bool:
        """It was told to end because its time is over: whatever it returns now comes too late."""
        return self.ending is Ending.TIMEOUT or self.ending is Ending.STALL

    @property
    def runs_once(self) -> bool:
        """It must never run a second time."""
        return self.job.at_most_once or self.spec.at_most_once

    def end(self, ending: Ending) -> None:
        """Ask it to end. The first reason stands, unless the job is lost."""
        if self.ending is None or ending is Ending.LOST:
            self.ending = ending
        self.context.stop()

    def outcome(self, kind: OutcomeKind, reason: str | None = None) -> Outcome:
        """The plain outcome of this attempt."""
        return Outcome(job=self.job.id, attempt=self.job.attempt, kind=kind, reason=reason)
