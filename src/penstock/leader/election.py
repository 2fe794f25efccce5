"""The election: which process leads, for how long, and when it must stop to believe that it does.

Leadership is a cell of the store whose value, the term (holder, epoch), is over after a ttl. A
candidate that finds no value writes its own, and renews it; each write compares the version that
was read, so of two candidates one wins. Every worker process stands for election; each looks every
third of the ttl, so the loss of a leader is noticed within ttl + ttl/3.

The store counts the ttl from when it wrote the term; we only know when we *asked*. So a leader
trusts its term until

    start of the last successful renewal + ttl - margin

by its own monotonic clock, and asks itself again before each thing it does as the leader. A process
that was stopped (SIGSTOP, a laptop's lid, a long pause of the host) and goes on finds its trust
expired before it has touched anything. What it was in the middle of may still commit: therefore
every chore is harmless when two leaders do it at once. The term saves work; it does not guard data.

A leader that shuts down resigns this very term (holder and epoch), so that the next one need not
wait for the ttl, and a late resignation cannot end another one's term.

If this dies here, then

| here                                   | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| before its write commits               | nothing happened; another one takes the term            |
| after it commits, before the reply     | the term runs out unused; within ttl another leads      |
| between two renewals                   | the same                                                |
| in the middle of a chore               | its verbs are atomic; the next leader does it again     |
| the store, during a renewal            | trust ends at its instant; chores rest; it stands again |
| after its resignation commits          | another one leads at its next try                       |
| it was only stopped, and goes on       | its trust is over; its next try tells which one leads   |
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.clock import Clock
from penstock.engines.engine import Engine
from penstock.engines.records import Cell

CELL: Final = "penstock.leader"
"""The name of the cell."""
TTL: Final = 10.0
"""Seconds of a term without a renewal."""


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One period of leadership."""

    holder: str
    epoch: int
    """Grows with each new term; a renewal keeps it."""
    left: float
    """Seconds until it ends unless renewed."""


class _Held(msgspec.Struct, frozen=True, array_like=True):
    """The value of the cell."""

    holder: str
    epoch: int | None = None
    """None in the first write of a term: its epoch is the version of that write."""


_held: Final = msgspec.json.Decoder(_Held)


def term_in(cell: Cell) -> Term | None:
    """The term that the cell says; None: there is no leader.

    What no candidate can have written, for it is no term or would never end, is none: the next
    candidate writes over it.
    """
    if cell.value is None or cell.left is None:
        return None
    try:
        held = _held.decode(cell.value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    epoch = cell.version if held.epoch is None else held.epoch
    return Term(holder=held.holder, epoch=epoch, left=cell.left)


async def present_term(engine: Engine) -> Term | None:
    """The term of the leader that there is, from any process."""
    return term_in(await engine.cell(CELL))


def ttl_beside(lease: float) -> float:
    """The ttl where workers have this lease: candidates look at the workers every third of it, well
    inside of what the observer counts as a gap.
    """
    return min(TTL, lease * 2 / 3)


class Election:
    """One candidate."""

    def __init__(self, candidate: str, clock: Clock, ttl: float = TTL) -> None:
        self.candidate = candidate
        self._clock = clock
        self._ttl = ttl
        self._margin = ttl / 5
        self._trusted_until = 0.0
        self._cell: Cell | None = None
        """As this candidate wrote it last; None: it does not lead."""
        self._is_unsure = False
        """The reply to its last write did not come: it may lead."""

    @property
    def every(self) -> float:
        """Seconds between two tries, and between two renewals."""
        return self._ttl / 3

    @property
    def is_trusted(self) -> bool:
        """No other process can have taken the term yet. True is good for this moment only."""
        return self._clock.monotonic() < self._trusted_until

    @property
    def epoch(self) -> int | None:
        """The epoch of the term it was given last; None: it does not lead."""
        term = None if self._cell is None else term_in(self._cell)
        return None if term is None else term.epoch

    async def stand(self, engine: Engine) -> None:
        """Take or renew the term; ``epoch`` says whether it has it.

        On failure: an ``EngineError``. The trust of an earlier renewal lasts as long as it lasts.
        """
        asked_at = self._clock.monotonic()
        known = self._cell
        self._cell = None if known is None else await self._write(engine, known)
        if self._cell is None:
            # Not the leader, or the version has moved: by a write of ours whose reply was lost, or
            # because another one leads.
            self._cell = await self._write(engine, await engine.cell(CELL))
        self._trusted_until = asked_at + self._ttl - self._margin if self._cell else 0.0

    async def _write(self, engine: Engine, found: Cell) -> Cell | None:
        term = term_in(found)
        if term is not None and term.holder != self.candidate:
            return None
        held = _Held(self.candidate, None if term is None else term.epoch)
        self._is_unsure = True
        written = await engine.set_cell(CELL, msgspec.json.encode(held), found.version, self._ttl)
        self._is_unsure = False
        return written

    async def resign(self, engine: Engine) -> None:
        """Give the term back, if there is one; nothing is trusted from now on."""
        cell, self._cell = self._cell, None
        self._trusted_until = 0.0
        if self._is_unsure:
            found = await engine.cell(CELL)
            term = term_in(found)
            cell = found if term is not None and term.holder == self.candidate else None
        if cell is not None:
            await engine.set_cell(CELL, None, cell.version)
