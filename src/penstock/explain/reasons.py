"""What an explanation is made of: the reasons, what they are read from, and their wording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from shlex import quote
from typing import Final

import msgspec

from penstock.core.job import Job, State
from penstock.core.units import text
from penstock.engines.reads import Standing
from penstock.engines.records import QueueSettings, Running, WorkerInfo
from penstock.leader.election import Term


class Code(StrEnum):
    """Every reason there is, the weightiest first; programs go by these, people by the texts."""

    # it is not there, or has ended
    GONE = "gone"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    # it waits for an instant or a cause of its own
    SCHEDULED = "scheduled"
    RETRY = "retry"
    SNOOZED = "snoozed"
    LIMIT = "limit"
    RATE = "rate"
    BREAKER = "breaker"
    DEPENDENCY = "dependency"
    MOVING = "moving"
    UNKNOWN_TASK = "unknown_task"
    NO_CAUSE = "no_cause"
    # no worker is there to run it
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    NOT_SERVED = "not_served"
    NOT_KNOWN = "not_known"
    # a worker has it, or could have it
    NO_LEASE = "no_lease"
    SILENT = "silent"
    CANCELLING = "cancelling"
    CLAIMED = "claimed"
    RUNNING = "running"
    NO_LEADER = "no_leader"
    # it stands in line
    ORDERED = "ordered"
    MAX_RUNNING = "max_running"
    BUSY = "busy"
    LINE = "line"
    # nothing keeps it
    OVERLOOKED = "overlooked"
    DUE = "due"
    NEXT = "next"
    # what else is good to know
    EXPIRES = "expires"
    AT_MOST_ONCE = "at_most_once"
    CRASHED = "crashed"

    @property
    def weight(self) -> int:
        """Its place in this list."""
        return _ORDER.index(self)


_ORDER: Final = tuple(Code)

REMARKS: Final = frozenset({Code.EXPIRES, Code.AT_MOST_ONCE, Code.CRASHED})
"""They keep no job from running."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is so, and what to do about it; None: nothing needs to be done."""

    code: Code
    text: str
    next_step: str | None = None
    since_at: float | None = None
    until_at: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is: a line that sums it up, and every reason, the weightiest first."""

    id: str
    verdict: str
    reasons: tuple[Reason, ...]
    asked_at: float
    """The store's instant."""
    state: State | None = None
    """The job's state; None if the store does not have it."""
    task: str | None = None
    queue: str | None = None

    @property
    def codes(self) -> tuple[Code, ...]:
        """The reasons by their codes."""
        return tuple(reason.code for reason in self.reasons)

    def __str__(self) -> str:
        steps = [f"- {each.next_step}" for each in self.reasons if each.next_step is not None]
        return "\n".join([f"job {self.id}: {self.verdict}", *steps])


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """What was read of the store around one job."""

    job: Job
    standing: Standing
    workers: tuple[WorkerInfo, ...] = ()
    running: tuple[Running, ...] = ()
    leader: Term | None = None
    silent: Mapping[str, float] | None = None
    """Workers that gave no sign of life, and for how many seconds; None: they were not watched."""

    @property
    def now(self) -> float:
        """The store's instant."""
        return self.standing.now

    @property
    def settings(self) -> QueueSettings:
        """What was decided about its queue."""
        return self.standing.settings

    @property
    def serving(self) -> list[WorkerInfo]:
        """The workers that serve the job's queue."""
        return [worker for worker in self.workers if self.job.queue in worker.queues]

    @property
    def able(self) -> list[WorkerInfo]:
        """Those of them that know its task."""
        return [worker for worker in self.serving if self.job.task in worker.tasks]

    def is_silent(self, workers: Sequence[WorkerInfo]) -> bool:
        """All of these were watched, and none gave a sign of life."""
        silent = self.silent or {}
        return bool(workers) and all(worker.id in silent for worker in workers)

    @property
    def is_leaderless(self) -> bool:
        """No worker leads, and none has shown that it lives all the same."""
        return self.leader is None and (self.silent is None or bool(self.silent))

    def worker(self, id: str | None) -> WorkerInfo | None:
        """The worker of this name, if it has a lease."""
        return next((worker for worker in self.workers if worker.id == id), None)


# --- wording of reasons and findings ------------------------------------------------------------


_LATEST: Final = 253_402_300_799.0


def moment(instant: float) -> str:
    """An instant: ``2026-11-16 03:20:11 UTC``."""
    known = datetime.fromtimestamp(min(max(instant, 0.0), _LATEST), UTC)
    return f"{known:%Y-%m-%d %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """A duration, in no more detail than a person wants: ``2.5s``, ``12s``, ``5m30s``, ``3d4h``."""
    for below, step in ((1.0, 0.001), (10.0, 0.1), (3600.0, 1.0), (86400.0, 60.0)):
        if seconds < below:
            return text(round(seconds / step) * step)
    return text(round(seconds / 3600.0) * 3600.0)


def number(count: int, one: str, many: str = "") -> str:
    """``1 job``, ``2 jobs``, ``12,000 jobs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names with commas, and how many more there are."""
    known = sorted(set(names))
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def argument(name: str) -> str:
    """A name as one word of a command line, quoted for a shell."""
    word = quote(name)
    if not name.isprintable():
        letters = (c if c.isprintable() and c not in "\\'" else _code(c) for c in name)
        word = f"$'{''.join(letters)}'"
    return f"-- {word}" if name.startswith("-") else word


def _code(letter: str) -> str:
    return f"\\{letter}" if letter in "\\'" else f"\\U{ord(letter):08x}"


def near(name: str, known: Sequence[str]) -> str | None:
    """The known name that was probably meant: the same in another module, or one spelt alike."""
    last = name.rpartition(".")[2].lower()
    for each in known:
        if each != name and each.rpartition(".")[2].lower() == last:
            return each
    found = get_close_matches(name, [each for each in known if each != name], 1)
    return found[0] if found else None
