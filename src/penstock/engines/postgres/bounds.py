"""Where a claimer has found each line to begin, so that it does not walk what is dead before it.

A job that was claimed leaves an entry in the index until a vacuum removes it, and a vacuum waits
for the oldest transaction of the whole server. So whoever claimed up to a ticket begins after it
the next time, per queue and priority. What may stand before a bound is found by *sweeps*, which
begin at the start: when the line seems to end, at least every second, and as soon as somebody says
that a job became ready with an old ticket (``penstock.lowered``). The line seems to end all the
time while workers keep up with what comes, so that sweeps which cost something are made seldom.
Where they do, *floors* are sought, and most sweeps begin there (see ``floors``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.core.job import Job
from penstock.engines.postgres.floors import FIRST, Floors, Line, Question
from penstock.engines.postgres.rows import Row
from penstock.engines.records import ANY_PRIORITY

SWEEP: Final = 1.0
"""Seconds after which a line is looked at from its start."""
SHARE: Final = 10
"""How many times its own duration there is no second sweep from the start."""
REST: Final = 30.0
"""Seconds after which there is one, whatever it costs."""
FLOOR_SHARE: Final = 50
"""The same for sweeps from floors."""
SAFE_SHARE: Final = 100
"""The same for sweeps from the start where there are floors: they should find nothing."""
SAFE_REST: Final = 300.0
"""Seconds after which there is one there, whatever it costs."""
FEW: Final = 2_000
"""Claimed jobs that leave nothing to walk worth mentioning."""
MOST: Final = 8
"""Bounds that are kept of one queue; more priorities than that share the last ones' ranges."""


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
    """They are all of every line, or all from its floor."""
    floors: str
    """Where each of them begins for a sweep: an array of seqs."""
    has_floors: bool
    """A sweep begins at floors."""


RANGES: Final = ("range_queue", "from_priority", "from_place", "from_seq", "to_priority")
"""What the arrays of ranges are called."""


class Bounds:
    """The bounds of one claimer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begins: dict[str, dict[int, Ticket]] = {}
        self._swept = float("-inf")
        self._swept_whole = (float("-inf"), 0.0)
        """When all of every line was looked at last, and how long that took."""
        self._floor_rests_until = float("-inf")
        self._claimed = 0
        self._lowered = -1
        self.floors = Floors()

    def forget(self) -> None:
        """Begin at the start of every line."""
        self._begins.clear()
        self._swept = self._clock.monotonic()

    def look_again(self) -> None:
        """Something was found that may stand before a bound."""
        if self.rests and self.floors:
            self._begins = self._from_floors()
        else:
            self.forget()

    def renew(self) -> None:
        """Be as new: nobody knows which store answers now."""
        self.forget()
        self.floors.forget()
        self._swept_whole = (float("-inf"), 0.0)
        self._floor_rests_until = float("-inf")

    def ranges(self, queues: Iterable[str]) -> Ranges:
        """The ranges to look at; all of every line, or all from its floor, when it is time."""
        if self._clock.monotonic() - self._swept >= SWEEP:
            if not self.rests:
                self.forget()
            elif self._may_sweep_from_floors:
                self._begins = self._from_floors()
                self._swept = self._clock.monotonic()
                return self._ranges(queues)._replace(sweeps=False, is_whole=True, has_floors=True)
        return self._ranges(queues)

    def narrow(self, queues: Iterable[str]) -> Ranges | None:
        """The ranges to look at while there may be no sweep from the start; None: there may be."""
        if not self.rests or not self._begins:
            return None
        if not self._may_sweep_from_floors:
            return self._ranges(queues)
        arrays, floors = _arrays(queues, self._from_floors(), None)
        return Ranges(arrays, self._lowered, False, True, floors, True)

    def learn_floors(self, question: Question, answer: Row) -> None:
        """Raise the floors to what the store says; nobody need begin before one."""
        self.floors.learn(question, answer)
        for queue, priority in question.lines:
            begins = self._begins.get(queue, {})
            floor, bound = self.floors[queue, priority], begins.get(priority)
            if bound is not None and bound.place == 0 and bound.seq < floor:
                begins[priority] = Ticket(0.0, floor)

    def lines(self, queues: Iterable[str]) -> list[Line]:
        """Those that this claimer has bounds in."""
        return [
            (queue, priority)
            for queue in queues
            for priority, ticket in self._begins.get(queue, {}).items()
            if ticket.place == 0
        ]

    @property
    def rests(self) -> bool:
        """The last sweep from the start was so dear that there is none for a while. Without floors
        that is not for long.
        """
        at, took = self._swept_whole
        share, most = (SAFE_SHARE, SAFE_REST) if self.floors else (SHARE, REST)
        return self._claimed > FEW and SystemClock.monotonic() < at + min(most, share * took)

    @property
    def _may_sweep_from_floors(self) -> bool:
        return bool(self.floors) and SystemClock.monotonic() >= self._floor_rests_until

    def swept(self, took: float, *, has_floors: bool = False) -> None:
        """A sweep has taken so many seconds."""
        now = SystemClock.monotonic()
        if has_floors:
            self._floor_rests_until = now + min(REST, FLOOR_SHARE * took)
            return
        self._swept_whole = now, took
        self.floors.judge(took)

    def _from_floors(self) -> dict[str, dict[int, Ticket]]:
        """Where sweeps begin; a line that has no floor is looked at as a whole."""
        return {
            queue: {
                priority: Ticket(0.0, floor)
                for priority in begins
                if (floor := self.floors[queue, priority]) > FIRST
            }
            for queue, begins in self._begins.items()
        }

    def _ranges(self, queues: Iterable[str]) -> Ranges:
        has_floors = self.rests and self._may_sweep_from_floors
        arrays, floors = _arrays(queues, self._begins, self.floors if has_floors else None)
        is_whole = not self._begins
        sweeps = not is_whole and (has_floors or not self.rests)
        return Ranges(arrays, self._lowered, sweeps, is_whole, floors, has_floors)

    def learn(
        self,
        jobs: Sequence[Job],
        lowered: int,
        *,
        is_fair: bool,
        swept: float | None,
        has_floors: bool = False,
    ) -> None:
        """Raise the bounds to what was claimed, unless something was passed over or came back.

        ``swept`` is how many seconds it took to look from the start of the lines, or from their
        floors, if that was done.
        """
        if swept is not None:
            # What is ready again with an old ticket was looked for from the start.
            self.swept(swept, has_floors=has_floors and lowered == self._lowered)
        if lowered != self._lowered:
            self._lowered = lowered
            self.forget()
            self.floors.forget()
        if is_fair:
            self._begins.clear()
            self.floors.forget()
            return
        self._claimed += len(jobs)
        last = {(job.queue, job.priority): job for job in jobs}
        for (queue, priority), job in last.items():
            begins = self._begins.setdefault(queue, {})
            if priority in begins or len(begins) < MOST:
                begins[priority] = Ticket(job.place, job.seq)


def whole(queues: Iterable[str]) -> Ranges:
    """All of every line."""
    arrays, floors = _arrays(queues, {}, None)
    return Ranges(arrays, -1, False, True, floors, False)


def _arrays(
    queues: Iterable[str], begins: Mapping[str, dict[int, Ticket]], known: Floors | None
) -> tuple[tuple[str, ...], str]:
    """The ranges, and where a sweep begins in each of them."""
    parts: list[tuple[object, ...]] = []
    floors: list[int] = []
    for number, queue in enumerate(queues, 1):
        # Everything up to a priority, then that priority from its bound on, and so forth.
        after: tuple[object, ...] = (FIRST, "-Infinity", FIRST)
        for priority, ticket in sorted(begins.get(queue, {}).items()):
            if priority > FIRST:
                parts.append((number, *after, priority - 1))
                floors.append(FIRST)
            parts.append((number, priority, *ticket, priority))
            floors.append(FIRST if known is None or ticket.place else known[queue, priority])
            after = (priority, "Infinity", ANY_PRIORITY)
        parts.append((number, *after, ANY_PRIORITY))
        floors.append(FIRST)
    columns = zip(*parts, strict=True) if parts else ((),) * len(RANGES)
    return tuple(map(_array, columns)), _array(floors)


def _array(values: Iterable[object]) -> str:
    return "{" + ",".join(map(str, values)) + "}"
