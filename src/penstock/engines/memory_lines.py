"""Lines of waiting jobs in memory: heaps that forget lazily.

An entry is only a hint. Whoever reads one checks it against the job itself, so that leaving a line
costs nothing and a job can never be handed out from an old place. Entries that were looked at stay
in order at the front, so that most are taken out of a heap only once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Generic, TypeVar

from penstock.core.job import Job

Key = TypeVar("Key", bound=tuple[float, ...])


class Line(Generic[Key]):
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

        Behind the first job that is not within nobody is looked at.
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
        """Go down the line in order; afterwards everybody stands where they stood."""
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
