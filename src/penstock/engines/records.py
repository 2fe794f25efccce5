"""What goes into the verbs of the engine contract, and what comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from penstock.core.job import Hold, Job, Outcome, State, Verdict
from penstock.errors import BadOption

PROMOTE_BATCH: Final = 500
"""Jobs one exchange promotes at most, so that a great many due at once delay no outcomes."""

LINE_LIMIT: Final = 10_000
"""How many jobs of a line are counted at most, so that asking costs the same in any backlog."""

SOME: Final = 5
"""How many keys and ids are named where there may be any number."""

ANY_PRIORITY: Final = (1 << 63) - 1
"""The least urgent priority that can be stored."""

LEAST_WEIGHT: Final = 1e-6
GREATEST_WEIGHT: Final = 1e6
"""Beyond these a key's places in line are so far apart, or so close, that numbers run out."""


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


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a worker: what it brings and what it wants.

    ``queues`` are in the order of this turn; the worker rotates them. Of up to ``want`` jobs the
    first ``slots`` start at once, the rest wait in the worker's hands; ``begun`` names those of
    earlier turns that have started since, as (job, attempt). Jobs of the tasks in ``avoid`` are
    passed over, and so are those whose priority number is greater than ``least_urgent``, if it is
    given. Cancellations of the jobs in ``told`` are known to the worker already.
    """

    worker: str
    queues: tuple[str, ...] = ()
    want: int = 0
    slots: int = 0
    outcomes: tuple[Outcome, ...] = ()
    begun: tuple[tuple[str, int], ...] = ()
    avoid: frozenset[str] = frozenset()
    least_urgent: int | None = None
    told: frozenset[str] = frozenset()


def least_before(priority: int, *, is_fair: bool) -> int:
    """The least urgent priority that a job must have to come before one that is in line already.

    With a new ticket only what is more urgent does; in a fair queue it may be given a place before
    one of the same priority.
    """
    return priority if is_fair else priority - 1


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
    now: float = 0.0
    """The store's instant of this exchange."""


def reasons(ended: Mapping[str, Job], state: State) -> dict[str, str]:
    """Why those of these jobs that ended in ``state`` did so, by their ids."""
    return {id: job.reason or "" for id, job in ended.items() if job.state is state}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How far an attempt has come."""

    job: str
    attempt: int
    fraction: float | None = None
    note: str | None = None


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


class Hand(msgspec.Struct, frozen=True, kw_only=True):
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


def most_common(keys: Iterable[str | None]) -> tuple[tuple[str, int], ...]:
    """The keys that occur most often, and how often; of equals the first by name."""
    counted = Counter(key or "" for key in keys).items()
    return tuple(sorted(counted, key=lambda each: (-each[1], each[0]))[:SOME])


class Sighting(msgspec.Struct, frozen=True):
    """A worker, and the beat at which it was seen."""

    worker: str
    beat: int


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One period of leadership."""

    holder: str
    epoch: int
    left: float
    """Seconds until it ends unless renewed."""


class Leadership(msgspec.Struct, frozen=True):
    """What a candidate is told."""

    term: Term | None
    """The candidate's own; None: another one leads."""
    beats: tuple[Sighting, ...] = ()
    """The beat of every worker that has a lease."""


class Cell(msgspec.Struct, frozen=True):
    """A small named value and its version; version 0 was never written."""

    value: bytes | None
    version: int


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

    def __post_init__(self) -> None:
        """Refuse what would stop every claimer, not only this queue."""
        if self.max_running is not None and self.max_running < 0:
            raise BadOption("max_running", self.max_running, "give 0 or more, or None for no limit")
        for key, weight in self.weights.items():
            if not LEAST_WEIGHT <= weight <= GREATEST_WEIGHT:
                why = f"the weight of {key!r} must be from {LEAST_WEIGHT:g} to {GREATEST_WEIGHT:g}"
                raise BadOption("weights", weight, why)

    @property
    def most(self) -> int | None:
        """How many attempts may run at once, whatever decides it; None: any number."""
        if not self.ordered:
            return self.max_running
        return 1 if self.max_running is None else min(1, self.max_running)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where one job stands, on one snapshot of the store."""

    now: float
    """The store's instant."""
    job: Job | None = None
    settings: QueueSettings = msgspec.field(default_factory=QueueSettings)
    """What was decided about its queue."""
    remembered_until: float | None = None
    """Until when the ledger keeps the id, whether the job is there or not."""
    ahead: int = 0
    """Jobs of its queue that come before it, at most ``LINE_LIMIT`` + 1; 0 if it is not in line."""
    more_urgent: int = 0
    """Those of them with a more urgent priority."""
    keys: tuple[tuple[str, int], ...] = ()
    """The keys that most of them have, and how many of each; "" is no key."""
    blockers: tuple[str, ...] = ()
    """Open jobs that wait and have to end first, in an ordered queue: some of them."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs; an empty one means all. Within a field any value fits, all fields must."""

    ids: tuple[str, ...] = ()
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
            and (self.tag is None or self.tag in job.tags)
            and (self.correlation_id is None or self.correlation_id == job.correlation_id)
            and (self.since is None or self.since <= job.enqueued_at)
            and (self.until is None or job.enqueued_at < self.until)
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
    """How many jobs of a queue are in a state, under a hold."""

    queue: str
    state: State
    hold: Hold | None
    jobs: int


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs came into a queue, and how many left it, within a while."""

    queue: str
    entered: int = 0
    """Counted from the newest back to the first that is older than that: if the clock was set back,
    what lies behind it is left out."""
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """A busy store at one instant, as far as it can be told without reading what is long over."""

    now: float
    """The store's instant."""
    counts: tuple[Count, ...] = ()
    """Of jobs that wait, run or have failed."""
    traffic: tuple[Traffic, ...] = ()
    """Of every queue where something came or ended."""
    settings: Mapping[str, QueueSettings] = msgspec.field(default_factory=dict)
    """Of every queue about which something was decided."""
    workers: tuple[WorkerInfo, ...] = ()
    busy: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Jobs that each worker has, if any, by its id."""
    running: tuple[Job, ...] = ()
    failed: tuple[Job, ...] = ()


class Control(msgspec.Struct, frozen=True):
    """What became of one id in a ``cancel`` or a ``retry``.

    ``state`` is the job's state afterwards, None for an unknown id; ``owner`` is the job that has
    taken the unique key, if that is why nothing changed.
    """

    id: str
    changed: bool
    state: State | None
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


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs were deleted, and where to go on; no cursor: nothing is left that fits."""

    jobs: int = 0
    cursor: str | None = None


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """What had to be repaired; all zero is the rule."""

    placed: int = 0
    unheld: int = 0
    keys: int = 0
