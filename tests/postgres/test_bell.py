"""Who sleeps is told in time, and not more often than it is worth."""

from __future__ import annotations

import pytest

from penstock.clock import SystemClock
from penstock.engines.postgres.bell import ALONE, ASLEEP, HANDED, LOOK, ONCE, TOLD, Bell
from postgres.real import Real


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Real:
    time = Real()
    monkeypatch.setattr(SystemClock, "monotonic", time.monotonic)
    return time


def test_one_that_comes_alone_wakes_who_sleeps_by_itself(time: Real) -> None:
    bell = Bell()
    assert bell.asks() is True
    bell.hears("mail", TOLD, has_looked=True)
    assert not bell
    time.now += ALONE * 1.01
    assert bell.asks() is True
    bell.hears("mail", HANDED, has_looked=True)
    assert not bell


def test_while_one_follows_the_other_they_look_now_and_then(time: Real) -> None:
    bell = Bell()
    assert bell.asks() is True
    bell.hears("mail", None, has_looked=True)
    assert bell.asks() is None
    time.now += LOOK * 1.01
    assert bell.asks() is False


def test_who_came_before_a_look_that_found_nobody_need_not_be_told_of(time: Real) -> None:
    bell = Bell()
    bell.hears("mail", None, has_looked=False)
    bell.hears("video", None, has_looked=True)
    assert bell.ring() == ["video"]
    assert not bell


def test_without_a_look_nobody_is_forgotten(time: Real) -> None:
    bell = Bell()
    bell.hears("mail", None, has_looked=False)
    bell.hears("video", None, has_looked=False)
    assert sorted(bell.ring()) == ["mail", "video"]


def test_the_last_one_is_told_of_though_nobody_slept_when_it_looked(time: Real) -> None:
    """Somebody may have fallen asleep before it was committed."""
    bell = Bell()
    bell.hears("mail", None, has_looked=True)
    assert bell
    assert 0 < bell.left() <= ONCE
    time.now += ONCE * 1.01
    assert bell.left() <= 0


def test_whoever_was_seen_asleep_is_woken_at_once(time: Real) -> None:
    bell = Bell()
    bell.hears("mail", None, has_looked=True)
    time.now += ONCE / 2
    bell.hears("video", ASLEEP, has_looked=True)
    assert bell.left() <= 0
    assert sorted(bell.ring()) == ["mail", "video"]


def test_but_not_more_often_than_once_in_a_while(time: Real) -> None:
    bell = Bell()
    bell.hears("mail", ASLEEP, has_looked=True)
    bell.ring()
    bell.hears("mail", ASLEEP, has_looked=True)
    assert bell.left() > 0
    time.now += ONCE * 1.01
    assert bell.left() <= 0
