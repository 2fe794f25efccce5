"""The observer: who is dead, proven by watching, never guessed from a clock (law 4).

A beat is a counter. A worker is dead only if its beat stood still for a whole lease during which
the observer itself reached the store without a gap, by the observer's own monotonic clock. The
observer's start, a look that failed and a look that came too late are gaps: whatever kept us from
the store may have kept the workers from it too. After a gap everybody gets a fresh lease.

A look is an interval: it was asked, then answered, and what it saw was true somewhere in between.
The stillness that is proven reaches from the *answer* of the first look that saw a beat to the
*question* of the last one that saw the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.engines.records import Sighting, WorkerInfo


@dataclass(frozen=True, slots=True)
class WorkersSeen:
    """What was seen in the store: every worker with a lease, between two monotonic instants."""

    asked: float
    answered: float
    workers: tuple[WorkerInfo, ...]


@dataclass(frozen=True, slots=True)
class _Still:
    """A beat, and since when it surely was this one."""

    beat: int
    since: float


class Observer:
    """Remembers what it saw. Pure: it is told what was seen and when."""

    def __init__(self, lease: float, longest_gap: float | None = None) -> None:
        self._lease = lease
        self._longest_gap = lease / 3 if longest_gap is None else longest_gap
        self._seen: dict[str, _Still] = {}
        self._last: float | None = None

    @property
    def look_every(self) -> float:
        """Seconds between two looks, well inside of what counts as a gap."""
        return self._longest_gap * 0.6

    def missed(self) -> None:
        """A look failed: nothing before it proves anything."""
        self._last = None

    def saw(self, look: WorkersSeen) -> list[Sighting]:
        """Take a look into account; return who is dead now."""
        if self._last is None or look.answered - self._last > self._longest_gap:
            self._seen.clear()
        self._last = look.answered
        self._seen = {worker.id: self._still(worker, look) for worker in look.workers}
        return [
            Sighting(id, still.beat)
            for id, still in self._seen.items()
            if look.asked - still.since >= self._lease
        ]

    def _still(self, worker: WorkerInfo, look: WorkersSeen) -> _Still:
        known = self._seen.get(worker.id)
        if known is not None and known.beat == worker.beat:
            return known
        return _Still(worker.beat, look.answered)

    @property
    def living(self) -> frozenset[str]:
        """The workers of the last look."""
        return frozenset(self._seen)
