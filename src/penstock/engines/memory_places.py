"""Places in the fair queues of a memory store (law 8)."""

from __future__ import annotations

from penstock.core import fairness
from penstock.core.job import Job


class MemoryPlaces:
    """The virtual time of each lane, and where each key's next job stands."""

    def __init__(self) -> None:
        self._virtual_time: dict[tuple[str, int], float] = {}
        self._next_place: dict[tuple[str, int, str], float] = {}

    def give(self, job: Job, weight: float) -> float:
        """Return the place of a job that has none yet."""
        spot = (job.queue, job.priority, job.key or "")
        virtual_time = self._virtual_time.get(spot[:2], 0.0)
        place = fairness.place(virtual_time, self._next_place.get(spot))
        self._next_place[spot] = fairness.following(place, weight)
        return place

    def advance(self, job: Job) -> None:
        """Move virtual time on to a place that was claimed; it never goes back."""
        lane = (job.queue, job.priority)
        self._virtual_time[lane] = max(self._virtual_time.get(lane, 0.0), job.place)

    def forget(self, queue: str) -> None:
        """The queue is no longer fair: places mean nothing."""
        for lane in [lane for lane in self._virtual_time if lane[0] == queue]:
            del self._virtual_time[lane]
        for spot in [spot for spot in self._next_place if spot[0] == queue]:
            del self._next_place[spot]

    def prune(self) -> None:
        """Forget places that say nothing more."""
        for spot, next_place in list(self._next_place.items()):
            if next_place <= self._virtual_time.get(spot[:2], 0.0):
                del self._next_place[spot]
