"""Where a claimer has found each line to begin, so that it does not walk what is dead before it.

A job that was claimed leaves an entry in the index until a vacuum removes it, and a vacuum waits
for the oldest transaction of the whole server. So whoever claimed up to a ticket begins after it
the next time, per queue and priority. What may stand before a bound is found by *sweeps*, which
begin at the start: when the line seems to end, at least every second, and as soon as somebody says
that a job became ready with an old ticket (``penstock.lowered``). The line seems to end all the
time while workers keep up with what comes, so that sweeps which cost something are made seldom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.core.job import Job
from penstock.engines.records import ANY_PRIORITY

SWEEP: Final = 1.0
"""Seconds after which a line is looked at from its start."""
SHARE: Final = 10
"""How many times its own duration there is no second sweep."""
REST: Final = 30.0
"""Seconds after which there is one, whatever it costs."""
FEW: Final = 2_000
"""Claimed jobs that leave nothing to walk worth mentioning."""
MOST: Final = 8
"""Bounds that are kept of one queue; more priorities than that share the last ones' ranges."""
FIRST: Final = -(1 << 63)


class Ticket(NamedTuple):
    """A place in line after which to begin."""

    place: float
    seq: int


class Ranges(NamedTuple):
    """The parts of the lines to look at, as ``penstock.exchange`` takes them: arrays of queue, from
    priority, place and seq, to priority; which state of ``penstock.lowered`` they rely on; and
    whether all of every line is to be looked at if they give less than is wanted.
    """

    arrays: tuple[str, ...]
    lowered: int
    sweeps: bool
    is_whole: bool
    """They are all of every line."""


RANGES: Final = ("range_queue", "from_priority", "from_place", "from_seq", "to_priority")
"""What the arrays of ranges are called."""


class Bounds:
    """The bounds of one claimer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begins: dict[str, dict[int, Ticket]] = {}
        self._swept = float("-inf")
        self._rests_until = float("-inf")
        self._claimed = 0
        self._lowered = -1

    def forget(self) -> None:
        """Begin at the start of every line."""
        self._begins.clear()
        self._swept = self._clock.monotonic()

    def ranges(self, queues: Iterable[str]) -> Ranges:
        """The ranges to look at; all of every line when it is time to sweep."""
        if self._clock.monotonic() - self._swept >= SWEEP and not self.rests:
            self.forget()
        return self._ranges(queues)

    def narrow(self, queues: Iterable[str]) -> Ranges | None:
        """The ranges to look at while there may be no sweep; None: there may be."""
        return self._ranges(queues) if self.rests and self._begins else None

    def known(self, queues: Iterable[str]) -> Ranges:
        """The ranges beyond what was claimed, whether or not it is time to sweep."""
        return self._ranges(queues)

    def raise_to(self, jobs: Sequence[Job]) -> None:
        """These were next in line, beyond the bounds."""
        self.learn(jobs, self._lowered, is_fair=False, swept=None)

    @property
    def rests(self) -> bool:
        """The last sweep was so dear that there is none for a while."""
        return self._claimed > FEW and SystemClock.monotonic() < self._rests_until

    def swept(self, took: float) -> None:
        """A sweep has taken so many seconds."""
        self._rests_until = SystemClock.monotonic() + min(REST, SHARE * took)

    def _ranges(self, queues: Iterable[str]) -> Ranges:
        arrays = _arrays(queues, self._begins)
        is_whole = not self._begins
        return Ranges(arrays, self._lowered, not is_whole and not self.rests, is_whole)

    def learn(
        self, jobs: Sequence[Job], lowered: int, *, is_fair: bool, swept: float | None
    ) -> None:
        """Raise the bounds to what was claimed, unless something was passed over or came back.

        ``swept`` is how many seconds it took to look from the start of the lines, if that was done.
        """
        if swept is not None:
            self.swept(swept)
        if lowered != self._lowered:
            self._lowered = lowered
            self.forget()
        if is_fair:
            self._begins.clear()
            return
        self._claimed += len(jobs)
        last = {(job.queue, job.priority): job for job in jobs}
        for (queue, priority), job in last.items():
            begins = self._begins.setdefault(queue, {})
            if priority in begins or len(begins) < MOST:
                begins[priority] = Ticket(job.place, job.seq)


def whole(queues: Iterable[str]) -> Ranges:
    """All of every line."""
    return Ranges(_arrays(queues, {}), -1, False, True)


def _arrays(queues: Iterable[str], begins: Mapping[str, dict[int, Ticket]]) -> tuple[str, ...]:
    parts: list[tuple[object, ...]] = []
    for number, queue in enumerate(queues, 1):
        # Everything up to a priority, then that priority from its bound on, and so forth.
        after: tuple[object, ...] = (FIRST, "-Infinity", FIRST)
        for priority, ticket in sorted(begins.get(queue, {}).items()):
            if priority > FIRST:
                parts.append((number, *after, priority - 1))
            parts.append((number, priority, *ticket, priority))
            after = (priority, "Infinity", ANY_PRIORITY)
        parts.append((number, *after, ANY_PRIORITY))
    columns = zip(*parts, strict=True) if parts else ((),) * len(RANGES)
    return tuple(["{" + ",".join(map(str, column)) + "}" for column in columns])
