"""What goes into the verbs of the engine contract, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

from penstock.core import fairness
from penstock.core.job import Change, Hold, Job, Outcome, State, Verdict
from penstock.errors import BadOption

ANY_PRIORITY: Final = (1 << 63) - 1
"""The least urgent priority that can be stored."""


class News(StrEnum):
    """What a call that listens wants to hear of."""

    WORK = "work"
    """A job may have become ready."""
    DONE = "done"
    """A job has ended."""
    CONTROL = "control"
    """A running job is to be cancelled."""
    CHANGED = "changed"
    """Anything has changed."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """How engines differ, as data."""

    name: str
    """What messages call the store."""
    max_batch: int
    """Items a single call should carry at most."""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """How the store keeps its data, as a version number."""

    found: int
    """What the store has; 0: there is none yet."""
    newest: int
    """What this Penstock needs, and ``migrate`` brings it to."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What became of one draft."""

    id: str
    """The job's id; of the job that was there already, if ``created`` is false."""
    created: bool
    because: Literal["id", "unique"] | None = None
    """What was known already: the id, or the unique key."""
    ticket: int = 0
    """Its place in line, if it was created; 0: it was not."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How far an attempt has come; from outside the fence it changes nothing."""

    job: str
    claim: int
    fraction: float | None = None
    note: str | None = None
    checkpoint: bytes | None = None
    """What to save for the next attempt; None: what was saved before stays."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a worker: what it brings and what it wants.

    ``queues`` are in the order of this turn; the worker rotates them. Of up to ``want`` jobs the
    first ``slots`` start at once, the rest wait in the worker's hands; ``begun`` names those of
    earlier turns that have started since, as (job, claim); ``reports`` tell how far attempts have
    come, and count before the outcomes. Jobs of the tasks in ``avoid`` are
    passed over, and so are those whose priority number is greater than ``least_urgent``, if it is
    given. Cancellations of the jobs in ``told`` are known to the worker already.
    """

    worker: str
    queues: tuple[str, ...] = ()
    want: int = 0
    slots: int = 0
    outcomes: tuple[Outcome, ...] = ()
    begun: tuple[tuple[str, int], ...] = ()
    reports: tuple[Report, ...] = ()
    avoid: frozenset[str] = frozenset()
    least_urgent: int | None = None
    told: frozenset[str] = frozenset()
    promote: int = 200
    """Jobs it promotes, and lets expire, at most: a great many due at once delay no outcomes."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an ``Ask``."""

    jobs: tuple[Job, ...] = ()
    """Most urgent first; exactly the claimed attempts."""
    verdicts: tuple[Verdict, ...] = ()
    """One per outcome, in the order they were given."""
    cancels: tuple[str, ...] = ()
    """Jobs of this worker that are to be cancelled, less those it was told of."""
    overruled: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Jobs that were to wait again and have ended cancelled instead, each with the reason."""
    abandoned: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Jobs that have crashed and failed of it, each with the reason."""
    due_in: float | None = None
    """Seconds until something of these queues falls due; None: nothing is scheduled."""
    is_keyed: bool = False
    """The keys of one of these queues take turns: what a worker claims ahead of its slots delays
    the other keys."""
    now: float = 0.0
    """The store's instant of this exchange."""


def reasons(ended: Mapping[str, Job], state: State) -> dict[str, str]:
    """Why those of these jobs that ended in ``state`` did so, by their ids."""
    return {id: job.reason or "" for id, job in ended.items() if job.state is state}


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process incarnation. ``beat`` is a counter, not a time."""

    id: str
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    host: str = ""
    pid: int = 0
    slots: int = 0
    rooms: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Its slots, by the kind of tasks that take them."""
    kinds: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The kind of each task."""
    reserve: Mapping[int, int] = msgspec.field(default_factory=dict)
    """Slots of each kind that are kept for jobs at least as urgent as a priority."""
    lease: float = 0.0
    """How long it may give no sign of life, as it was told; 0: it does not say."""
    beat: int = 0
    joined_at: float = 0.0


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has of one task, queue and priority: attempts that run or wait for a slot."""

    worker: str
    queue: str
    task: str
    priority: int
    jobs: int
    started: int
    """How many of these have begun."""
    first: str
    """The job that was claimed first; one of them, if several were at once."""
    since_at: float
    """When that was."""


class Sighting(msgspec.Struct, frozen=True):
    """A worker, and the beat at which it was seen."""

    worker: str
    beat: int


class Cell(msgspec.Struct, frozen=True):
    """A small named value and its version, as they are at the instant ``now`` of the store."""

    value: bytes | None = None
    """None: there is none, or its time is over."""
    version: int = 0
    """0: it was never written, or is forgotten."""
    now: float = 0.0
    left: float | None = None
    """Seconds until the value is over; None: it stays."""


def over_at(now: float, ttl: float | None) -> tuple[float | None, float | None]:
    """When a value written at ``now`` is over, and how long after ``now`` that is: a sum is
    rounded, and a reader must never find more left than was given.
    """
    if ttl is None:
        return None, None
    until = now + ttl
    return until, until - now


def cell_at(
    now: float, value: bytes | None, version: int, until: float | None, ttl: float | None
) -> Cell:
    """A stored cell as it is read at ``now``; ``until`` and ``ttl`` are None for one that stays.

    If more is left than was ever given, the clock went back: then the value is over as well, for
    otherwise it would stay as long as the clock needs to catch up.
    """
    if value is None or until is None or ttl is None:
        return Cell(value, version, now)
    left = until - now
    return Cell(value, version, now, left) if 0 < left <= ttl else Cell(None, version, now)


class CellPage(msgspec.Struct, frozen=True):
    """Some cells in the order of their names, and where the next page begins."""

    cells: tuple[tuple[str, Cell], ...]
    cursor: str | None = None


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator decides about one queue."""

    paused: bool = False
    note: str | None = None
    """Why it is paused, for the next person."""
    max_running: int | None = None
    """Attempts of this queue that may run at once, over all workers."""
    ordered: bool = False
    """Run one job after the other: the next one starts when the one before has ended, also if that
    one has to wait for a retry."""
    fair: bool = False
    """Share the queue between keys instead of first come, first served."""
    weights: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Shares of single keys in a fair queue; 1 if not named."""
    max_running_per_key: int | None = None
    """Attempts of one key that may run at once, over all workers. Such a queue is shared between
    its keys as a fair one is. Jobs without a key are not counted."""

    def __post_init__(self) -> None:
        """Refuse what would stop every claimer, not only this queue."""
        if self.max_running is not None and self.max_running < 0:
            raise BadOption("max_running", self.max_running, "give 0 or more, or None for no limit")
        per_key = self.max_running_per_key
        if per_key is not None and per_key < 0:
            raise BadOption("max_running_per_key", per_key, "give 0 or more, or None for no limit")
        for key, weight in self.weights.items():
            if not fairness.LEAST_WEIGHT <= weight <= fairness.GREATEST_WEIGHT:
                edges = f"{fairness.LEAST_WEIGHT:g} to {fairness.GREATEST_WEIGHT:g}"
                why = f"the weight of {key!r} must be from {edges}"
                raise BadOption("weights", weight, why)

    @property
    def is_keyed(self) -> bool:
        """Its keys take turns: each is a line of its own."""
        return self.fair or self.max_running_per_key is not None

    def stride(self, key: str) -> int:
        """How far the line of a key moves on with each job."""
        return fairness.stride(self.weights.get(key, 1.0))

    @property
    def most(self) -> int | None:
        """How many attempts may run at once, whatever decides it; None: any number."""
        if not self.ordered:
            return self.max_running
        return 1 if self.max_running is None else min(1, self.max_running)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs; an empty one means all. Within a field any value fits, all fields must."""

    ids: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    """In the hands of one of these workers: only jobs that run are."""
    states: tuple[State, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    holds: tuple[Hold, ...] = ()
    tag: str | None = None
    correlation_id: str | None = None
    since: float | None = None
    """Enqueued at this instant or later."""
    until: float | None = None
    """Enqueued before this instant."""
    finished_since: float | None = None
    """Ended at this instant or later."""
    tickets_below: int | None = None
    """Given a ticket before this one."""
    is_open: bool = False
    """Only jobs that were claimed and have not ended since."""

    def fits(self, job: Job) -> bool:
        """The job is one of those meant."""
        tests: list[tuple[Sequence[object], object]] = [
            (self.ids, job.id),
            (self.states, job.state),
            (self.queues, job.queue),
            (self.tasks, job.task),
            (self.keys, job.key),
            (self.holds, job.hold),
        ]
        return (
            all(not wanted or value in wanted for wanted, value in tests)
            and (not self.workers or (job.state is State.RUNNING and job.worker in self.workers))
            and (self.tag is None or self.tag in job.tags)
            and (self.correlation_id is None or self.correlation_id == job.correlation_id)
            and (self.since is None or self.since <= job.enqueued_at)
            and (self.until is None or job.enqueued_at < self.until)
            and (self.finished_since is None or (job.finished_at or 0.0) >= self.finished_since)
            and (self.tickets_below is None or job.seq < self.tickets_below)
            and (not self.is_open or job.is_open)
        )


class Page(msgspec.Struct, frozen=True):
    """Some jobs, newest first, and where the next page begins."""

    jobs: tuple[Job, ...]
    cursor: str | None


def entry_before(cursor: str | None) -> int:
    """Read the cursor of a page: jobs that entered before this one are next."""
    if cursor is None:
        return 1 << 62
    if cursor.isascii() and cursor.isdigit() and len(cursor) <= 18:
        return int(cursor)
    raise BadOption("cursor", cursor, "give the one of the page before, or none for the first page")


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of a queue and priority are in a state, under a hold."""

    queue: str
    priority: int
    state: State
    hold: Hold | None
    jobs: int


def count_of(queue: str, priority: int, state: str, hold: str | None, jobs: int) -> Count:
    """A count as a store has it in a row."""
    kind = Hold(hold) if hold else None
    return Count(queue=queue, priority=priority, state=State(state), hold=kind, jobs=jobs)


class Control(msgspec.Struct, frozen=True):
    """What became of one id in a ``cancel`` or a ``retry``.

    ``state`` is the job's state afterwards, None for an unknown id; ``owner`` is the job that has
    taken the unique key, if that is why nothing changed.
    """

    id: str
    changed: bool
    state: State | None
    owner: str | None = None


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is to be from now on, by one change."""

    job: Job
    """Whole. With ``lifecycle.NEW_TICKET`` it takes the next ticket of its store."""
    revision: int | None
    """Of the job that this was made from: it is written if that still stands. None: the job is from
    elsewhere and enters this store, if its id is not known here."""
    change: Change
    """What happens to it, for those who are told."""
    remember: float = 0.0
    """How long the ledger keeps the id of a job that enters."""


class Rewritten(msgspec.Struct, frozen=True):
    """What became of a ``Rewrite``."""

    verdict: Verdict
    """*Done*: it is written. *Stale*: the job has changed, has gone, or its unique key has an
    ``owner``. *Later*: another connection has it, or its key, just now."""
    job: Job | None = None
    """As it is in the store now; None: it is not there."""
    owner: str | None = None


class Promoted(msgspec.Struct, frozen=True, kw_only=True):
    """What fell due, and when the next thing does."""

    ready: int = 0
    expired: int = 0
    due_in: float | None = None


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What was old enough to go."""

    jobs: int = 0
    ids: int = 0
    keys: int = 0
    again_in: float | None = None
    """Seconds after which the store wants to be pruned again, though it is no full batch."""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs were deleted, and where to go on; no cursor: nothing is left that fits."""

    jobs: int = 0
    cursor: str | None = None


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """What had to be repaired, and where to go on; all zero is the rule."""

    lines: int = 0
    """Key lines with jobs that could start, which no claim would have looked at."""
    keys: int = 0
    """Unique keys of jobs that need them no longer."""
    cursor: str | None = None
    """None: everything was looked at."""
