"""Where a claimer has found each line to begin, so that it does not walk what is dead before it.

A job that was claimed leaves an entry in the index until a vacuum removes it, and a vacuum waits
for the oldest transaction of the whole server. So a claimer that has claimed up to a ticket begins
after it the next time, per queue and priority.

What may stand before a bound is a job whose transaction took its ticket early and committed late.
It is found by *sweeps*, which begin at the start of the line: when the line seems to end, before
the worker sleeps, and once a second while neither happens. All of them together take at most a
twentieth of the time. A job that becomes ready with an old ticket is told of in
``penstock.lowered``, and every claimer of its queue looks from the start of that line at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.core.job import Job
from penstock.engines.records import ANY_PRIORITY

SWEEP: Final = 1.0
"""Seconds after which a line is looked at from its start."""
SHARE: Final = 20
"""How many times its own duration there is no second sweep."""
REST: Final = 30.0
"""Seconds after which there is one, whatever it costs."""
_FIRST: Final = -(1 << 63)
FEW: Final = 2_000
"""Claimed jobs that leave nothing to walk worth mentioning."""
MOST: Final = 8
"""Bounds that are kept of one queue; more priorities than that share the last ones' ranges."""

RANGES: Final = ("range_queue", "from_priority", "from_place", "from_seq", "to_priority")
"""What the arrays of ranges are called."""


class Beginning(NamedTuple):
    """Where to begin: after a ticket, or where keys take turns, at the place of a key line."""

    place: int = _FIRST
    seq: int = _FIRST


class Ranges(NamedTuple):
    """The parts of the lines to look at, as ``penstock.exchange`` takes them."""

    arrays: tuple[str, ...]
    """Queue, from priority, place and seq, to priority."""
    lowered: str
    """What ``penstock.lowered_in`` said of each queue when they were found."""
    sweeps: bool
    """All of every line is to be looked at if they give less than is wanted."""
    is_whole: bool
    """They are all of every line."""
    notes: str
    """The last note that was read of each queue."""


class Bounds:
    """The bounds of one claimer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begins: dict[str, dict[int, Beginning]] = {}
        self._swept_at = -inf
        self._rests_until = -inf
        """In real time, as sweeps take it."""
        self._claimed = 0
        self._lowered: dict[str, int] = {}
        self._notes: dict[str, int] = {}

    def forget(self) -> None:
        """Begin at the start of every line."""
        self._begins.clear()
        self._notes.clear()
        self._swept_at = self._clock.monotonic()

    def renew(self) -> None:
        """Know nothing: after a new connection another server may answer."""
        self.forget()
        self._lowered.clear()
        self._rests_until = -inf

    @property
    def rests_for(self) -> float:
        """Seconds for which there is no sweep, since the last one took so long."""
        left = self._rests_until - SystemClock.monotonic()
        return max(0.0, left) if self._claimed > FEW else 0.0

    def ranges(self, queues: Sequence[str]) -> Ranges:
        """The ranges to claim from; all of every line when it is time for a sweep."""
        rests = self.rests_for > 0
        if not rests and self._clock.monotonic() - self._swept_at >= SWEEP:
            self.forget()
        is_whole = not self._begins
        return self._ranges(queues, sweeps=not is_whole and not rests, is_whole=is_whole)

    def _ranges(self, queues: Sequence[str], *, sweeps: bool, is_whole: bool) -> Ranges:
        return Ranges(
            _arrays(queues, self._begins),
            _array(self._lowered.get(queue, 0) for queue in queues),
            sweeps=sweeps,
            is_whole=is_whole,
            notes=_array(self._notes.get(queue, 0) for queue in queues),
        )

    def swept(self, took: float) -> None:
        """A sweep has taken so many seconds."""
        self._rests_until = SystemClock.monotonic() + min(REST, SHARE * took)

    def learn(
        self,
        jobs: Sequence[Job],
        lowered: Mapping[str, int],
        *,
        turns: Turns | None = None,
        swept: float | None = None,
    ) -> None:
        """Raise the bounds to what was claimed; those of queues whose keys take turns, to what
        ``turns`` say. Where a job with an old ticket is ready, ``lowered`` has changed, and there
        is no bound. ``swept`` is how many seconds a sweep took, if there was one.
        """
        if swept is not None:
            self.swept(swept)
        for queue, number in lowered.items():
            if self._lowered.get(queue, 0) != number:
                self._lowered[queue] = number
                self._begins.pop(queue, None)
        self._claimed += len(jobs)
        keyed = () if turns is None else turns.queues
        last = {(job.queue, job.priority): job for job in jobs if job.queue not in keyed}
        for (queue, priority), job in last.items():
            self._begin(queue, priority, Beginning(seq=job.seq))
        if turns is not None:
            self._notes.update(turns.notes)
            for queue, priority, place in turns.places:
                self._begin(queue, priority, Beginning(place=place))

    def _begin(self, queue: str, priority: int, beginning: Beginning) -> None:
        begins = self._begins.setdefault(queue, {})
        if priority in begins or len(begins) < MOST:
            begins[priority] = beginning


class Turns(NamedTuple):
    """What a claim says of queues whose keys take turns."""

    queues: Collection[str]
    notes: Mapping[str, int]
    """The last note that was read of each."""
    places: Sequence[tuple[str, int, int]]
    """Where the first active line of a queue and priority is."""


def _arrays(
    queues: Iterable[str], begins: Mapping[str, Mapping[int, Beginning]]
) -> tuple[str, ...]:
    parts: list[tuple[object, ...]] = []
    for number, queue in enumerate(queues, 1):
        # Everything up to a priority, then that priority from its bound on, and so forth.
        after: tuple[object, ...] = (_FIRST, _FIRST, _FIRST)
        for priority, beginning in sorted(begins.get(queue, {}).items()):
            if priority > _FIRST:
                parts.append((number, *after, priority - 1))
            parts.append((number, priority, *beginning, priority))
            after = (priority, ANY_PRIORITY, ANY_PRIORITY)
        parts.append((number, *after, ANY_PRIORITY))
    columns = zip(*parts, strict=True) if parts else ((),) * len(RANGES)
    return tuple(map(_array, columns))


def _array(values: Iterable[object]) -> str:
    return "{" + ",".join(map(str, values)) + "}"
