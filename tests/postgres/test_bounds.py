"""Where a claimer begins to look: after what it has claimed, or at the start if that is cheap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from penstock.core.job import Job, State
from penstock.engines.postgres import bounds
from penstock.engines.postgres.bounds import FEW, RANGES, SWEEP, Bounds, Ranges, Turns
from penstock.testing.clock import FakeClock
from postgres.real import Real

QUEUES = ("default",)
FIRST = -(1 << 63)
LAST = (1 << 63) - 1


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Real:
    made = Real()
    monkeypatch.setattr(bounds, "SystemClock", made)
    return made


def whole(queues: Sequence[str]) -> Ranges:
    """All of every line, as a claimer that has claimed nothing sees it."""
    return Bounds(FakeClock()).ranges(queues)


def jobs(count: int, priority: int = 5, first: int = 1) -> list[Job]:
    """Claimed jobs, in the order of their tickets."""
    return [
        Job(
            id=f"job-{seq}",
            task="work",
            payload=b"",
            queue="default",
            priority=priority,
            state=State.RUNNING,
            enqueued_at=0.0,
            seq=seq,
        )
        for seq in range(first, first + count)
    ]


def claimed(clock: FakeClock, count: int) -> Bounds:
    """The bounds of somebody who has claimed so many."""
    made = Bounds(clock)
    made.ranges(QUEUES)
    made.learn(jobs(count), {"default": 0})
    return made


def test_who_has_claimed_nothing_looks_at_all(clock: FakeClock) -> None:
    ranges = Bounds(clock).ranges(QUEUES)
    assert ranges.is_whole
    assert not ranges.sweeps
    assert ranges.arrays == whole(QUEUES).arrays


def test_who_has_claimed_begins_after_that(clock: FakeClock) -> None:
    ranges = claimed(clock, 10).ranges(QUEUES)
    assert not ranges.is_whole
    assert ranges.sweeps
    # What is more urgent, what comes after the bound, and what is less urgent.
    assert ranges.arrays[3] == "{-9223372036854775808,10,9223372036854775807}"


def test_the_whole_line_is_looked_at_each_second(clock: FakeClock) -> None:
    made = claimed(clock, 10)
    clock.advance(SWEEP)
    assert made.ranges(QUEUES).is_whole


def test_a_job_with_an_old_ticket_ends_the_bounds_of_its_queue_alone(clock: FakeClock) -> None:
    made = claimed(clock, 10)
    made.learn([replace(job, queue="other") for job in jobs(10)], {"other": 0})
    made.learn((), {"default": 2, "other": 0})
    assert made.ranges(QUEUES).arrays == whole(QUEUES).arrays
    assert made.ranges(QUEUES).lowered == "{2}"
    assert made.ranges(["other"]).arrays != whole(["other"]).arrays


def test_a_dear_sweep_is_followed_by_a_rest(clock: FakeClock, real: Real) -> None:
    made = claimed(clock, FEW + 1)
    made.swept(0.5)
    clock.advance(SWEEP)
    ranges = made.ranges(QUEUES)
    assert not ranges.is_whole
    assert not ranges.sweeps
    assert made.rests_for > 0
    real.now += 0.5 * bounds.SHARE
    assert made.rests_for == 0
    assert made.ranges(QUEUES).is_whole


def test_sweeps_take_a_twentieth_of_the_time_at_most(clock: FakeClock, real: Real) -> None:
    made = claimed(clock, FEW + 1)
    made.swept(0.1)
    assert made.rests_for == pytest.approx(2.0)
    real.now += 1.9
    assert made.rests_for > 0
    real.now += 0.2
    assert made.rests_for == 0


def test_a_new_connection_ends_a_rest(clock: FakeClock, real: Real) -> None:
    made = claimed(clock, FEW + 1)
    made.swept(0.5)
    made.renew()
    assert not made.rests_for
    assert made.ranges(QUEUES).is_whole


def test_no_rest_is_longer_than_half_a_minute(clock: FakeClock, real: Real) -> None:
    made = claimed(clock, FEW + 1)
    made.swept(3600.0)
    real.now += bounds.REST
    assert not made.rests_for


def test_who_has_claimed_little_never_rests(clock: FakeClock, real: Real) -> None:
    """There is nothing to walk: whatever it took was something else."""
    made = claimed(clock, FEW)
    made.swept(0.5)
    assert not made.rests_for
    assert made.ranges(QUEUES).sweeps


def test_an_old_ticket_is_looked_for_during_a_rest_too(clock: FakeClock, real: Real) -> None:
    made = claimed(clock, FEW + 1)
    made.swept(0.5)
    made.learn((), {"default": 2})
    assert made.ranges(QUEUES).is_whole


def test_where_keys_take_turns_the_bounds_are_places_and_those_of_others_stay(
    clock: FakeClock,
) -> None:
    made = claimed(clock, 10)
    fair = [replace(job, queue="fair") for job in jobs(10)]
    turns = Turns(["fair"], {"fair": 7}, [("fair", 5, 300_000)])
    made.learn(fair, {"default": 0, "fair": 0}, turns=turns)
    ranges = made.ranges(["fair"])
    assert ranges.notes == "{7}"
    assert dict(zip(RANGES, ranges.arrays, strict=True))["from_place"].split(",")[1] == "300000"
    assert made.ranges(QUEUES).arrays != whole(QUEUES).arrays
