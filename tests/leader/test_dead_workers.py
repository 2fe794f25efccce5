"""Law 4: death is proven, not guessed."""

from __future__ import annotations

import pytest

from penstock.engines.records import Sighting
from penstock.leader.dead_workers import Observer
from penstock.leader.election import Election, ttl_beside

LEASE = 15.0


Look = tuple[float, float, list[Sighting]]


def look(at: float, took: float = 0.0, **beats: int) -> Look:
    """A look that was asked at an instant, and answered a little later."""
    return at, at + took, [Sighting(id, beat) for id, beat in beats.items()]


def watch(observer: Observer, *looks: Look) -> list[Sighting]:
    """What the last of these looks proves."""
    dead: list[Sighting] = []
    for each in looks:
        dead = observer.saw(*each, wrote_at=each[0])
    return dead


def test_a_beat_that_stood_still_for_a_whole_lease_is_a_death():
    looks = [look(at, w=7) for at in (0, 3, 6, 9, 12, 15)]

    assert watch(Observer(LEASE), *looks[:-1]) == []
    assert watch(Observer(LEASE), *looks) == [Sighting("w", 7)]


def test_a_beat_that_grows_is_a_life():
    looks = [look(at * 3.0, w=at) for at in range(20)]

    assert watch(Observer(LEASE), *looks) == []


def test_one_beat_in_between_is_a_new_lease():
    before = [look(at, w=7) for at in (0, 3, 6, 9, 12)]
    after = [look(at, w=8) for at in (14, 17, 20, 23, 26)]

    assert watch(Observer(LEASE), *before, *after) == []
    assert watch(Observer(LEASE), *before, *after, look(29, w=8)) == [Sighting("w", 8)]


def test_a_gap_between_two_looks_gives_everybody_a_fresh_lease():
    before = [look(at, w=7) for at in (0, 3, 6, 9, 12)]
    after = [look(at, w=7) for at in (18, 21, 24, 27, 30)]

    assert watch(Observer(LEASE), *before, *after) == []
    assert watch(Observer(LEASE), *before, *after, look(33, w=7)) == [Sighting("w", 7)]


def test_a_store_that_takes_no_beat_of_our_own_proves_nothing():
    """It can be read, but whatever refuses our beat refuses the beats of the others as well."""
    observer = Observer(LEASE)
    for at in (0, 3):
        observer.saw(*look(at, w=7), wrote_at=at)
    for at in (6, 9, 12, 15, 18, 21):
        assert observer.saw(*look(at, w=7), wrote_at=3) == []
    for at in (24, 27, 30, 33, 36):
        assert observer.saw(*look(at, w=7), wrote_at=at) == []
    assert observer.saw(*look(39, w=7), wrote_at=39) == [Sighting("w", 7)]


def test_a_look_that_failed_gives_everybody_a_fresh_lease():
    observer = Observer(LEASE)
    watch(observer, *[look(at, w=7) for at in (0, 3, 6, 9, 12)])
    observer.missed()

    assert watch(observer, look(15, w=7)) == []
    assert watch(observer, *[look(at, w=7) for at in (18, 21, 24, 27)]) == []
    assert watch(observer, look(30, w=7)) == [Sighting("w", 7)]


def test_a_look_that_took_long_is_a_gap():
    before = [look(at, w=7) for at in (0, 3, 6, 9)]

    assert watch(Observer(LEASE), *before, look(12, took=4, w=7)) == []
    assert watch(Observer(LEASE), *before, look(12, took=4, w=7), look(17, w=7)) == []


def test_stillness_counts_from_an_answer_to_a_question():
    looks = [look(0, took=1, w=7), *[look(at, w=7) for at in (4, 7, 10, 13)]]

    assert watch(Observer(LEASE), *looks, look(15.5, w=7)) == []
    assert watch(Observer(LEASE), *looks, look(16, w=7)) == [Sighting("w", 7)]


def test_the_first_look_proves_nothing_however_old_the_beat():
    assert watch(Observer(LEASE), look(1_000_000, w=7)) == []


def test_a_worker_that_came_later_has_its_own_lease():
    observer = Observer(LEASE)
    for at in (0, 3, 6):
        observer.saw(*look(at, old=1), wrote_at=at)
    for at in (9, 12):
        observer.saw(*look(at, old=1, new=1), wrote_at=at)

    assert observer.saw(*look(15, old=1, new=1), wrote_at=15) == [Sighting("old", 1)]
    assert observer.living == {"old", "new"}


def test_a_worker_that_left_is_forgotten_and_begins_anew_if_it_returns():
    observer = Observer(LEASE)
    for at in (0, 3, 6):
        observer.saw(*look(at, w=1), wrote_at=at)
    observer.saw(*look(9), wrote_at=9)
    assert observer.living == frozenset()
    for at in (12, 15, 18):
        assert observer.saw(*look(at, w=1), wrote_at=at) == []


@pytest.mark.parametrize("lease", [0.1, 1.0, 6.0, LEASE, 60.0])
def test_looks_come_often_enough_not_to_be_gaps_themselves(clock, lease):
    every = Election("w", clock, ttl_beside(lease)).every

    assert every <= lease / 3 * 0.75
