"""Where a claimer has found each line to begin, so that it does not walk what is dead before it.

A job that was claimed leaves an entry in the index until a vacuum removes it, and a vacuum waits
for the oldest transaction of the whole server. So whoever claimed up to a ticket begins after it
the next time, per queue and priority. What may stand before a bound is found by *sweeps*, which
begin at the start: when the line seems to end, at least every second, and as soon as somebody says
that a job became ready with an old ticket (``penstock.lowered``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.clock import Clock
from penstock.core.job import Job
from penstock.engines.records import ANY_PRIORITY

SWEEP: Final = 1.0
"""Seconds after which a line is looked at from its start."""
MOST: Final = 8
"""Bounds that are kept of one queue; more priorities than that share the last ones' ranges."""
FIRST: Final = -(1 << 63)


class Ticket(NamedTuple):
    """A place in line after which to begin."""

    place: float
    seq: int


class Ranges(NamedTuple):
    """The parts of the lines to look at, as ``penstock.exchange`` takes them: arrays of queue, from
    priority, place and seq, to priority; and which state of ``penstock.lowered`` they rely on.
    """

    arrays: tuple[str, ...]
    lowered: int


class Bounds:
    """The bounds of one claimer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begins: dict[str, dict[int, Ticket]] = {}
        self._swept = float("-inf")
        self._lowered = -1

    def forget(self) -> None:
        """Begin at the start of every line."""
        self._begins.clear()
        self._swept = self._clock.monotonic()

    @property
    def are_known(self) -> bool:
        """The next look may miss what stands before a bound."""
        return bool(self._begins)

    def ranges(self, queues: Iterable[str]) -> Ranges:
        """The ranges to look at; all of every line when it is time to sweep."""
        if self._clock.monotonic() - self._swept >= SWEEP:
            self.forget()
        parts: list[tuple[int, int, float, int, int]] = []
        for number, queue in enumerate(queues, 1):
            # Everything up to a priority, then that priority from its bound on, and so forth.
            after = (FIRST, float("-inf"), FIRST)
            for priority, ticket in sorted(self._begins.get(queue, {}).items()):
                if priority > FIRST:
                    parts.append((number, *after, priority - 1))
                parts.append((number, priority, *ticket, priority))
                after = (priority, float("inf"), ANY_PRIORITY)
            parts.append((number, *after, ANY_PRIORITY))
        columns = zip(*parts, strict=True)
        arrays = ["{" + ",".join(map(_text, column)) + "}" for column in columns]
        return Ranges(tuple(arrays), self._lowered)

    def learn(self, jobs: Iterable[Job], lowered: int, *, is_fair: bool, is_short: bool) -> None:
        """Raise the bounds to what was claimed, unless something was passed over or came back.

        ``is_short`` says that the lines gave less than was wanted: then they end here, and there is
        nothing to save by remembering where they begin.
        """
        if lowered != self._lowered:
            self._lowered = lowered
            self.forget()
        if is_short or is_fair:
            self._begins.clear()
            return
        for job in jobs:
            begins = self._begins.setdefault(job.queue, {})
            if job.priority in begins or len(begins) < MOST:
                begins[job.priority] = Ticket(job.place, job.seq)


def _text(value: float) -> str:
    """A number as PostgreSQL reads it in an array."""
    return {"inf": "Infinity", "-inf": "-Infinity"}.get(text := repr(value), text)
