"""The engine contract: what every store of jobs does, and the fifteen laws it keeps.

Each verb's docstring is its specification, in four words where they apply: *Atomic* (what happens
wholly or not at all), *Idempotent* (what a repeated call does), *Order*, *On failure*. Every verb
may also raise ``EngineUnavailable``, and every call may be cancelled: then it may have happened. It
cannot happen any more once a later call on the same handle has returned; what repeating it does is
said under *Idempotent*. A ``limit`` or ``want`` below zero means none.

The laws, each from a failure that was reproduced:

1.  ``exchange`` is one round trip but several steps, each seeing the one before: settle, free what
    that unblocks, promote, place, count, claim. Any claimer promotes; the leader only backs it up.
    A worker may want only what is urgent enough (``least_urgent``).
2.  The fence is (job, attempt, worker). An outcome repeated by its owner is *done*, any other
    mismatch is *stale*. Without its lease a worker gets ``LeaseLost`` and nothing is written.
3.  A lost reply loses nothing: ``held`` tells a worker what it was given, so no claimed job
    depends on its process dying to be found.
4.  Death is proven, not guessed: a beat is a counter. ``rescue`` takes only workers whose beat is
    still the one that an observer saw stand still for a whole lease.
5.  A crash is not a failure: ``rescue`` counts in ``crashes``, and only attempts that had started;
    so does the outcome ``CRASHED``, of a worker that outlived the attempt's process. A job that was
    in a crash starts when its worker says so (``begun``): it runs in a child, and what else its
    worker dies of is not its doing.
6.  "Same id" is decided by the ledger, in the same atomic step as the job.
7.  Only what could start now is in the claim index; everything else has a hold with a cause, and
    the process that removes the cause removes the hold in the same step.
8.  Every entry into ready takes a new ticket; only release, crash and rescue keep theirs. Jobs of
    fair queues enter unplaced and get their ticket after commit, from the next claim.
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
15. Results: one call asks for all awaited ids, waiting and finished alike.

If a process dies

| here                                   | then                                                   |
|----------------------------------------|--------------------------------------------------------|
| before a verb's commit                 | nothing happened                                       |
| after ``enqueue``'s commit             | the job is there; repeating the call finds it          |
| after a claim's commit, before its     | its beat stands still; ``rescue`` gives the jobs back, |
| reply                                  | uncharged where they had not started                   |
| after a settlement's commit            | the job has ended; nothing repeats it                  |
| as leader                              | its term runs out; the next one does the chores again  |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.clock import Clock
from penstock.core.finding import Finding
from penstock.core.job import Draft, Job, Verdict
from penstock.engines.records import (
    Ask,
    Cell,
    Control,
    Count,
    Exchange,
    Filter,
    Glance,
    Hand,
    Leadership,
    Mended,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Report,
    Schema,
    Sighting,
    Standing,
    Term,
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
    async def migrate(self) -> int:
        """Bring the store's schema up to date; return its version.

        Atomic per step, under a lock: any number of processes may call it at once. Idempotent.
        """

    @abstractmethod
    async def schema(self) -> Schema:
        """Say which schema the store has, and which one this engine brings it to.

        Changes nothing and makes nothing: it may be asked of a handle that is not open, about a
        store that does not exist yet.
        """

    @abstractmethod
    async def now(self) -> float:
        """Return the store's instant: the one that decides what is due."""

    @abstractmethod
    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        """Say how the place is where the jobs live: whether it can be reached, its version, room
        and safety. With ``thorough``, also whether all of it is sound, which may take long.

        Open or not: nothing is made, migrated or changed. On failure: what is wrong is a finding.
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
        any other scheduled; in a fair queue a due job waits ``UNPLACED``.
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
        """Give a worker its lease, and let every job wait no longer for the tasks it knows.

        Atomic: holds ``UNKNOWN_TASK`` whose cause is one of its tasks are lifted in the same step,
        keeping their tickets.
        Idempotent: joining again changes what is known of the worker, not its beat.
        """

    @abstractmethod
    async def leave(self, worker: str) -> None:
        """Give the lease back. What the worker still holds is rescued by the next ``rescue``.

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

        Atomic: the whole turn, in this order: mark what has ``begun``; settle each outcome inside
        the fence (see ``penstock.core.lifecycle.settled``); expire and promote what is due, at most
        ``PROMOTE_BATCH`` of each; place what waits unplaced; claim. A queue that is paused, or
        whose ``max_running`` attempts run, gives nothing; counting and claiming cannot be overtaken
        by another claimer.
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

    @abstractmethod
    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        """Store how far attempts have come; one verdict each. Idempotent.

        On failure: reports from outside the fence are *stale* and change nothing.
        """

    @abstractmethod
    async def look(self, ask: Ask) -> float | None:
        """Say in how many seconds ``exchange(ask)`` could give something; 0: now; None: unknown.

        Only reads. Says 0 exactly if a job could be claimed or placed now (``want`` > 0), or a
        cancellation waits that is not among ``told``. What falls due later may be less urgent than
        ``least_urgent``: then a worker that wakes for it finds nothing.
        """

    async def wait(self, ask: Ask, timeout: float) -> None:
        """Sleep until ``exchange(ask)`` could give something, at most ``timeout`` seconds.

        Law 11: the version is read before the look, so a commit between look and sleep is seen.
        """
        deadline = self.clock.monotonic() + timeout
        while (left := deadline - self.clock.monotonic()) > 0:
            seen = await self.version()
            due_in = await self.look(ask)
            if due_in is not None and due_in <= 0:
                return
            await self.listen(seen, left if due_in is None else min(left, due_in))

    # --- control -------------------------------------------------------------------------------

    @abstractmethod
    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        """Cancel waiting jobs; ask running ones to end (their worker learns it by ``exchange``).

        Atomic per job. Idempotent: a job that has ended, or was asked already, is not changed.
        """

    @abstractmethod
    async def retry(self, ids: Sequence[str]) -> list[Control]:
        """Send failed or cancelled jobs back to ready, with a new ticket and no failures.

        Atomic per job. Jobs in any other state are not changed. A job whose unique key another
        one has is not changed, and ``owner`` names that one.
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

        Atomic: a queue that stops being fair loses its places and its ``UNPLACED`` holds at once.
        """

    @abstractmethod
    async def queues(self) -> dict[str, QueueSettings]:
        """Return every queue that has a setting or a job, with its settings."""

    # --- upkeep --------------------------------------------------------------------------------

    @abstractmethod
    async def promote(self, limit: int) -> Promoted:
        """Expire and promote what is due, at most ``limit`` of each, the earliest first.

        Idempotent. Jobs enter ready in the order of their instants, then of their tickets.
        """

    @abstractmethod
    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        """Take up to ``limit`` running jobs from workers that have no lease; return them as they
        are now.

        Atomic: each worker in ``dead`` whose beat is still the one seen loses its lease; then every
        running job without a live lease is treated by ``penstock.core.lifecycle.rescued``. A job
        that would wait again needs its unique key again (law 13).
        Idempotent; call again until it returns nothing.
        """

    @abstractmethod
    async def prune(self, keep: float, limit: int) -> Pruned:
        """Delete up to ``limit`` jobs that ended more than ``keep`` seconds ago, and likewise ids
        and unique keys whose time is over. Idempotent.

        An engine that keeps what ended by the day may let a day with many jobs go as a whole: when
        all of it is old, so up to a day later, and then beyond ``limit`` and counted roughly.
        """

    @abstractmethod
    async def mend(self, *, rehearse: bool = False) -> Mended:
        """Repair what a lost step may have left: jobs unplaced, holds without a cause, unique keys
        of jobs that have ended. Idempotent; on a healthy store it finds nothing.

        With ``rehearse``, only say what would be repaired, and change nothing.
        """

    @abstractmethod
    async def tidy(self) -> float:
        """Clear away what jobs that moved on have left, where the store would do so too late by
        itself; return in how many seconds to come again. No verb sees a difference. Idempotent.
        """

    # --- lead ----------------------------------------------------------------------------------

    @abstractmethod
    async def lead(self, candidate: str, ttl: float) -> Leadership:
        """Take the leadership if it is free, renew it if ``candidate`` has it; say whether it has,
        and what every worker's beat is.

        Atomic. The epoch grows with each new term; a renewal keeps it. A clock that goes back makes
        no term longer than ``ttl`` from the next candidate on. It succeeds only if a write could:
        beats are writes, and a store that can only be read for a while (a locked file) must not
        look like dead workers.
        """

    @abstractmethod
    async def resign(self, holder: str, epoch: int) -> None:
        """End this very term now, so that the next leader need not wait. Idempotent."""

    @abstractmethod
    async def leader(self) -> Term | None:
        """Return the present term, from any process; None if there is no leader."""

    # --- small values --------------------------------------------------------------------------

    @abstractmethod
    async def cell(self, name: str) -> Cell:
        """Return a named value and its version; ``Cell(None, 0)`` if it was never written."""

    @abstractmethod
    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        """Write a named value if its version is still ``version``; None: another write was faster.

        Atomic. The version grows by one with each write, also when the value is None.
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
    async def count(self, which: Filter) -> int:
        """Return how many jobs fit."""

    @abstractmethod
    async def counts(self) -> list[Count]:
        """Return how many jobs there are per queue, state and hold."""

    @abstractmethod
    async def glance(self, window: float, limit: int) -> Glance:
        """Return how the store does now, for a screen that asks again and again.

        Costs by what waits, runs or has failed, and by what came or ended within the last
        ``window`` seconds; jobs that ended well before cost nothing, however many they are.
        Atomic: all of it is from one instant.
        Order: of up to ``limit`` running jobs those that were claimed first, of up to ``limit``
        failed ones the latest; workers as in ``workers``.
        """

    @abstractmethod
    async def workers(self) -> list[WorkerInfo]:
        """Return every worker that has a lease. Order: who joined first, then by id."""

    @abstractmethod
    async def hands(self) -> list[Hand]:
        """Return what workers have, with a lease or without, one entry per worker, queue, task and
        priority. Order: by these. Its cost grows with what runs, not with what waits.
        """

    @abstractmethod
    async def line(self, id: str) -> Standing:
        """Say where a job stands: how many come before it, and who blocks it.

        Atomic: all of it is from one snapshot. A job that is ready and has no hold is in line, and
        those before it are counted by law 9, without what has expired, at most ``LINE_LIMIT`` + 1.
        The keys and the blockers that are named are at most ``SOME``: keys by their number of jobs,
        blockers in contract order. In an ordered queue only the open jobs before it block an
        open one.
        """

    async def results(self, ids: Sequence[str], timeout: float) -> dict[str, Job | None]:
        """Wait until one of these jobs has ended or is gone (None), at most ``timeout`` seconds.

        Returns all that have; empty after a time-out.
        """
        deadline = self.clock.monotonic() + timeout
        while True:
            seen = await self.version()
            jobs = dict(zip(ids, await self.get(ids), strict=True))
            ended = {id: job for id, job in jobs.items() if job is None or job.state.is_final}
            left = deadline - self.clock.monotonic()
            if ended or left <= 0:
                return ended
            await self.listen(seen, left)

    @abstractmethod
    async def version(self) -> int:
        """Return a number that this handle sees change after any commit to the store.

        A beat and a renewed term need not count.
        """

    @abstractmethod
    async def listen(self, seen: int, timeout: float) -> int:
        """Sleep until the version is no longer ``seen``, at most ``timeout`` seconds; return it.

        May return early. Never misses a commit that happened after ``seen`` was read.
        """
