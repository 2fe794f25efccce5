"""What a scenario is: a measurement with named figures, and what they should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders.contender import Contender, Kind

Figures = Mapping[str, Any]
"""Figures by name; what is no declared figure is a detail that is only kept."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should be: one of the first three."""

    times: float | None = None
    """At least so many times as good as the best peer's."""
    least: float | None = None
    most: float | None = None
    engine: str | None = None
    """Where it holds; None: everywhere."""
    than: tuple[str, ...] | None = None
    """The peers that it speaks of; None: all."""
    figure: str | None = None
    """Their figure that ours is compared with, if it is another one."""

    def __str__(self) -> str:
        if self.times is not None:
            return f"≥ {self.times:g}x"
        return f"≥ {self.least:,g}" if self.least is not None else f"≤ {self.most:,g}"

    def is_met(self, value: float, ratio: float | None) -> bool:
        """The figure is as it should be; without a peer in the run, no ratio is reached."""
        if self.times is not None:
            return ratio is not None and ratio >= self.times
        return value >= self.least if self.least is not None else value <= (self.most or 0.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that a scenario brings."""

    name: str
    unit: str
    goals: tuple[Goal, ...] = ()
    less_is_better: bool = False

    def ratio(self, ours: float, theirs: float) -> float | None:
        """How many times better ours is."""
        better, worse = (theirs, ours) if self.less_is_better else (ours, theirs)
        return better / worse if worse > 0 else None

    def goals_on(self, engine: str) -> tuple[Goal, ...]:
        """Those that hold on an engine."""
        return tuple(goal for goal in self.goals if goal.engine in (None, engine))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of a measurement is made: 1 is all of it."""

    factor: float = 1.0

    def jobs(self, count: int, least: int = 20) -> int:
        return max(min(count, least), int(count * self.factor))

    def seconds(self, seconds: float, least: float = 1.0) -> float:
        return max(min(seconds, least), seconds * self.factor)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One measurement. ``run`` makes it, in a process of its own, on an empty store."""

    about: str
    figures: tuple[Figure, ...]
    run: Callable[[Contender, Scale], Figures]
    kind: Kind = "async"
    """The kind of task that the contender's jobs are of."""
    engines: tuple[str, ...] = ("sqlite", "postgres")
    """Where it is made."""
    contenders: tuple[str, ...] | None = None
    """Who takes part; None: all."""
    rounds: int | None = None
    """How often it is measured at most; it takes long, or repeats itself."""

    def takes(self, contender: str) -> bool:
        """The contender takes part."""
        return self.contenders is None or contender in self.contenders
