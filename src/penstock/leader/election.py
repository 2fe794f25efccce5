"""The election: which process leads, for how long, and when it must stop to believe that it does.

Leadership is a lease with a term (holder, epoch) in the store. ``lead`` takes it if it is free,
renews it if it is ours, and says None if another has it. Every worker process stands for election;
each asks every third of the ttl, so the loss of a leader is noticed within ttl + ttl/3.

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
| before ``lead`` commits                | nothing happened; another one takes the term            |
| after it commits, before the reply     | the term runs out unused; within ttl another leads      |
| between two renewals                   | the same                                                |
| in the middle of a chore               | its verbs are atomic; the next leader does it again     |
| the store, during a renewal            | trust ends at its instant; chores rest; it stands again |
| after ``resign`` commits               | another one leads at its next try                       |
| it was only stopped, and goes on       | its trust is over; its next ``lead`` tells who leads    |
"""

from __future__ import annotations

from typing import Final

from penstock.clock import Clock
from penstock.engines.engine import Engine
from penstock.engines.records import Sighting, Term

TTL: Final = 10.0
"""Seconds of a term without a renewal."""


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
        self._term: Term | None = None

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
        return self._term.epoch if self._term is not None else None

    async def stand(self, engine: Engine) -> tuple[Sighting, ...]:
        """Take or renew the term; ``epoch`` says whether it has it. Returns the workers' beats.

        On failure: an ``EngineError``. The trust of an earlier renewal lasts as long as it lasts.
        """
        asked_at = self._clock.monotonic()
        told = await engine.lead(self.candidate, self._ttl)
        self._term = told.term
        self._trusted_until = asked_at + self._ttl - self._margin if told.term else 0.0
        return told.beats

    async def resign(self, engine: Engine) -> None:
        """Give the term back, if there is one; nothing is trusted from now on."""
        term, self._term = self._term, None
        self._trusted_until = 0.0
        if term is not None:
            await engine.resign(term.holder, term.epoch)
