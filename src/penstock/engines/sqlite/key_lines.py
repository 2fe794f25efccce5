"""The key lines of an SQLite store: which key of a queue is next (see ``core.fairness``).

A job that could start in a queue whose keys take turns is labelled with its line, and every step
that may make a line active or idle leaves a note, in the same transaction. A claim reads the notes
first. So enqueuing never touches the places, and a claim reads no more lines than it takes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from heapq import heappop, heappush
from typing import Final

from penstock.core import fairness
from penstock.core.job import Job, State
from penstock.engines.records import QueueSettings
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.rows import Candidate, QueueHead, Row, json_names

NOTES: Final = 500
"""Key lines that one claim looks at before it chooses, at most."""

NO_LIMIT: Final = 1 << 31

Line = tuple[str, int, str]
"""Queue, priority and key of a line; "" is no key."""


class KeyShares:
    """What the keys of one queue may have, at one moment of a transaction."""

    def __init__(self, tx: SqliteTransaction, queue: str, settings: QueueSettings) -> None:
        self._queue = queue
        self._tx = tx
        self._settings = settings

    def stride(self, key: str) -> int:
        """How far the line of a key moves on with each job."""
        return self._settings.stride(key)

    def room(self, key: str) -> int:
        """How many more jobs of a key may run; those without a key are not counted."""
        most = self._settings.max_running_per_key
        return NO_LIMIT if most is None or not key else most - self._running.get(key, 0)

    @cached_property
    def _running(self) -> dict[str, int]:
        return dict(self._tx.all("running_keys", (self._queue,)))


def shares(tx: SqliteTransaction, queue: str) -> KeyShares | None:
    """What the keys of a queue may have, if they take turns; None: they do not."""
    settings = tx.settings.get(queue)
    return KeyShares(tx, queue, settings) if settings is not None and settings.is_keyed else None


def line_of(tx: SqliteTransaction, queue: str, key: str | None) -> str | None:
    """The label of a job that could start in this queue; None: its keys take no turns."""
    settings = tx.settings.get(queue)
    return (key or "") if settings is not None and settings.is_keyed else None


# --- notes --------------------------------------------------------------------------------------


def note(tx: SqliteTransaction, lines: Iterable[Line]) -> None:
    """These lines may have become active, or idle."""
    tx.run_many("note", lines)


def note_change(tx: SqliteTransaction, before: Job | None, after: Job) -> None:
    """A job is written that was not there before, or was like this."""
    lines: set[Line] = set()
    for job in (before, after):
        if job is not None and job.state is State.READY and job.hold is None:
            line = line_of(tx, job.queue, job.key)
            if line is not None:
                lines.add((job.queue, job.priority, line))
    if lines:
        note(tx, lines)
    if before is not None and before.state is State.RUNNING and _has_limit(tx, before.queue):
        tx.run("note_key", (before.queue, before.key))


def note_ends(tx: SqliteTransaction, ids: Sequence[str]) -> None:
    """These jobs are about to run no more: where keys are limited, others may start."""
    if ids and any(_has_limit(tx, queue) for queue in tx.settings):
        tx.run("note_ends", (json_names(ids),))


def _has_limit(tx: SqliteTransaction, queue: str) -> bool:
    return queue in tx.settings and tx.settings[queue].max_running_per_key is not None


def has_notes(tx: SqliteTransaction, queue: str) -> bool:
    """There are lines to be looked at."""
    return tx.one("has_notes", (queue,)) is not None


def read_notes(tx: SqliteTransaction, queue: str) -> None:
    """See which of the lines that have notes are active now, of at most ``NOTES``."""
    keys = shares(tx, queue)
    found = tx.all("notes", {"queue": queue, "limit": NOTES})
    if keys is None or not found:
        return
    entering: list[tuple[int, str, int, int]] = []
    resting: list[tuple[str, str, int]] = []
    for priority, key, place, is_active, first in found:
        is_able = first is not None and keys.room(key) > 0
        if is_able and not is_active:
            entering.append((priority, key, place or 0, first))
        elif not is_able and (is_active or first is not None):
            resting.append((queue, key, priority))
    tx.run_many("rest_line", resting)
    times = {each: virtual_time(tx, queue, each) for each in {line[0] for line in entering}}
    entered = [
        (queue, key, priority, fairness.entry(place, times[priority], keys.stride(key)), first)
        for priority, key, place, first in entering
    ]
    tx.run_many("enter_line", entered)
    tx.run("drop_notes", {"queue": queue, "priority": found[-1][0], "key": found[-1][1]})


def virtual_time(tx: SqliteTransaction, queue: str, priority: int) -> int:
    """Where a line of this queue and priority that becomes active enters at the earliest."""
    first = tx.one("first_place", (queue, priority))
    if first is not None:
        return int(first[0])
    greatest = tx.one("greatest_place", (queue, priority))
    return 0 if greatest is None else int(greatest[0])


# --- claims -------------------------------------------------------------------------------------


def next_jobs(tx: SqliteTransaction, head: QueueHead, keys: KeyShares) -> list[Candidate]:
    """The first jobs of the queue in the order of their lines; nothing is moved on by it."""
    chosen: list[Candidate] = []
    left: dict[str, int] = {}
    merging: list[tuple[int, int, int, str, Iterator[Candidate]]] = []
    with closing(tx.run("active_lines", head)) as lines:
        line = lines.fetchone()
        while len(chosen) < head["want"] and (line is not None or merging):
            if line is not None and (not merging or line[:4] < merging[0][:4]):
                heappush(merging, (*line[:4], _jobs_of(tx, head, line)))
                line = lines.fetchone()
                continue
            priority, place, turn, key, jobs = heappop(merging)
            left.setdefault(key, keys.room(key))
            job = next(jobs, None) if left[key] > 0 else None
            if job is not None:
                left[key] -= 1
                chosen.append(job)
                heappush(merging, (priority, place + keys.stride(key), turn, key, jobs))
    return chosen


def _jobs_of(tx: SqliteTransaction, head: QueueHead, line: Row) -> Iterator[Candidate]:
    """The jobs of one line that the worker could have, in order."""
    priority, _, _, key = line[:4]
    rows, count = [line[4:]], 1
    while True:
        yield from (Candidate(entry, priority, at_most_once) for entry, at_most_once, _ in rows)
        if len(rows) < count:
            return
        count *= 2
        window = {"priority": priority, "key": key, "after": rows[-1][2], "limit": count}
        rows = tx.all("line_head", {**head, **window})


def move_on(tx: SqliteTransaction, claimed: Sequence[Job]) -> None:
    """These jobs were claimed: their lines move on, and where a key is limited, all of its lines
    have to be looked at.
    """
    taken = Counter(
        (job.queue, line, job.priority)
        for job in claimed
        if (line := line_of(tx, job.queue, job.key)) is not None
    )
    strides = [(*line, jobs * tx.settings[line[0]].stride(line[1])) for line, jobs in taken.items()]
    tx.run_many("move_on", strides)
    tx.run_many("note_key", {line[:2] for line in taken if _has_limit(tx, line[0])})
