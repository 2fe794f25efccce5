"""Up to which ticket nothing in a line can be claimed any more: where sweeps need not begin before.

While a transaction somewhere keeps vacuums from cleaning up, every job that ended stays in the
claim index, and to look at a line from its start takes longer and longer. But what may still become
ready there is little: whoever stores a job takes its ticket first, and it is seen when its
transaction ends. So a claimer notes a ticket, and who has written to the store and is not done
(``penstock.floors``). When all of those are gone, every job up to that ticket is to be seen, and a
floor is right before the first that is ready.

A job that is ready again with an old ticket is told of by ``penstock.lowered``: then there are no
floors any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from penstock.clock import SystemClock
from penstock.engines.postgres.rows import Row

DEAR: Final = 0.005
"""Seconds that a look at whole lines may take without floors being sought."""
PACE: Final = 0.25
"""Seconds between two notes."""
FIRST: Final = -(1 << 63)

Line = tuple[str, int]
"""A queue and a priority."""


class Mark(NamedTuple):
    """A ticket, and who may have an older one and is not done."""

    ticket: int | None
    open: frozenset[str]


_NONE: Final = Mark(None, frozenset())


class Question(NamedTuple):
    """What the store is asked, and since when nothing was forgotten."""

    lines: Sequence[Line]
    values: Row
    mark: Mark
    age: int


class Floors:
    """The floors of one claimer's lines."""

    def __init__(self) -> None:
        self._seqs: dict[Line, int] = {}
        self._mark = _NONE
        self._marked_at = -inf
        self._is_sought = False
        self._age = 0

    def __bool__(self) -> bool:
        """Some are known."""
        return bool(self._seqs)

    def __getitem__(self, line: Line) -> int:
        """The ticket after which to begin: the first of all if nothing is known."""
        return self._seqs.get(line, FIRST)

    def forget(self) -> None:
        """A job with an old ticket may be ready."""
        self._seqs.clear()
        self._mark = _NONE
        self._age += 1

    def judge(self, took: float) -> None:
        """To look at whole lines took so many seconds."""
        self._is_sought = took >= DEAR
        if not self._is_sought:
            self.forget()

    @property
    def is_time(self) -> bool:
        """The store is to be asked."""
        return self._is_sought and SystemClock.monotonic() - self._marked_at >= PACE

    def question(self, lines: Sequence[Line]) -> Question:
        """What to ask for these lines, as ``penstock.floors`` takes it."""
        self._marked_at = SystemClock.monotonic()
        queues, priorities = [queue for queue, _ in lines], [priority for _, priority in lines]
        seqs = [self[line] for line in lines]
        values = (queues, priorities, seqs, self._mark.ticket, sorted(self._mark.open))
        return Question(lines, values, self._mark, self._age)

    def learn(self, question: Question, answer: Row) -> None:
        """Raise the floors. An answer that comes after something was forgotten, or after another
        one, says nothing.
        """
        if question.age != self._age or question.mark is not self._mark:
            return
        ticket, still_open, seqs = answer
        if seqs is None and self._mark.ticket is not None:
            self._mark = Mark(self._mark.ticket, self._mark.open & frozenset(still_open))
            return
        self._mark = Mark(ticket, frozenset(still_open))
        self._seqs.update(zip(question.lines, seqs or (), strict=seqs is not None))
