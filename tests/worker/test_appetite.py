"""How much a worker asks for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.core.spec import Kind
from penstock.worker.prefetch import AHEAD, Appetite, Meal, Room


def fed(*, rate: float, round_trip: float, kind: str = "async", most: int = 100) -> Appetite:
    """An appetite that has seen so many jobs a second end, for two seconds."""
    appetite = Appetite(most)
    for step in range(200):
        for _ in range(int(rate * 0.01)):
            appetite.finished("async" if kind == "async" else "sync")
        appetite.exchanged(step * 0.01, round_trip, {})
    return appetite


def to_rooms(sizes_and_loads: Mapping[str, tuple[int, int]]) -> dict[Kind, Room]:
    names: dict[str, Kind] = {"a": "async", "s": "sync"}
    return {names[key]: Room(*value) for key, value in sizes_and_loads.items()}


def ask(appetite: Appetite, may_pass_over: bool = False, **rooms: tuple[int, int]) -> Meal:
    return appetite.meal(to_rooms(rooms), may_pass_over=may_pass_over)


def test_a_worker_that_knows_nothing_asks_for_its_free_slots():
    assert ask(Appetite(100), a=(100, 0)) == Meal(100, 100)
    assert ask(Appetite(100), a=(100, 97)) == Meal(3, 3)
    assert ask(Appetite(100), s=(8, 8)) == Meal(0, 0)
    assert ask(Appetite(100), s=(8, 20)) == Meal(0, 0)


def test_short_jobs_are_prefetched_for_the_time_of_a_round_trip():
    appetite = fed(rate=2000, round_trip=0.005)

    assert appetite.prefetch("async") == pytest.approx(2000 * 0.005 * AHEAD, abs=3)
    assert ask(appetite, a=(100, 100)).want == appetite.prefetch("async")
    assert ask(appetite, a=(100, 100)).slots == 0


def test_long_jobs_are_not_prefetched():
    appetite = Appetite(100)
    for step in range(100):
        appetite.finished("async")
        appetite.exchanged(step * 1.0, 0.005, {})

    assert appetite.prefetch("async") == 0


def test_prefetching_has_a_limit_and_can_be_switched_off():
    assert fed(rate=50_000, round_trip=0.1).prefetch("async") == 100
    assert fed(rate=50_000, round_trip=0.1, most=0).prefetch("async") == 0


def test_after_something_waited_too_long_nothing_is_prefetched_until_jobs_end():
    appetite = fed(rate=2000, round_trip=0.005)
    appetite.stalled()
    assert appetite.prefetch("async") == 0
    for _ in range(200):
        appetite.finished("async")
    appetite.exchanged(2.1, 0.005, {})
    assert appetite.prefetch("async") > 0


def test_with_both_kinds_only_what_surely_starts_counts_as_a_slot():
    meal = ask(Appetite(100), a=(100, 0), s=(8, 0))

    assert meal.slots == 8
    assert meal.want == 16


def test_the_recent_mix_decides_how_much_is_asked_for():
    appetite = Appetite(100)
    for step in range(20):
        appetite.exchanged(step * 1.0, 0.001, {"async": 100, "sync": 0})
    meal = ask(appetite, a=(100, 0), s=(8, 0))
    assert (meal.want, meal.slots) == (100, 8)

    for step in range(20, 40):
        appetite.exchanged(step * 1.0, 0.001, {"async": 0, "sync": 8})
    meal = ask(appetite, a=(100, 0), s=(8, 0))
    assert meal.want == pytest.approx(8, abs=1)


def test_a_kind_without_free_slots_is_passed_over_when_that_is_allowed():
    appetite = Appetite(100)

    assert ask(appetite, True, a=(100, 0), s=(8, 8)) == Meal(100, 100, frozenset({"sync"}))
    assert ask(appetite, True, a=(100, 100), s=(8, 3)) == Meal(5, 5, frozenset({"async"}))
    assert ask(appetite, False, a=(100, 0), s=(8, 8)) == Meal(0, 0)
    assert ask(appetite, True, a=(100, 100), s=(8, 8)) == Meal(0, 0)
    assert ask(appetite, True, a=(100, 0), s=(8, 0)).passes_over == frozenset()


def scan(appetite: Appetite, was_idle: bool, in_full: bool = True) -> int:
    """Pass over busy async slots; return how many sync jobs the next claim would ask for."""
    appetite.passed_over("sync", was_idle=was_idle, in_full=in_full)
    return ask(appetite, True, a=(100, 100), s=(8, 0)).want


def test_claims_that_pass_over_a_kind_bring_more_while_all_of_it_is_done_before_the_next():
    appetite = Appetite(100)
    wants = [scan(appetite, was_idle=True) for _ in range(6)]

    assert wants == [8, 16, 32, 64, 108, 108]
    assert scan(appetite, was_idle=False) == 58
    assert ask(appetite, a=(100, 50), s=(8, 4)).want <= 54


def test_claims_that_pass_over_a_kind_bring_no_more_than_the_free_slots_without_need():
    appetite = Appetite(100)

    assert [scan(appetite, was_idle=False) for _ in range(3)] == [8, 8, 8]
    assert [scan(appetite, was_idle=True, in_full=False) for _ in range(3)] == [16, 16, 16]
    appetite.stalled()
    assert scan(appetite, was_idle=False) == 8


# --- how long there is enough to do -------------------------------------------------------------


def lasts(appetite: Appetite, **rooms: tuple[int, int]) -> float:
    return appetite.lasts(to_rooms(rooms))


def test_what_waits_lasts_for_the_time_it_takes_beyond_the_next_round_trip():
    appetite = fed(rate=2000, round_trip=0.01)
    assert lasts(appetite, a=(100, 100)) == 0
    assert lasts(appetite, a=(100, 110)) < 0
    assert lasts(appetite, a=(100, 160)) == pytest.approx(0.02, abs=0.005)


def test_a_kind_that_has_slots_to_fill_wants_more_now():
    appetite = fed(rate=2000, round_trip=0.01)
    assert lasts(appetite, a=(100, 200), s=(8, 3)) == 0
    assert lasts(appetite, a=(100, 200), s=(8, 0)) > 0


def test_who_knows_no_rate_yet_does_not_think_that_anything_ends_soon():
    assert lasts(Appetite(100), a=(1, 3)) > 1
