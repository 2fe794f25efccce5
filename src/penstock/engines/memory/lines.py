"""What a memory store keeps in order: lines of waiting jobs, and unique keys.

A line is a heap that forgets lazily. An entry is only a hint: a reader checks it against the job
itself, so that leaving a line costs nothing and a job can never be handed out from an old place.
Entries that were looked at stay in order at the front, so that most are taken out of a heap only
once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from penstock.core.job import Job

Key = TypeVar("Key", bound=tuple[float | str, ...])


class JobLine(Generic[Key]):
    """Jobs in the order of a key; ``key`` says None for a job that does not belong here."""

    def __init__(self, key: Callable[[Job], Key | None], get: Callable[[str], Job | None]) -> None:
        self._key = key
        self._get = get
        self._heap: list[tuple[Key, str]] = []
        self._front: deque[tuple[Key, str]] = deque()
        """Entries in order; what has come since and belongs before one of them is in the heap."""

    def add(self, job: Job) -> None:
        """Let a job stand in line if it belongs here."""
        key = self._key(job)
        if key is not None:
            heappush(self._heap, (key, job.id))

    def first(self) -> Job | None:
        """Return the first job without taking it."""
        front, heap = self._front, self._heap
        while front or heap:
            is_front = bool(front) and (not heap or front[0] <= heap[0])
            key, id = front[0] if is_front else heap[0]
            job = self._get(id)
            if job is not None and self._key(job) == key:
                return job
            self._pop()
        return None

    def _pop(self) -> tuple[Key, str]:
        front, heap = self._front, self._heap
        if front and (not heap or front[0] <= heap[0]):
            return front.popleft()
        return heappop(heap)

    def heads(
        self,
        count: int,
        fits: Callable[[Job], bool],
        is_within: Callable[[Job], bool] | None = None,
    ) -> list[Job]:
        """Return the first ``count`` jobs that fit, leaving all in line.

        No job behind the first one that is not within is looked at.
        """
        chosen: list[Job] = []
        with self._walk() as jobs:
            while len(chosen) < count and (job := next(jobs, None)) is not None:
                if is_within is not None and not is_within(job):
                    break
                if fits(job):
                    chosen.append(job)
        return chosen

    def leading(self, count: int, fits: Callable[[Job], bool]) -> list[Job]:
        """Return the first jobs up to one that does not fit, at most ``count``."""
        chosen: list[Job] = []
        with self._walk() as jobs:
            while len(chosen) < count and (job := next(jobs, None)) is not None and fits(job):
                chosen.append(job)
        return chosen

    @contextmanager
    def _walk(self) -> Iterator[Iterator[Job]]:
        """Go down the line in order; afterwards every job stands where it stood."""
        seen: list[tuple[Key, str]] = []

        def jobs() -> Iterator[Job]:
            while (job := self.first()) is not None:
                entry = self._pop()
                # An entry stands twice after a job left and came back to the same place.
                if not seen or seen[-1] != entry:
                    seen.append(entry)
                    yield job

        yield jobs()
        self._front.extendleft(reversed(seen))


@dataclass(slots=True)
class _KeyEntry:
    """While ``held`` by its owner's life, and until its window ends, the key is taken."""

    owner: str
    until: float
    held: bool


class UniqueKeys:
    """The unique keys of a store: which job has one, and until when (law 13)."""

    def __init__(self) -> None:
        self._entries: dict[str, _KeyEntry] = {}

    def taken(self, key: str, by: str, now: float) -> str | None:
        """The job that keeps ``by`` from this key, if any."""
        entry = self._entries.get(key)
        if entry is None or entry.owner == by:
            return None
        return entry.owner if entry.held or entry.until > now else None

    def take(self, key: str, owner: str, until: float) -> None:
        """Give a free key to a job, with a window that ends at ``until``."""
        self._entries[key] = _KeyEntry(owner, until, True)

    def hold(self, key: str, owner: str, now: float) -> None:
        """Give a free key back to a job that had it before; its window goes on."""
        entry = self._entries.get(key)
        until = entry.until if entry is not None and entry.owner == owner else now
        self.take(key, owner, until)

    def give_back(self, key: str | None, owner: str, now: float) -> None:
        """The job's life needs the key no longer; its window may."""
        entry = self._entries.get(key) if key is not None else None
        if key is not None and entry is not None and entry.owner == owner:
            entry.held = False
            if entry.until <= now:
                del self._entries[key]

    def held(self) -> Iterator[tuple[str, str]]:
        """Every key that a job's life holds, with its owner."""
        return ((key, entry.owner) for key, entry in self._entries.items() if entry.held)

    def prune(self, limit: int, now: float) -> int:
        """Forget keys that nothing holds any more."""
        free = [
            key for key, entry in self._entries.items() if not entry.held and entry.until <= now
        ][:limit]
        for key in free:
            del self._entries[key]
        return len(free)
