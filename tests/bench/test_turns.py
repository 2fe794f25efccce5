"""Several ways of the same work take turns, and the medians of their rates are compared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # the benchmarks are no part of the package

from benchmarks.scenario import Scale
from benchmarks.turns import in_turns


def test_each_way_is_a_share_of_the_first_and_has_a_new_store_each_time() -> None:
    stores: list[str] = []
    rates = iter([100.0, 10.0, 300.0, 90.0, 200.0, 60.0])

    def rate(store: str) -> float:
        stores.append(store)
        return next(rates)

    found = in_turns({"plain": rate, "other": rate}, Scale())

    assert stores == ["plain_0", "other_0", "plain_1", "other_1", "plain_2", "other_2"]
    assert found["plain"] == 200.0
    assert found["other"] == pytest.approx(0.3)
