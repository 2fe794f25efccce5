"""How much a worker asks for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.core.spec import Kind
from penstock.worker.prefetch import AHEAD, Demand, Prefetch, Room


def fed(*, rate: float, round_trip: float, kind: str = "async", most: int = 100) -> Prefetch:
    """A prefetch that has seen so many jobs a second end, for two seconds."""
    prefetch = Prefetch(most)
    for step in range(200):
        for _ in range(int(rate * 0.01)):
            prefetch.finished("async" if kind == "async" else "sync")
        prefetch.exchanged(step * 0.01, round_trip, {})
    return prefetch


def to_rooms(sizes_and_loads: Mapping[str, tuple[int, int]]) -> dict[Kind, Room]:
    names: dict[str, Kind] = {"a": "async", "s": "sync"}
    return {names[key]: Room(*value) for key, value in sizes_and_loads.items()}


def ask(prefetch: Prefetch, may_skip: bool = False, **rooms: tuple[int, int]) -> Demand:
    return prefetch.demand(to_rooms(rooms), may_skip=may_skip)


def test_a_worker_that_knows_nothing_asks_for_its_free_slots():
    assert ask(Prefetch(100), a=(100, 0)) == Demand(100, 100)
    assert ask(Prefetch(100), a=(100, 97)) == Demand(3, 3)
    assert ask(Prefetch(100), s=(8, 8)) == Demand(0, 0)
    assert ask(Prefetch(100), s=(8, 20)) == Demand(0, 0)


def test_short_jobs_are_prefetched_for_the_time_of_a_round_trip():
    prefetch = fed(rate=2000, round_trip=0.005)

    assert prefetch.ahead("async") == pytest.approx(2000 * 0.005 * AHEAD, abs=3)
    assert ask(prefetch, a=(100, 100)).want == prefetch.ahead("async")
    assert ask(prefetch, a=(100, 100)).slots == 0


def test_long_jobs_are_not_prefetched():
    prefetch = Prefetch(100)
    for step in range(100):
        prefetch.finished("async")
        prefetch.exchanged(step * 1.0, 0.005, {})

    assert prefetch.ahead("async") == 0


def test_prefetching_has_a_limit_and_can_be_switched_off():
    assert fed(rate=50_000, round_trip=0.1).ahead("async") == 100
    assert fed(rate=50_000, round_trip=0.1, most=0).ahead("async") == 0


def test_after_something_waited_too_long_nothing_is_prefetched_until_jobs_end():
    prefetch = fed(rate=2000, round_trip=0.005)
    prefetch.stalled()
    assert prefetch.ahead("async") == 0
    for _ in range(200):
        prefetch.finished("async")
    prefetch.exchanged(2.1, 0.005, {})
    assert prefetch.ahead("async") > 0


def test_with_both_kinds_only_what_surely_starts_counts_as_a_slot():
    demand = ask(Prefetch(100), a=(100, 0), s=(8, 0))

    assert demand.slots == 8
    assert demand.want == 16


def test_the_recent_mix_decides_how_much_is_asked_for():
    prefetch = Prefetch(100)
    for step in range(20):
        prefetch.exchanged(step * 1.0, 0.001, {"async": 100, "sync": 0})
    demand = ask(prefetch, a=(100, 0), s=(8, 0))
    assert (demand.want, demand.slots) == (100, 8)

    for step in range(20, 40):
        prefetch.exchanged(step * 1.0, 0.001, {"async": 0, "sync": 8})
    demand = ask(prefetch, a=(100, 0), s=(8, 0))
    assert demand.want == pytest.approx(8, abs=1)


def test_a_kind_without_free_slots_is_skipped_when_that_is_allowed():
    prefetch = Prefetch(100)

    assert ask(prefetch, True, a=(100, 0), s=(8, 8)) == Demand(100, 100, frozenset({"sync"}))
    assert ask(prefetch, True, a=(100, 100), s=(8, 3)) == Demand(5, 5, frozenset({"async"}))
    assert ask(prefetch, False, a=(100, 0), s=(8, 8)) == Demand(0, 0)
    assert ask(prefetch, True, a=(100, 100), s=(8, 8)) == Demand(0, 0)
    assert ask(prefetch, True, a=(100, 0), s=(8, 0)).skipped_kinds == frozenset()


def lasts(prefetch: Prefetch, **rooms: tuple[int, int]) -> float:
    return prefetch.lasts(to_rooms(rooms))


def test_what_waits_lasts_for_the_time_it_takes_beyond_the_next_round_trip():
    prefetch = fed(rate=2000, round_trip=0.01)
    assert lasts(prefetch, a=(100, 100)) == 0
    assert lasts(prefetch, a=(100, 110)) < 0
    assert lasts(prefetch, a=(100, 160)) == pytest.approx(0.02, abs=0.005)


def test_a_kind_that_has_slots_to_fill_wants_more_now():
    prefetch = fed(rate=2000, round_trip=0.01)
    assert lasts(prefetch, a=(100, 200), s=(8, 3)) == 0
    assert lasts(prefetch, a=(100, 200), s=(8, 0)) > 0


def test_who_knows_no_rate_yet_does_not_think_that_anything_ends_soon():
    assert lasts(Prefetch(100), a=(1, 3)) > 1
