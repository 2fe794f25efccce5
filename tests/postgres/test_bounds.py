"""Where a claimer begins to look: after what it has claimed, or at the start if that is cheap."""

from __future__ import annotations

import pytest

from penstock.core.job import Job, State
from penstock.engines.postgres import bounds
from penstock.engines.postgres.bounds import FEW, SWEEP, Bounds, whole
from penstock.engines.postgres.rows import Row
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
    made.learn((), 1, is_fair=False, swept=None)
    made.learn(jobs(count), 1, is_fair=False, swept=None)
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


def test_a_job_with_an_old_ticket_ends_all_bounds(clock: FakeClock) -> None:
    made = claimed(clock, 10)
    made.learn((), 2, is_fair=False, swept=None)
    assert made.ranges(QUEUES).is_whole


def test_a_dear_sweep_is_followed_by_a_rest(clock: FakeClock, real: Real) -> None:
    made = claimed(clock, FEW + 1)
    made.swept(0.5)
    clock.advance(SWEEP)
    ranges = made.ranges(QUEUES)
    assert not ranges.is_whole
    assert not ranges.sweeps
    assert made.narrow(QUEUES) is not None
    real.now += 0.5 * bounds.SHARE
    assert made.narrow(QUEUES) is None
    assert made.ranges(QUEUES).is_whole


def test_no_rest_is_longer_than_half_a_minute(clock: FakeClock, real: Real) -> None:
    made = claimed(clock, FEW + 1)
    made.swept(3600.0)
    real.now += bounds.REST
    assert not made.rests


def test_who_has_claimed_little_never_rests(clock: FakeClock, real: Real) -> None:
    """There is nothing to walk: whatever it took was something else."""
    made = claimed(clock, FEW)
    made.swept(0.5)
    assert not made.rests
    assert made.ranges(QUEUES).sweeps


def test_an_old_ticket_is_looked_for_during_a_rest_too(clock: FakeClock, real: Real) -> None:
    made = claimed(clock, FEW + 1)
    made.swept(0.5)
    made.learn((), 2, is_fair=False, swept=None)
    assert made.ranges(QUEUES).is_whole


def test_in_a_fair_queue_there_are_no_bounds(clock: FakeClock) -> None:
    made = claimed(clock, 10)
    made.learn(jobs(1, first=11), 1, is_fair=True, swept=None)
    assert made.ranges(QUEUES).is_whole


# --- floors -------------------------------------------------------------------------------------


def with_floors(clock: FakeClock, real: Real, floor: int = 100) -> Bounds:
    """The bounds of somebody for whom whole lines are dear, and who knows a floor."""
    made = claimed(clock, FEW + 1)
    made.swept(0.5)
    answers: list[Row] = [(floor, [], None), (floor, [], [floor])]
    for answer in answers:
        made.learn_floors(made.floors.question([("default", 5)]), answer)
    return made


def test_a_sweep_begins_at_the_floor(clock: FakeClock, real: Real) -> None:
    made = with_floors(clock, real)
    assert made.ranges(QUEUES).arrays[3] == f"{{{FIRST},{FEW + 1},{LAST}}}"
    assert made.ranges(QUEUES).floors == f"{{{FIRST},100,{FIRST}}}"
    assert made.ranges(QUEUES).sweeps
    clock.advance(SWEEP)
    ranges = made.ranges(QUEUES)
    assert ranges.has_floors
    assert ranges.is_whole
    assert not ranges.sweeps
    assert ranges.arrays[3] == f"{{{FIRST},100,{LAST}}}"


def test_a_line_without_a_floor_is_swept_from_its_start(clock: FakeClock, real: Real) -> None:
    made = with_floors(clock, real)
    made.learn(jobs(1, priority=7), 1, is_fair=False, swept=None)
    clock.advance(SWEEP)
    # Up to the fifth priority, that one from its floor, and all that are less urgent.
    assert made.ranges(QUEUES).arrays[3] == f"{{{FIRST},100,{LAST}}}"


def test_a_dear_sweep_from_floors_is_followed_by_a_rest_too(clock: FakeClock, real: Real) -> None:
    made = with_floors(clock, real)
    made.learn((), 1, is_fair=False, swept=0.01, has_floors=True)
    clock.advance(SWEEP)
    ranges = made.ranges(QUEUES)
    assert not ranges.is_whole
    assert not ranges.sweeps
    narrow = made.narrow(QUEUES)
    assert narrow is not None
    assert not narrow.has_floors
    real.now += 0.01 * bounds.FLOOR_SHARE
    narrow = made.narrow(QUEUES)
    assert narrow is not None
    assert narrow.has_floors
    assert made.ranges(QUEUES).has_floors


def test_with_floors_whole_lines_are_looked_at_seldom_and_at_last(
    clock: FakeClock, real: Real
) -> None:
    made = with_floors(clock, real)
    made.swept(0.5)
    clock.advance(SWEEP)
    real.now += 0.5 * bounds.SHARE
    assert made.ranges(QUEUES).has_floors
    real.now += bounds.SAFE_REST
    clock.advance(SWEEP)
    assert not made.ranges(QUEUES).has_floors


def test_nobody_begins_before_a_floor(clock: FakeClock, real: Real) -> None:
    """Others have claimed what is there."""
    made = with_floors(clock, real, floor=FEW + 500)
    assert made.ranges(QUEUES).arrays[3] == f"{{{FIRST},{FEW + 500},{LAST}}}"


def test_an_old_ticket_ends_all_floors(clock: FakeClock, real: Real) -> None:
    made = with_floors(clock, real)
    made.learn((), 2, is_fair=False, swept=0.001, has_floors=True)
    assert not made.floors
    assert made.ranges(QUEUES).is_whole


def test_what_is_found_before_a_bound_is_looked_for_from_the_floor(
    clock: FakeClock, real: Real
) -> None:
    made = with_floors(clock, real)
    made.look_again()
    assert made.ranges(QUEUES).arrays[3] == f"{{{FIRST},100,{LAST}}}"
    made.floors.forget()
    made.look_again()
    assert made.ranges(QUEUES).is_whole


def test_without_floors_no_rest_is_long(clock: FakeClock, real: Real) -> None:
    """What was to be found from them has to be found from the start."""
    made = with_floors(clock, real)
    made.learn((), 2, is_fair=False, swept=1.0, has_floors=True)
    made.learn(jobs(10), 2, is_fair=False, swept=None)
    assert made.rests
    real.now += bounds.SHARE * 1.0
    assert not made.rests
