"""What the rounds come to: goals are held against the medians, and the table shows how."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # the benchmarks are no part of the package

from benchmarks import baseline_table, report
from benchmarks.scenario import Figure, Goal

RATE = Figure("rate", "jobs/s", (Goal(times=2.0),))
DELAY = Figure("p99", "ms", (Goal(most=20.0),), less_is_better=True)
SHARE = Figure("share", "of 1", (Goal(least=0.8),))


def line_of(figure: Figure, engine: str = "sqlite", **values: list[float]) -> report.Line:
    """A line with these values of each contender, round by round."""
    rounds = {name: [{figure.name: each} for each in its] for name, its in values.items()}
    return report.Line("it", figure, engine, rounds)


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "ratio", "is_met"),
    [
        (RATE, [10.0, 30.0, 20.0], [5.0, 10.0, 11.0], 2.0, True),
        (RATE, [10.0, 19.0, 20.0], [5.0, 10.0, 11.0], 1.9, False),
        (DELAY, [10.0], [40.0], 4.0, True),
        (DELAY, [21.0], [42.0], 2.0, False),
        (SHARE, [0.8], [], None, True),
        (SHARE, [0.7], [], None, False),
        (RATE, [10.0], [], None, False),
    ],
)
def test_a_goal_is_held_against_the_medians(figure, ours, theirs, ratio, is_met) -> None:
    line = line_of(figure, penstock=ours, huey=theirs)
    assert line.ratio() == ratio
    assert [verdict.is_met for verdict in line.verdicts()] == [is_met]


def test_without_a_goal_or_anything_of_ours_there_is_no_verdict() -> None:
    assert line_of(Figure("rate", "jobs/s"), penstock=[10.0], huey=[5.0]).verdicts() == ()
    assert line_of(RATE, huey=[5.0]).verdicts() == ()


def test_a_goal_holds_on_its_engine_and_against_its_peers() -> None:
    goals = (
        Goal(times=6.0, engine="sqlite"),
        Goal(times=2.0, engine="postgres", than=("slow", "slower")),
        Goal(times=0.8, engine="postgres", than=("fast",)),
    )
    line = line_of(
        Figure("rate", "jobs/s", goals),
        "postgres",
        penstock=[9.0],
        slow=[4.0],
        slower=[1.0],
        fast=[12.0],
    )
    assert [(each.ratio, each.is_met) for each in line.verdicts()] == [(2.25, True), (0.75, False)]


def test_a_goal_may_be_held_against_another_figure_of_the_peers() -> None:
    figure = Figure("rate", "jobs/s", (Goal(times=4.0, figure="single"),))
    rounds = {"penstock": [{"rate": 8.0, "single": 1.0}], "peer": [{"rate": 6.0, "single": 2.0}]}
    (verdict,) = report.Line("it", figure, "postgres", rounds).verdicts()
    assert (verdict.ratio, verdict.is_met) == (4.0, True)


def test_a_row_shows_median_spread_ratio_goal_and_whether_it_is_met() -> None:
    line = line_of(RATE, penstock=[2100.0, 2000.0, 2400.0], huey=[1000.0])
    (row,) = report.rows(line, ("penstock", "huey"))
    assert " ".join(row.split()) == "it rate jobs/s 2,100 (2,000–2,400) 1,000 2.1x ≥ 2x yes"


def test_a_second_goal_is_on_a_line_of_its_own() -> None:
    figure = Figure("rate", "jobs/s", (Goal(times=2.0), Goal(times=0.8, than=("fast",))))
    rows = report.rows(line_of(figure, penstock=[10.0], fast=[20.0]), ("penstock", "fast"))
    assert [" ".join(row.split()) for row in rows] == [
        "it rate jobs/s 10 20 0.5x ≥ 2x NO",
        "0.5x ≥ 0.8x NO than fast",
    ]


def test_a_baseline_is_a_table_with_a_row_per_figure_and_a_column_per_contender() -> None:
    line = line_of(RATE, penstock=[2100.0, 2000.0, 2400.0], huey=[1000.0])
    found = {"scenarios": {"it": {"figures": [line.data()]}}}
    assert list(baseline_table.table(found)) == [
        "| scenario | figure | penstock | huey | ratio |",
        "|---|---|---|---|---|",
        "| `it` | rate, jobs/s | 2,100 | 1,000 | 2.1x |",
    ]
