"""The key lines of fair queues in a memory store: which key is next (see ``core.fairness``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from penstock.core import fairness
from penstock.core.job import Job
from penstock.engines.memory.lines import JobLine

NOTES: Final = 500
"""Key lines that one claim looks at before it chooses, at most."""


Heads = Callable[[JobLine[tuple[int]], int], list[Job]]


class Shares(Protocol):
    """What was decided about the keys of a queue."""

    def stride(self, key: str) -> int:
        """How far a line of this key moves on with each job."""

    def room(self, key: str) -> int:
        """How many more jobs of this key may run."""


class LineKey(NamedTuple):
    """The priority and the key of a key line; "" is no key."""

    priority: int
    key: str


def line_key(job: Job) -> LineKey:
    """The key line that a job belongs to."""
    return LineKey(job.priority, job.key or "")


@dataclass(slots=True)
class KeyLine:
    """One key line of a queue."""

    name: LineKey
    jobs: JobLine[tuple[int]]
    """Those that could start, by their tickets."""
    place: int = 0
    turn: int = 0
    """The ticket of its first job when it became active."""
    is_active: bool = False

    @property
    def order(self) -> tuple[int, int, str]:
        """Among those of its priority."""
        return self.place, self.turn, self.name.key


class KeyLines:
    """The key lines of one queue. They are kept of every queue, so that any may become fair."""

    def __init__(self, new_line: Callable[[], JobLine[tuple[int]]]) -> None:
        self._new_line = new_line
        self._lines: dict[LineKey, KeyLine] = {}
        self._of_key: dict[str, set[LineKey]] = defaultdict(set)
        self._notes: dict[LineKey, None] = {}
        self._next: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        """The active lines of each priority in order; an entry that is not its line's order any
        more says nothing.
        """
        self._greatest: dict[int, int] = defaultdict(int)
        """The greatest place of each priority."""

    # --- notes ---------------------------------------------------------------------------------

    def enter(self, job: Job) -> None:
        """A job that could start stands in its line."""
        name = line_key(job)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = KeyLine(name, self._new_line())
            self._of_key[name.key].add(name)
        line.jobs.add(job)
        self.note(name)

    def note(self, name: LineKey) -> None:
        """The line may have become active, or idle."""
        if name in self._lines:
            self._notes[name] = None

    def note_key(self, key: str) -> None:
        """The lines of a key may have become active: one of its jobs runs no more."""
        self._notes.update(dict.fromkeys(self._of_key.get(key, ())))

    def note_all(self) -> None:
        """What was decided about the queue has changed."""
        self._notes.update(dict.fromkeys(self._lines))

    def lost(self, room: Callable[[str], int]) -> list[LineKey]:
        """Lines that could be active and that no claim would look at."""
        idle = (line for line in self._lines.values() if not line.is_active)
        return [
            line.name
            for line in idle
            if line.name not in self._notes and line.jobs.first() and room(line.name.key) > 0
        ]

    @property
    def has_notes(self) -> bool:
        """There are lines to be looked at."""
        return bool(self._notes)

    def read_notes(self, queue: Shares) -> None:
        """See which of the lines that have notes are active now, of at most ``NOTES``."""
        names = list(self._notes)[:NOTES]
        entering: list[KeyLine] = []
        for name in names:
            del self._notes[name]
            line = self._lines[name]
            first = line.jobs.first()
            is_able = first is not None and queue.room(name.key) > 0
            if first is not None and is_able and not line.is_active:
                line.turn = first.seq
                entering.append(line)
            line.is_active = line.is_active and is_able
        times = {line.name.priority: self._virtual_time(line.name.priority) for line in entering}
        for line in entering:
            stride = queue.stride(line.name.key)
            self._put(line, fairness.entry(line.place, times[line.name.priority], stride))

    # --- claims --------------------------------------------------------------------------------

    def next_jobs(self, count: int, heads: Heads, queue: Shares) -> list[Job]:
        """The first jobs of the queue in the order of their lines; nothing is moved on by it.

        ``heads`` gives the first jobs of a line that the worker could have, at most so many.
        """
        chosen: list[Job] = []
        left: dict[str, int] = {}
        for priority in sorted(self._next):
            merging: list[tuple[int, int, str, list[Job]]] = []
            lines = self._active(priority)
            line = next(lines, None)
            while len(chosen) < count and (line is not None or merging):
                if line is not None and (not merging or line.order <= merging[0][:3]):
                    if jobs := heads(line.jobs, count):
                        heappush(merging, (*line.order, jobs[::-1]))
                    line = next(lines, None)
                    continue
                place, turn, key, jobs = heappop(merging)
                left.setdefault(key, queue.room(key))
                if left[key] > 0:
                    left[key] -= 1
                    chosen.append(jobs.pop())
                    if jobs:
                        heappush(merging, (place + queue.stride(key), turn, key, jobs))
            lines.close()
        return chosen

    def move_on(self, job: Job, queue: Shares) -> None:
        """A job of the queue was claimed; whether its line has another one is looked at next."""
        line = self._lines[line_key(job)]
        self._put(line, line.place + queue.stride(line.name.key))
        self.note_key(line.name.key)

    def prune(self, limit: int) -> None:
        """Forget idle lines whose place says nothing more."""
        idle = (line for line in self._lines.values() if not line.is_active)
        over = [
            line.name
            for line in idle
            if line.jobs.first() is None and line.place <= self._virtual_time(line.name.priority)
        ]
        for name in over[:limit]:
            del self._lines[name]
            self._of_key[name.key].discard(name)
            self._notes.pop(name, None)

    # --- places --------------------------------------------------------------------------------

    def _put(self, line: KeyLine, place: int) -> None:
        line.place, line.is_active = place, True
        priority = line.name.priority
        self._greatest[priority] = max(self._greatest[priority], place)
        heappush(self._next[priority], line.order)

    def _active(self, priority: int) -> Generator[KeyLine]:
        """The active lines of a priority in order; afterwards all are where they were."""
        heap, seen = self._next[priority], set()
        try:
            while heap:
                order = heappop(heap)
                line = self._lines.get(LineKey(priority, order[2]))
                if line is None or not line.is_active or line.order != order or order in seen:
                    continue
                seen.add(order)
                yield line
        finally:
            for order in seen:
                heappush(heap, order)

    def _virtual_time(self, priority: int) -> int:
        lines, greatest = self._active(priority), self._greatest[priority]
        first = next(lines, None)
        lines.close()
        return fairness.virtual_time(None if first is None else first.place, greatest)
