"""The observer: which workers are dead, proven by watching, never guessed from a clock (law 4).

A beat is a counter. A worker is dead only if its beat stood still for a whole lease during which
the observer itself reached the store without a gap, by the observer's own monotonic clock. The
observer's start, a look that failed and a look that came too late are gaps: whatever kept us from
the store may have kept the workers from it too. So is a look beside which no beat of our own worker
has reached the store for a while: a store that can only be read (a locked file, a full disk) must
not look like dead workers. After a gap every worker gets a fresh lease.

A look is an interval: it was asked, then answered, and what it saw was true somewhere in between.
The stillness that is proven reaches from the *answer* of the first look that saw a beat to the
*question* of the last one that saw the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.engines.records import Sighting


@dataclass(frozen=True, slots=True)
class _Still:
    """A beat, and since when it surely was this one."""

    beat: int
    since: float


class Observer:
    """Remembers what it saw. Pure: it is told what was seen and when."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._longest_gap = lease / 3
        self._seen: dict[str, _Still] = {}
        self._last: float | None = None

    def missed(self) -> None:
        """A look failed: nothing before it proves anything."""
        self._last = None

    def saw(
        self, asked: float, answered: float, beats: Sequence[Sighting], wrote_at: float
    ) -> list[Sighting]:
        """Every worker with a lease was seen, between two monotonic instants; return which are
        dead now. ``wrote_at`` is when our own last beat was sent that has reached the store.
        """
        if self._last is None or answered - self._last > self._longest_gap:
            self._seen.clear()
        # A look beside which nothing could be written is a gap, and proves nothing for the next.
        self._last = answered if answered - wrote_at <= self._longest_gap else None
        if self._last is None:
            self._seen.clear()
        self._seen = {each.worker: self._still(each, answered) for each in beats}
        return [
            Sighting(id, still.beat)
            for id, still in self._seen.items()
            if asked - still.since >= self._lease
        ]

    def _still(self, seen: Sighting, answered: float) -> _Still:
        known = self._seen.get(seen.worker)
        if known is not None and known.beat == seen.beat:
            return known
        return _Still(seen.beat, answered)

    def silent(self, worker: str, now: float) -> float:
        """Seconds for which the beat of a worker has stood still at least, if it does until now."""
        return now - self._seen[worker].since

    @property
    def living(self) -> frozenset[str]:
        """The workers of the last look."""
        return frozenset(self._seen)
