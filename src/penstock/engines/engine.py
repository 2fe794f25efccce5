"""The engine contract: what every store of jobs does, and the fifteen laws it keeps.

Each verb's docstring is its specification, in four words where they apply: *Atomic* (what happens
wholly or not at all), *Idempotent* (what a repeated call does), *Order*, *On failure*. Every verb
may also raise ``EngineUnavailable``, and every call may be cancelled: then it may have happened. It
cannot happen any more once a later call on the same handle has returned; what repeating it does is
said under *Idempotent*. A ``limit`` or ``want`` below zero means none.

The laws, each from a failure that was reproduced:

1.  ``exchange`` is one round trip but several steps, each seeing the one before: settle, free what
    that unblocks, promote, count, claim. Any claimer promotes; the leader only backs it up.
    A worker may want only what is urgent enough (``least_urgent``).
2.  The fence is (job, claim, worker). An outcome repeated by its owner is *done*, any other
    mismatch is *stale*. Without its lease a worker gets ``LeaseLost`` and nothing is written.
3.  A lost reply loses nothing: ``held`` tells a worker what it was given, so no claimed job
    depends on its process dying to be found.
4.  Death is proven, not guessed: a beat is a counter. ``end_leases`` takes only workers whose beat
    is still the one that an observer saw stand still for a whole lease.
5.  A crash is not a failure: a rescue counts in ``crashes``, and only attempts that had started;
    so does the outcome ``CRASHED``, of a worker that outlived the attempt's process. A job that was
    in a crash starts when its worker says so (``begun``): it runs in a child, and what else its
    worker dies of is not its doing.
6.  "Same id" is decided by the ledger, in the same atomic step as the job.
7.  Only what could start now is in the claim index; everything else has a hold with a cause
    (``core.holds``) or an instant. The process that removes the cause lifts the hold, in batches.
8.  Every entry into ready takes a new ticket, also when a hold ends; only release, crash and rescue
    keep theirs. Nothing that an enqueuer writes inside a foreign transaction may block another
    enqueuer or a claimer: in a fair queue it leaves a note, and a claim orders the keys.
9.  Order: priority; among queues of one priority, turns; within a queue, the ticket. A waiting
    retry does not block those behind it, unless the queue is ordered: there a job that was claimed
    is *open* until it has ended, and no other job starts meanwhile, however urgent.
10. One bad item never fails its neighbours: a batch with something unstorable is refused whole with
    ``ItemRefused`` and the caller halves it until the culprit stands alone (see ``batcher``).
11. A wake-up is decided after commit, by a reader that looks once more before it sleeps.
12. Time is read in one place per engine, which tests can shift; durations are slept on the
    monotonic clock. Ids are never used for order.
13. A unique key belongs to one job: until it is done or until it starts, and through its window.
    A job that would wait again while another has its key is superseded.
14. At most once: never handed out beyond ``slots``, never run again after a crash or a rescue.
15. Results: one call asks for all awaited ids, waiting and finished alike (see ``waiting``).

If a process dies

| here                                   | then                                                   |
|----------------------------------------|--------------------------------------------------------|
| before a verb's commit                 | nothing happened                                       |
| after ``enqueue``'s commit             | the job is there; repeating the call finds it          |
| after a claim's commit, before its     | its beat stands still; a rescue gives the jobs back,   |
| reply                                  | uncharged where they had not started                   |
| after ``end_leases``, before the       | the jobs have a worker without a lease; the next       |
| rescue                                 | rescue finds them                                      |
| between reading a job and ``rewrite``  | nothing happened                                       |
| after a settlement's commit            | the job has ended; nothing repeats it                  |
| as leader                              | its term runs out; the next one does the chores again  |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.clock import Clock
from penstock.core.job import Draft, Job
from penstock.engines.records import (
    Ask,
    Cell,
    CellPage,
    Count,
    Exchange,
    Filter,
    News,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Repaired,
    Rewrite,
    Rewritten,
    Running,
    Schema,
    Sighting,
    Traits,
    WorkerInfo,
)


class Inlet(Protocol):
    """A blocking way into the store: jobs are stored on the calling thread."""

    def put(self, drafts: Sequence[Draft], timeout: float | None) -> list[Receipt] | None:
        """Store jobs as ``Engine.enqueue`` does, while this thread waits; any thread may call.

        None: the connection is in use by another thread, or broken, or these jobs need more than
        this way can do. Then call ``enqueue``: it finds what this call may have stored.
        On failure: ``ItemRefused``; ``EngineTimeout`` after ``timeout`` seconds: then the jobs may
        be stored all the same; ``EngineReentered`` if it interrupts a call of its own thread that
        holds what ``enqueue`` would wait for.
        """


def _unheard(why: str | None) -> None: ...


class Engine(ABC):
    """One handle on one store of jobs. A handle belongs to one event loop."""

    traits: Traits
    clock: Clock
    """Measures durations, on every engine; says when, where the store has no clock of its own."""

    polls: Callable[[str | None], object] = staticmethod(_unheard)
    """Called when this handle has to poll for what others commit (why), and when it is told of it
    again (None). ``Observed`` puts a listener of its own in its place."""

    # --- life ----------------------------------------------------------------------------------

    @abstractmethod
    async def open(self) -> None:
        """Connect; a store that does not exist yet is made and migrated.

        On failure: a named ``EngineError``; the handle stays closed and may be opened again.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything this handle has. Idempotent. What it still awaited is cancelled."""

    @abstractmethod
    async def migrate(self, *, check: bool = False) -> Schema:
        """Bring the store's schema up to date; return the version that it had, and the newest.

        Atomic per step, under a lock: any number of processes may call it at once. Idempotent.
        With ``check``, nothing is changed or made: it may be asked of a handle that is not open,
        about a store that does not exist yet.
        """

    # --- in ------------------------------------------------------------------------------------

    @abstractmethod
    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store jobs; return a receipt for each draft, in order.

        Atomic: all drafts, their ledger entries and unique keys are stored, or none. A draft whose
        id is in the store or (given by a person) in the ledger, or whose unique key is taken,
        stores nothing and its receipt names the job that is there; this holds inside one batch too
        (the first one wins). An id counts before a unique key.
        Idempotent by id. Order: tickets are given in the order of the drafts. A due job is ready,
        any other scheduled.
        On failure: ``ItemRefused`` if something in the batch cannot be stored (times that are not
        finite, text with NUL or lone surrogates, integers over 64 bits), ``ItemContested`` if it
        cannot be stored now, ``EngineFull``, ``EngineReadOnly``: nothing of the batch is stored.
        """

    @property
    def inlet(self) -> Inlet | None:
        """The way in for callers that may block; None: this engine has none, or is not open."""
        return None

    # --- work ----------------------------------------------------------------------------------

    @abstractmethod
    async def join(self, worker: WorkerInfo) -> None:
        """Give a worker its lease. What waits for one of its tasks is lifted by
        ``changes.lift_known``, in batches.

        Idempotent: joining again changes what is known of the worker, not its beat.
        """

    @abstractmethod
    async def leave(self, worker: str) -> None:
        """Give the lease back. What the worker still holds is taken by the next rescue.

        Idempotent.
        """

    @abstractmethod
    async def beat(self, worker: str) -> None:
        """Show that the worker lives: its beat grows by one.

        On failure: ``LeaseLost`` if the worker is not known.
        """

    @abstractmethod
    async def exchange(self, ask: Ask) -> Exchange:
        """Settle a worker's outcomes, then give it up to ``want`` jobs.

        Atomic: the whole turn, in this order: mark what has ``begun``; store the reports; settle
        each outcome inside the fence (see ``penstock.core.lifecycle.settled``); expire and promote
        what is due, at most
        ``ask.promote`` of each; claim. A queue that is paused, or whose ``max_running`` attempts
        run, gives nothing, and neither does a key with ``max_running_per_key``; counting and
        claiming cannot be overtaken by another claimer. In a queue whose keys take turns
        (``QueueSettings.is_keyed``) they do so as ``core.fairness`` says.
        An ordered queue gives one job, and nothing while one of its jobs runs. One that is open and
        waits is the only one it can give, whatever its ticket and priority; jobs that were open
        together before the queue was ordered come in their order as they are ready. Otherwise the
        first in line is next: what this worker cannot have is not passed over. A job sent back by a
        person is not open until it is claimed again.
        A settled job that waits again needs its unique key again (law 13); one that has ended gives
        it back. ``RELEASED`` with the hold ``UNKNOWN_TASK`` is not held if a worker that has a
        lease knows the task. One that ``is_settled`` is *done* and changes nothing.
        Idempotent: outcomes repeated by their owner are *done* and change nothing; a repeated
        ``want`` claims more jobs, so after a lost reply ask ``held`` first.
        Order: law 9, with ``ask.queues`` taking turns from the first. Jobs beyond the first
        ``slots`` are not started, and those that run at most once are not among them.
        On failure: ``LeaseLost``: nothing is written. ``ItemRefused``: an outcome cannot be stored,
        or would wait for a time that is not finite; nothing is written.
        """

    @abstractmethod
    async def held(self, worker: str) -> list[Job]:
        """Return every job that ``worker`` has and has not settled, in contract order.

        On failure: ``LeaseLost`` if the worker is not known.
        """

    # --- control -------------------------------------------------------------------------------

    @abstractmethod
    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        """Write jobs back as they are to be, each if the revision it was made from still stands;
        say what became of each, in order. See ``engines.changes``, which makes them.

        Atomic per job: all that can change in a job's life, its queue and priority, its ticket and
        its unique key. A job that needs its key (``lifecycle.needs_key``) takes it again, or is not
        written if another job has it; any other gives it back. Without a revision, a waiting job
        from elsewhere enters the store under its id, with a new ticket.
        Idempotent: a repeated call finds another revision and changes nothing.
        On failure: ``ItemRefused`` if something in the batch cannot be stored: nothing is written.
        """

    @abstractmethod
    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        """Delete up to ``limit`` jobs that fit and are not running; say how many, and the cursor to
        go on with.

        Atomic. Their ids stay in the ledger, their unique keys are given back. Order: the newest
        first, from ``cursor`` on, so that what enters meanwhile stays and nothing is looked at
        twice. Call again until there is no cursor.
        """

    @abstractmethod
    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        """Decide about a queue; it need not have jobs yet. Idempotent.

        Only the decision is written: later claims see to the jobs that are there, in batches.
        """

    @abstractmethod
    async def queues(self) -> dict[str, QueueSettings]:
        """Return every queue about which something was decided, with its settings. Order: by name.

        Costs nothing for jobs; ``reads.queues`` names those that only have jobs as well.
        """

    # --- upkeep --------------------------------------------------------------------------------

    @abstractmethod
    async def promote(self, limit: int) -> Promoted:
        """Expire and promote what is due, at most ``limit`` of each, the earliest first.

        Idempotent. Jobs enter ready in the order of their instants, then of their tickets.
        """

    @abstractmethod
    async def end_leases(self, dead: Sequence[Sighting]) -> list[str]:
        """Take the lease of each of these workers whose beat is still the one seen; return which
        have lost theirs by it. What they have is for ``changes.rescue``. Idempotent.
        """

    @abstractmethod
    async def prune(self, limit: int) -> Pruned:
        """Delete up to ``limit`` jobs that ended longer ago than they are kept, and likewise ids
        and unique keys and cells whose time is over; clear away what jobs that moved on have left,
        where the store would do so too late by itself. Idempotent.

        An engine that keeps what ended by the day may let a day with many jobs go as a whole: when
        all of it is old, so up to a day later, and then beyond ``limit`` and counted roughly.
        """

    @abstractmethod
    async def repair(
        self, limit: int, cursor: str | None = None, *, rehearse: bool = False
    ) -> Repaired:
        """Repair what a lost step may have left in the store's own order, of up to ``limit`` unique
        keys and ``limit`` key lines: keys of jobs that need them no longer, key lines that could be
        active and that no claim would look at. Holds are for ``changes.repair_holds``.

        Idempotent; on a healthy store it finds nothing. Call again with the cursor until there is
        none. With ``rehearse``, only say what would be repaired, and change nothing.
        """

    # --- small values --------------------------------------------------------------------------

    @abstractmethod
    async def cell(self, name: str) -> Cell:
        """Return a named value and its version; ``Cell(None, 0)`` if it was never written."""

    @abstractmethod
    async def set_cell(
        self, name: str, value: bytes | None, version: int, ttl: float | None = None
    ) -> Cell | None:
        """Write a named value if its version is still ``version``; None: another write was faster.

        Atomic. The version grows with each write, also when the value is None, and never starts
        again: not even when a cell was forgotten. After ``ttl`` seconds the value is over: it reads
        as None under the same version, and ``prune`` may forget the cell.
        """

    @abstractmethod
    async def cells(self, prefix: str, cursor: str | None, limit: int) -> CellPage:
        """Return one page of the cells that have a value and whose names begin with ``prefix``.

        Order: by name, in the order of code points; from ``cursor`` on.
        """

    # --- see -----------------------------------------------------------------------------------

    @abstractmethod
    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Return the jobs with these ids, in order, None for those not in the store."""

    @abstractmethod
    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        """Return one page of the jobs that fit, newest first, from ``cursor`` on.

        Order: by entry into the store. A job enqueued between two pages appears in neither.
        On failure: ``BadOption`` if the cursor is not one that a page had.
        """

    @abstractmethod
    async def counts(self, which: Filter) -> list[Count]:
        """Return how many jobs fit, per queue, priority, state and hold.

        Costs by what fits where only states, instants and tickets are asked for: jobs that ended
        long ago cost nothing unless they are asked for.
        """

    @abstractmethod
    async def workers(self) -> list[WorkerInfo]:
        """Return every worker that has a lease. Order: who joined first, then by id."""

    @abstractmethod
    async def running(self) -> list[Running]:
        """Return what workers have, with a lease or without, one entry per worker, queue, task and
        priority. Order: by these. Its cost grows with what runs, not with what waits.
        """

    # --- wake ----------------------------------------------------------------------------------

    @abstractmethod
    async def version(self, kind: News) -> int:
        """Return a number that this handle sees change after any commit of this kind.

        A beat and a cell with a time to live need not count, and commits of other kinds may.
        """

    @abstractmethod
    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        """Sleep until the version of this kind is no longer ``seen``, at most ``timeout`` seconds;
        return it.

        May return early. Never misses a commit that happened after ``seen`` was read: a caller that
        reads the version, looks, and listens only then has seen or will hear of everything.
        """
