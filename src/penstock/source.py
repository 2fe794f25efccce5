"""Where an app finds its store: the one it was made with, unless a test has put another before it.

An app's façade and its workers ask here each time they open a handle. A worker keeps the answer it
had when it was made: one of the real store goes on there, whatever a test does meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.engines.engine import Engine


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One store: what makes a handle on it, and the clock that goes with it."""

    connect: Callable[[], Engine]
    clock: Clock


class Source:
    """The places of one app; the latest counts. Those that were put may be taken in any order."""

    def __init__(self, place: Place) -> None:
        # Replaced, never changed: readers need no lock.
        self._places: tuple[Place, ...] = (place,)

    @property
    def place(self) -> Place:
        """Where the store is now."""
        return self._places[-1]

    @property
    def is_own(self) -> bool:
        """No test has put another place before the app's own."""
        return len(self._places) == 1

    def connect(self) -> Engine:
        """A new, unopened handle on it."""
        return self.place.connect()

    def put(self, place: Place) -> None:
        """Let this be the store from the next handle on."""
        self._places = (*self._places, place)

    def take(self, place: Place) -> None:
        """Let it be no more. Idempotent."""
        self._places = tuple(each for each in self._places if each is not place)
