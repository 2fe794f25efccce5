"""What a worker is given without asking, because it had nothing to do.

A worker that is about to sleep offers itself for one job. Whoever enqueues one stores it as
running there, and says so on a channel that only this handle knows; then the worker's next turn
takes no round trip (see ``sql/postgres/0012_hand.sql``). What is heard is a shortcut: the store
knows what it has given, and a turn that goes to the store takes the offer back.

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| who enqueues dies before its commit    | nothing happened, and the offer stands                  |
| the notification is not heard          | the next turn, or the next offer, finds what was given  |
| it comes late, after that              | it has a number that is known, and is passed over       |
| the worker is killed                   | its connection ends, and with it the lock by which an   |
|                                        | offer is taken for good; what it has is rescued         |
| the server is killed                   | it has forgotten the offers, and not what was given     |
| the worker leaves                      | what it was given and did not hear of waits again       |
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from math import inf
from typing import Final

import msgspec

from penstock.core.job import Job, State

LEASE: Final = 2.0
"""Seconds for which an offer stands: one whose process hangs is given a job for so long."""
FRESH: Final = 0.5
"""Seconds for which it need not be renewed; then each look does so, and asks what was given."""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """A job that was given, in the order of ``penstock.note``."""

    number: int
    worker: str
    tid: str | None
    id: str
    task: str
    payload: str
    queue: str
    priority: int
    enqueued_at: float
    enqueued_by: str
    seq: int
    attempt: int
    claimed_at: float

    def job(self) -> Job:
        """The same as a claimed job."""
        return Job(
            id=self.id,
            task=self.task,
            payload=self.payload.encode(),
            queue=self.queue,
            priority=self.priority,
            state=State.RUNNING,
            enqueued_at=self.enqueued_at,
            enqueued_by=self.enqueued_by,
            seq=self.seq,
            attempt=self.attempt,
            started=True,
            worker=self.worker,
            claimed_at=self.claimed_at,
        )


_note: Final = msgspec.json.Decoder(Note)


class Offers:
    """What the workers of one handle offer, and what they were given. Belongs to its loop."""

    def __init__(self) -> None:
        self.channel = f"penstock_{secrets.token_hex(16)}"
        """Where we are told; known to nobody else, as anybody may listen."""
        self._offered: dict[str, float] = {}
        """Since when, by the loop's time. What is here may have been taken; what is not, was."""
        self._given: dict[str, dict[int, Note]] = {}
        self._heard: dict[str, int] = {}

    def heard(self, worker: str) -> int | None:
        """The last number that the worker knows; None: it offers itself to nobody."""
        return self._heard.get(worker, 0) if worker in self._offered else None

    def last(self, worker: str) -> int | None:
        """The last number that it knows; None: it has never offered itself."""
        return self._heard.get(worker)

    def is_fresh(self, worker: str, now: float) -> bool:
        """The worker has just offered itself."""
        return now - self._offered.get(worker, -inf) < FRESH

    def offer(self, worker: str) -> int:
        """The worker is about to offer itself; returns the last number that it knows."""
        self._offered[worker] = -inf
        return self._heard.setdefault(worker, 0)

    def offered(self, worker: str, now: float) -> None:
        """Its offer stands, unless it was taken meanwhile."""
        if worker in self._offered:
            self._offered[worker] = now

    def restart(self, worker: str) -> None:
        """The store is another one, and its numbers begin anew."""
        self._heard[worker] = 0

    def distrust(self) -> None:
        """What was said may not have been heard: the next look has to ask."""
        self._offered = dict.fromkeys(self._offered, -inf)

    def receive(self, text: str) -> bool:
        """Somebody has given a job; False: that was known, or is for nobody here. What cannot be
        read is not from the store, which says again what it has given.
        """
        try:
            return self.add([_note.decode(text)])
        except msgspec.MsgspecError:
            return False

    def add(self, notes: Iterable[Note]) -> bool:
        """The same of some jobs."""
        is_new = False
        for note in notes:
            if note.number > self._heard.get(note.worker, inf):
                self._given.setdefault(note.worker, {})[note.number] = note
                self._offered.pop(note.worker, None)
                is_new = True
        return is_new

    def count(self, worker: str) -> int:
        """How many jobs the worker was given of which it does not know."""
        return len(self._given.get(worker, ()))

    def took_back(self, worker: str) -> None:
        """A turn has ended the offer."""
        self._offered.pop(worker, None)

    def take(self, worker: str) -> list[Note]:
        """What it was given; from now on it knows."""
        given = self._given.pop(worker, {})
        self.knows(worker, max(given, default=0))
        return list(given.values())

    def knows(self, worker: str, number: int) -> None:
        """The worker knows of all that it was given up to this number."""
        if worker in self._heard:
            self._heard[worker] = max(self._heard[worker], number)
            given = self._given.get(worker, {})
            for each in [each for each in given if each <= number]:
                del given[each]
            if not given:
                self._given.pop(worker, None)

    def forget(self, worker: str) -> None:
        """The worker is no more."""
        for each in (self._offered, self._given, self._heard):
            each.pop(worker, None)
