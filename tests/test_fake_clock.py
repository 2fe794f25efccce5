"""The fake clock: time moves when the test says so, on every loop and thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import BadOption
from penstock.testing import FakeClock


async def test_time_stands_still_until_it_is_advanced(clock):
    now, monotonic = clock.now(), clock.monotonic()
    await clock.settle()
    assert (clock.now(), clock.monotonic()) == (now, monotonic)

    clock.advance(90)

    assert (clock.now(), clock.monotonic()) == (now + 90, monotonic + 90)


async def test_a_jump_moves_only_the_wall_clock_and_wakes_nobody(clock):
    now, monotonic = clock.now(), clock.monotonic()
    sleeping = asyncio.create_task(clock.sleep(10))
    await clock.asleep()

    clock.jump(-3600)
    await clock.settle()

    assert (clock.now(), clock.monotonic()) == (now - 3600, monotonic)
    assert not sleeping.done()
    clock.advance(10)
    await sleeping


async def test_time_does_not_go_back(clock):
    with pytest.raises(BadOption) as error:
        clock.advance(-1)

    assert str(error.value) == "seconds=-1: time only passes; use jump to set the wall clock"


async def test_a_sleeper_wakes_when_its_time_has_come_and_not_before(clock):
    sleeping = asyncio.create_task(clock.wait(asyncio.Event(), 60))
    await clock.asleep()

    clock.advance(59.9)
    await clock.settle()
    assert not sleeping.done()
    clock.advance(0.1)

    assert await sleeping is False


async def test_a_sleeper_wakes_when_its_event_is_set(clock):
    event = asyncio.Event()
    sleeping = asyncio.create_task(clock.wait(event, 60))
    await clock.asleep()

    event.set()

    assert await sleeping is True
    clock.advance(60)
    await clock.settle()


async def test_an_event_that_is_set_already_needs_no_sleep(clock):
    event = asyncio.Event()
    event.set()

    assert await clock.wait(event, 60) is True
    assert await clock.wait(event, None) is True


@pytest.mark.parametrize("timeout", [0, -5])
async def test_no_time_to_wait_is_over_at_once(clock, timeout):
    assert await clock.wait(asyncio.Event(), timeout) is False


async def test_without_a_timeout_only_the_event_ends_the_wait(clock):
    event = asyncio.Event()
    sleeping = asyncio.create_task(clock.wait(event, None))
    await clock.settle()

    clock.advance(1e9)
    await clock.settle()
    assert not sleeping.done()
    event.set()

    assert await sleeping is True


async def test_sleepers_wake_in_the_order_of_their_instants(clock):
    order: list[float] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        order.append(seconds)

    sleeping = [asyncio.create_task(sleeper(seconds)) for seconds in (30, 10, 20)]
    await clock.asleep(3)
    clock.advance(100)
    await asyncio.gather(*sleeping)

    assert order == [10, 20, 30]


async def test_small_steps_add_up(clock):
    """Floating point keeps nobody asleep: three steps of 0.3 s fall a little short of 0.9 s."""
    start = clock.monotonic()
    sleeping = asyncio.create_task(clock.sleep(0.9))
    await clock.asleep()

    for _ in range(3):
        clock.advance(0.3)

    assert clock.monotonic() < start + 0.9
    await sleeping


async def test_a_cancelled_sleeper_sleeps_no_more(clock):
    sleeping = asyncio.create_task(clock.sleep(60))
    await clock.asleep()

    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping

    watching = asyncio.create_task(clock.asleep())
    await clock.settle()
    assert not watching.done()
    watching.cancel()


async def test_a_leap_wakes_a_loop_once_and_living_through_it_every_time(clock):
    woken: list[float] = []

    async def tick() -> None:
        while True:
            await clock.sleep(1)
            woken.append(clock.monotonic())

    start = clock.monotonic()
    ticking = asyncio.create_task(tick())
    await clock.asleep()

    clock.advance(3)
    await clock.settle()
    assert woken == [start + 3]
    await clock.elapse(3)
    assert woken == [start + 3, start + 4, start + 5, start + 6]
    assert clock.monotonic() == start + 6

    ticking.cancel()


async def test_waiting_for_sleepers_ends_when_enough_of_them_sleep(clock):
    watching = asyncio.create_task(clock.asleep(2))
    first = asyncio.create_task(clock.sleep(1))
    await clock.settle()
    assert not watching.done()

    second = asyncio.create_task(clock.sleep(1))

    await watching
    clock.advance(1)
    await asyncio.gather(first, second)


def test_sleepers_on_other_loops_are_woken_from_any_thread():
    clock = FakeClock()
    woken: list[int] = []

    async def sleeper(number: int) -> None:
        await clock.sleep(60)
        woken.append(number)

    threads = [
        threading.Thread(target=lambda number=number: asyncio.run(sleeper(number)))
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    asyncio.run(asyncio.wait_for(clock.asleep(5), 20))

    clock.advance(60)
    for thread in threads:
        thread.join(20)

    assert sorted(woken) == [0, 1, 2, 3, 4]


def test_a_sleeper_whose_loop_has_ended_is_forgotten():
    clock = FakeClock()

    async def leave_asleep() -> None:
        sleeping = asyncio.create_task(clock.sleep(60))
        await clock.asleep()
        del sleeping

    asyncio.run(leave_asleep())

    clock.advance(60)
