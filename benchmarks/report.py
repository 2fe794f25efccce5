"""What the rounds come to: medians, spreads, ratios, goals, as data and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.scenario import Figure, Figures, Goal, Scenario

OURS = "penstock"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a goal is held against."""

    goal: Goal
    ratio: float | None
    is_met: bool

    def data(self) -> dict[str, Any]:
        """For the file."""
        than = None if self.goal.than is None else list(self.goal.than)
        about = {"goal": str(self.goal), "than": than, "figure": self.goal.figure}
        return {**about, "ratio": self.ratio, "is_met": self.is_met}


@dataclass(frozen=True, slots=True)
class Line:
    """One figure over all rounds."""

    scenario: str
    figure: Figure
    engine: str
    rounds: Mapping[str, Sequence[Figures]]
    """All figures of each contender, round by round."""

    def values(self, contender: str, figure: str | None = None) -> list[float]:
        """This figure of a contender, or another one, round by round."""
        name = figure or self.figure.name
        return [found[name] for found in self.rounds.get(contender, ())]

    def ratio(self, goal: Goal | None = None) -> float | None:
        """How many times better ours is than the best of the others that the goal speaks of."""
        ours = self.values(OURS)
        than, figure = (None, None) if goal is None else (goal.than, goal.figure)
        others = [name for name in self.rounds if name != OURS and (than is None or name in than)]
        ratios = [
            self.figure.ratio(statistics.median(ours), statistics.median(theirs))
            for theirs in (self.values(name, figure) for name in others)
            if ours and theirs
        ]
        return min((each for each in ratios if each is not None), default=None)

    def verdicts(self) -> tuple[Verdict, ...]:
        """One for each goal, if there is anything of ours to compare with it."""
        ours = self.values(OURS)
        if not ours:
            return ()
        return tuple(
            Verdict(goal, ratio, goal.is_met(statistics.median(ours), ratio))
            for goal in self.figure.goals_on(self.engine)
            for ratio in (self.ratio(goal),)
        )

    def data(self) -> dict[str, Any]:
        """For the file."""
        return {
            "figure": self.figure.name,
            "unit": self.figure.unit,
            "less_is_better": self.figure.less_is_better,
            "contenders": {
                name: {
                    "rounds": found,
                    "median": statistics.median(found),
                    "least": min(found),
                    "most": max(found),
                    "spread": _spread(found),
                }
                for name in self.rounds
                for found in (self.values(name),)
                if found
            },
            "ratio": self.ratio(),
            "goals": [verdict.data() for verdict in self.verdicts()],
        }


def lines(
    name: str, scenario: Scenario, engine: str, rounds: Mapping[str, Sequence[Figures]]
) -> tuple[Line, ...]:
    """The figures of a scenario; ``rounds`` are those of each contender."""
    return tuple(Line(name, figure, engine, rounds) for figure in scenario.figures)


def header(contenders: Sequence[str]) -> str:
    """The head of the table."""
    width = _width(contenders)
    cells = "".join(f"{name:>{width}}" for name in contenders)
    return f"{'scenario':<17}{'figure':<9}{'unit':<10}{cells}{'ratio':>8}{'goal':>10}  met"


def rows(line: Line, contenders: Sequence[str]) -> Iterator[str]:
    """A line of the table: the median of each contender; a second goal is on a line of its own."""
    width = _width(contenders)
    cells = "".join(f"{_cell(line.values(name), width):>{width}}" for name in contenders)
    named = f"{line.scenario:<17}{line.figure.name:<9}{line.figure.unit:<10}{cells}"
    verdicts = line.verdicts()
    if not verdicts:
        yield f"{named}{times(line.ratio()):>8}".rstrip()
    for verdict in verdicts:
        met = "yes" if verdict.is_met else "NO"
        than = "" if verdict.goal.than is None else f"  than {', '.join(verdict.goal.than)}"
        if verdict.goal.figure is not None:
            than += f" ({verdict.goal.figure})"
        yield f"{named}{times(verdict.ratio):>8}{verdict.goal!s:>10}  {met}{than}"
        named = " " * len(named)


def _width(contenders: Sequence[str]) -> int:
    """With more than two contenders there is no room for the spread."""
    return 28 if len(contenders) <= 2 else 14


def _cell(found: Sequence[float], width: int) -> str:
    if not found:
        return ""
    median = number(statistics.median(found))
    spread = f" ({number(min(found))}–{number(max(found))})"
    return median if len(found) == 1 or len(median + spread) >= width else median + spread


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2g}x" if ratio < 1 else f"{ratio:.1f}x"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _spread(found: Sequence[float]) -> float:
    """The distance between the least and the greatest, as a share of the median."""
    median = statistics.median(found)
    return (max(found) - min(found)) / median if median else 0.0
