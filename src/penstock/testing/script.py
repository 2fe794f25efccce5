"""What is still to go wrong on a store that a test controls, and what was called so far.

What is told for one verb is used up in order: each call takes the first delay, the first gate and
the first failure that are left.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Any, Literal

When = Literal["before", "after"]
"""Before the inner engine is called, or after it committed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that came in, whatever became of it."""

    verb: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """Where a call stops until the test lets it go on."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a call stands at the gate."""
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Let go who waits, and whoever comes later."""
        self._opened.set()

    async def _pass(self) -> None:
        self.reached.set()
        await self._opened.wait()


What = float | Gate | BaseException
"""A delay, a gate, a failure."""


@dataclass(slots=True, eq=False)
class Fault:
    """One thing to go wrong, and how often it still does."""

    what: What
    when: When
    times: float


class Script:
    """All of it, for one store."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.refusals: list[Callable[[Any], bool]] = []
        self.is_down = False
        self._faults: defaultdict[str, list[Fault]] = defaultdict(list)

    def add(self, verb: str, what: What, when: When, times: int | None) -> None:
        """Let something go wrong so often; None: whenever the verb is called."""
        self._faults[verb].append(Fault(what, when, inf if times is None else times))

    def due(self, verb: str) -> list[Fault]:
        """Take the first delay, gate and failure that are left for this verb."""
        faults = self._faults[verb]
        firsts = (
            next((each for each in faults if isinstance(each.what, kind)), None)
            for kind in (float | int, Gate, BaseException)
        )
        due = [fault for fault in firsts if fault is not None]
        for fault in due:
            fault.times -= 1
        self._faults[verb] = [fault for fault in faults if fault.times > 0]
        return due

    def forgo(self) -> dict[str, int]:
        """Forget the faults that are still to come; say how many there were, by verb."""
        left = {
            verb: sum(1 if isinf(each.times) else int(each.times) for each in faults)
            for verb, faults in self._faults.items()
            if faults
        }
        self._faults.clear()
        return left
