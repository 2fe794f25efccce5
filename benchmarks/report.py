"""What the rounds come to: medians, spreads, ratios, goals, as data and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.scenario import Figure, Figures, Scenario

OURS = "penstock"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure over all rounds."""

    scenario: str
    figure: Figure
    values: Mapping[str, Sequence[float]]
    """Of each contender, round by round."""

    @property
    def medians(self) -> dict[str, float]:
        return {name: statistics.median(found) for name, found in self.values.items() if found}

    @property
    def ratio(self) -> float | None:
        """How many times better ours is than the best of the others."""
        medians = self.medians
        ours = medians.pop(OURS, None)
        ratios = [self.figure.ratio(ours, each) for each in medians.values() if ours is not None]
        return min((each for each in ratios if each is not None), default=None)

    @property
    def is_met(self) -> bool | None:
        """None: there is no goal, or nothing of ours to compare with it."""
        goal, ours = self.figure.goal, self.medians.get(OURS)
        return None if goal is None or ours is None else goal.is_met(ours, self.ratio)

    def data(self) -> dict[str, Any]:
        """For the file."""
        return {
            "figure": self.figure.name,
            "unit": self.figure.unit,
            "less_is_better": self.figure.less_is_better,
            "contenders": {
                name: {
                    "rounds": list(found),
                    "median": statistics.median(found),
                    "least": min(found),
                    "most": max(found),
                    "spread": _spread(found),
                }
                for name, found in self.values.items()
                if found
            },
            "ratio": self.ratio,
            "goal": None if self.figure.goal is None else str(self.figure.goal),
            "is_met": self.is_met,
        }


def lines(
    name: str, scenario: Scenario, rounds: Mapping[str, Sequence[Figures]]
) -> tuple[Line, ...]:
    """The figures of a scenario; ``rounds`` are those of each contender."""
    return tuple(
        Line(
            name,
            figure,
            {each: [found[figure.name] for found in its] for each, its in rounds.items()},
        )
        for figure in scenario.figures
    )


def header(contenders: Sequence[str]) -> str:
    """The head of the table."""
    cells = "".join(f"{name:>28}" for name in contenders)
    return f"{'scenario':<17}{'figure':<9}{'unit':<8}{cells}{'ratio':>8}{'goal':>10}  met"


def row(line: Line, contenders: Sequence[str]) -> str:
    """One line of the table: the median of each contender with its spread."""
    cells = "".join(f"{_cell(line.values.get(name, ())):>28}" for name in contenders)
    ratio = "" if line.ratio is None else f"{line.ratio:.1f}x"
    goal = "" if line.figure.goal is None else str(line.figure.goal)
    met = {None: "", True: "yes", False: "NO"}[line.is_met]
    named = f"{line.scenario:<17}{line.figure.name:<9}{line.figure.unit:<8}"
    return f"{named}{cells}{ratio:>8}{goal:>10}  {met}".rstrip()


def _cell(found: Sequence[float]) -> str:
    if not found:
        return ""
    median = _number(statistics.median(found))
    if len(found) == 1:
        return median
    return f"{median} ({_number(min(found))}–{_number(max(found))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _spread(found: Sequence[float]) -> float:
    """The distance between the least and the greatest, as a share of the median."""
    median = statistics.median(found)
    return (max(found) - min(found)) / median if median else 0.0
