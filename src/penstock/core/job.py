"""The job: what is stored of one run of a task, and the states it can pass through.

The records hold text, bytes and numbers only, so they cannot be part of a cycle: ``gc=False`` keeps
the collector from looking at hundreds of thousands of them for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeVar, overload

import msgspec
from msgspec.structs import replace

from penstock.errors import BadPriority, WrongState


class State(StrEnum):
    """Where a job is in its life."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """The job has ended; only a person can bring it back."""
        return self in FINAL

    @property
    def is_waiting(self) -> bool:
        """The job has yet to be claimed."""
        return self in WAITING


FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
WAITING: Final = frozenset({State.SCHEDULED, State.READY})


class Hold(StrEnum):
    """Why a waiting job cannot start now."""

    LIMIT = "limit"
    RATE = "rate"
    BREAKER = "breaker"
    DEPENDENCY = "dependency"
    UNKNOWN_TASK = "unknown_task"
    MOVING = "moving"


class Change(StrEnum):
    """What can happen to a job."""

    PROMOTE = "promote"
    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    SNOOZE = "snooze"
    RELEASE = "release"
    CANCEL = "cancel"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"
    CRASH = "crash"
    RESCUE = "rescue"
    ABANDON = "abandon"
    REVIVE = "revive"
    HOLD = "hold"
    LIFT = "lift"
    EDIT = "edit"
    POSTPONE = "postpone"


TRANSITIONS: Final[Mapping[tuple[State, Change], State]] = MappingProxyType(
    {
        (State.SCHEDULED, Change.PROMOTE): State.READY,
        (State.SCHEDULED, Change.CANCEL): State.CANCELLED,
        (State.SCHEDULED, Change.EXPIRE): State.CANCELLED,
        (State.READY, Change.CLAIM): State.RUNNING,
        (State.READY, Change.CANCEL): State.CANCELLED,
        (State.READY, Change.EXPIRE): State.CANCELLED,
        (State.RUNNING, Change.SUCCEED): State.SUCCEEDED,
        (State.RUNNING, Change.FAIL): State.FAILED,
        (State.RUNNING, Change.RETRY): State.SCHEDULED,
        (State.RUNNING, Change.SNOOZE): State.SCHEDULED,
        (State.RUNNING, Change.RELEASE): State.READY,
        (State.RUNNING, Change.CANCEL): State.CANCELLED,
        (State.RUNNING, Change.EXPIRE): State.CANCELLED,
        (State.RUNNING, Change.SUPERSEDE): State.CANCELLED,
        (State.RUNNING, Change.CRASH): State.READY,
        (State.RUNNING, Change.RESCUE): State.READY,
        (State.RUNNING, Change.ABANDON): State.FAILED,
        (State.FAILED, Change.REVIVE): State.READY,
        (State.CANCELLED, Change.REVIVE): State.READY,
        (State.SCHEDULED, Change.HOLD): State.READY,
        (State.READY, Change.HOLD): State.READY,
        (State.READY, Change.LIFT): State.READY,
        (State.SCHEDULED, Change.EDIT): State.READY,
        (State.READY, Change.EDIT): State.READY,
        (State.READY, Change.POSTPONE): State.SCHEDULED,
    }
)
"""The whole machine. What is not in it cannot happen."""


class OutcomeKind(StrEnum):
    """What an attempt ended as."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRY = "retry"
    SNOOZE = "snooze"
    CANCELLED = "cancelled"
    RELEASED = "released"
    EXPIRED = "expired"
    CRASHED = "crashed"
    """Its process died, and its worker lives to tell."""


KEEP: Final = 7 * 86400.0
"""Seconds for which a job that has ended is kept, unless its draft says otherwise."""


CRASH_LIMIT: Final = 3
"""A job that was in this many crashes has proven to be the killer, if no setting says otherwise."""


class Verdict(StrEnum):
    """What the engine answers to one outcome."""

    DONE = "done"
    """It is settled, now or by the same worker before."""
    STALE = "stale"
    """It is from outside the fence and was dropped."""
    LATER = "later"
    """Its row is locked by another connection just now: send it again."""


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt that ended badly: kept for every attempt."""

    attempt: int
    at: float
    kind: str
    message: str
    traceback: str | None = None
    worker: str | None = None


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job as its caller describes it, before an engine stored it.

    Durations, not instants, wherever the engine's clock has to decide. The id is made by the
    caller's process, so that a repeated call is the same call; ``remember`` > 0 says that a person
    chose it, and for how long the ledger keeps it.
    """

    id: str
    task: str
    payload: bytes = b"{}"
    queue: str = "default"
    priority: int = 5
    delay: float = 0.0
    run_at: float | None = None
    expires_in: float | None = None
    remember: float = 0.0
    key: str | None = None
    unique: str | None = None
    unique_until: Literal["done", "start"] = "done"
    unique_for: float = 0.0
    at_most_once: bool = False
    name: str | None = None
    tags: tuple[str, ...] = ()
    correlation_id: str | None = None
    enqueued_by: str = ""
    meta: bytes | None = None
    """A JSON object that travels with the job."""
    keep: float = KEEP
    """Seconds for which the job is kept after its end."""


class DraftBatch(Sequence[Draft]):
    """Drafts that differ in their ids and payloads only, kept as columns.

    To make a draft costs more than to send it: each is made when it is asked for.
    """

    __slots__ = ("first", "ids", "payloads")

    def __init__(self, first: Draft, ids: Sequence[str], payloads: Sequence[bytes]) -> None:
        """``first`` has all that they have in common; its own id and payload do not count."""
        self.first = first
        self.ids = ids
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Draft: ...
    @overload
    def __getitem__(self, index: slice) -> DraftBatch: ...
    def __getitem__(self, index: int | slice) -> Draft | DraftBatch:
        if isinstance(index, slice):
            return DraftBatch(self.first, self.ids[index], self.payloads[index])
        return replace(self.first, id=self.ids[index], payload=self.payloads[index])

    def __iter__(self) -> Iterator[Draft]:
        first = self.first
        for id, payload in zip(self.ids, self.payloads, strict=True):
            yield replace(first, id=id, payload=payload)


def ids_of(drafts: Sequence[Draft]) -> Sequence[str]:
    """The ids of drafts, without making the drafts of a ``DraftBatch``."""
    return drafts.ids if isinstance(drafts, DraftBatch) else [draft.id for draft in drafts]


def payloads_of(drafts: Sequence[Draft]) -> Sequence[bytes]:
    """The payloads of drafts, likewise."""
    if isinstance(drafts, DraftBatch):
        return drafts.payloads
    return [draft.payload for draft in drafts]


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One stored run of a task.

    ``claim`` counts every hand-out to a worker: with the id and ``worker`` it is the fence.
    ``attempt`` is the number of the attempt that runs, or how many there were: a claim that was
    given back or rescued before its start is none.
    ``worker`` runs the attempt, or has settled the last one; a rescue clears it.
    ``started`` is false while a claimed job only waits in its worker's hands. ``revision`` grows
    with every change but a start and progress, so that a change can be made to the job that was
    read, or to none. ``seq`` is its ticket: its place in line. ``claimed_at`` is None until the
    first claim, and again after a person sent the job back.
    """

    id: str
    task: str
    payload: bytes
    queue: str
    priority: int
    state: State
    enqueued_at: float
    enqueued_by: str = ""
    hold: Hold | None = None
    hold_cause: str | None = None
    hold_until: float | None = None
    seq: int = 0
    run_at: float | None = None
    expires_at: float | None = None
    claim: int = 0
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    rescues: int = 0
    worker: str | None = None
    started: bool = False
    cancel_reason: str | None = None
    key: str | None = None
    unique: str | None = None
    unique_until: Literal["done", "start"] = "done"
    at_most_once: bool = False
    name: str | None = None
    tags: tuple[str, ...] = ()
    correlation_id: str | None = None
    claimed_at: float | None = None
    finished_at: float | None = None
    result: bytes | None = None
    reason: str | None = None
    progress: float | None = None
    note: str | None = None
    errors: tuple[ErrorRecord, ...] = ()
    revision: int = 0
    meta: bytes | None = None
    """A JSON object that its caller gave it."""
    checkpoint: bytes | None = None
    """What an attempt has saved for the next one, as JSON."""
    keep: float = KEEP
    """Seconds for which it is kept after its end."""

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of the line: priority, then ticket."""
        return self.priority, self.seq

    @property
    def is_open(self) -> bool:
        """It was claimed and has not ended since: in an ordered queue no other job may pass it."""
        return self.claimed_at is not None and not self.state.is_final


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one attempt ended as, in the words of its worker."""

    job: str
    claim: int
    kind: OutcomeKind
    result: bytes | None = None
    delay: float = 0.0
    reason: str | None = None
    error: ErrorRecord | None = None
    hold: Hold | None = None
    hold_cause: str | None = None
    crash_limit: int = CRASH_LIMIT
    """How many crashes end the job."""
    has_begun: bool = True
    """False: the job is given back before its handler was called, so this was no attempt."""
    is_settled: bool = False
    """The job has ended already, in the transaction of its effects: this only tells of it."""


# To look a member up in its enum takes longer than most of what is done with it: what every attempt
# asks for has a name of its own.
RUNNING: Final = State.RUNNING
SUCCEEDED: Final = OutcomeKind.SUCCEEDED


def step(job: Job, change: Change) -> State:
    """Return the state that ``change`` leads to, or raise ``WrongState``."""
    try:
        return TRANSITIONS[job.state, change]
    except KeyError:
        raise WrongState(job.id, change, job.state) from None


PRIORITIES: Final[Mapping[str, int]] = MappingProxyType({"high": 0, "normal": 5, "low": 10})
PRIORITY_RANGE: Final = range(-1000, 1001)


def priority_number(value: str | int, labels: Mapping[str, int] = PRIORITIES) -> int:
    """Return the number behind a priority label, or the number itself; lower runs first."""
    if isinstance(value, str) and value in labels:
        return labels[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in PRIORITY_RANGE:
        return value
    raise BadPriority(value, tuple(labels))


class InLine(Protocol):
    """What choosing among lines has to know of a job."""

    @property
    def priority(self) -> int: ...
    @property
    def at_most_once(self) -> bool: ...


Each = TypeVar("Each", bound=InLine)


def choose(lines: Sequence[Sequence[Each]], want: int, slots: int) -> list[Each]:
    """Merge the heads of several queues into one claim, in contract order.

    Priority first; among queues that offer the same priority they take turns, in the order the
    lines are given; within a line its own order stands. A job that runs at most once is passed
    over unless it is among the first ``slots``.
    """
    if len(lines) == 1 and not any(job.at_most_once for job in lines[0]):
        return list(lines[0][:want])
    heads = [0] * len(lines)
    chosen: list[Each] = []
    turn = 0
    while len(chosen) < want:
        best, pick = math.inf, -1
        for offset in range(len(lines)):
            index = (turn + offset) % len(lines)
            if heads[index] < len(lines[index]) and lines[index][heads[index]].priority < best:
                best, pick = lines[index][heads[index]].priority, index
        if pick < 0:
            break
        job = lines[pick][heads[pick]]
        heads[pick] += 1
        turn = pick + 1
        if len(chosen) < slots or not job.at_most_once:
            chosen.append(job)
    return chosen
