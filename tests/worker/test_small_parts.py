"""The small parts of a worker: settings, back-off, deadlines, the store's time, sidecars."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import BadOption
from penstock.worker.attempt import Attempt
from penstock.worker.backoff import Backoff
from penstock.worker.deadlines import Deadlines
from penstock.worker.journal import Journal
from penstock.worker.settings import WorkerSettings
from penstock.worker.sidecar import Sidecar
from penstock.worker.stats import Stats
from penstock.worker.store_time import StoreTime
from worker.rig import soon, spec
from worker.test_pools import make_job

# --- settings -----------------------------------------------------------------------------------


def test_settings_that_make_no_sense_are_refused_with_their_name_and_value():
    for fields in (
        {"queues": ()},
        {"queues": ("a", "a")},
        {"queues": ("",)},
        {"concurrency": 0},
        {"threads": 0},
        {"prefetch": -1},
        {"lease": 0.0},
        {"poll": float("inf")},
        {"drain": float("nan")},
    ):
        ((name, value),) = fields.items()
        with pytest.raises(BadOption) as caught:
            WorkerSettings(**fields)
        assert str(caught.value).startswith(f"{name}={value!r}: ")


def test_beats_and_margin_follow_from_the_lease():
    settings = WorkerSettings(lease=30.0)

    assert (settings.beat_every, settings.margin) == (6.0, 6.0)


# --- back-off -----------------------------------------------------------------------------------


def test_waits_double_up_to_their_limit_and_start_again_after_a_success():
    backoff = Backoff(longest=1.0, chance=lambda: 1.0)

    assert [backoff.next() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next() == 0.05


def test_half_of_each_wait_is_left_to_chance():
    assert Backoff(chance=lambda: 0.0).next() == 0.025


def test_a_thousand_failures_are_no_overflow():
    backoff = Backoff(longest=5.0, chance=lambda: 1.0)
    assert max(backoff.next() for _ in range(2000)) == 5.0


# --- deadlines ----------------------------------------------------------------------------------


async def test_each_attempt_is_told_of_at_its_own_deadline(clock):
    passed: list[str] = []
    deadlines = Deadlines(clock, lambda attempt: passed.append(attempt.job.id))
    watching = asyncio.create_task(deadlines.run())

    def begin(id: str, timeout: float) -> Attempt:
        attempt = Attempt(make_job(id), spec(lambda: None, "work", timeout=timeout), 1, 0.0)
        attempt.started_at = clock.monotonic()
        deadlines.add(attempt)
        return attempt

    begin("long", 10.0)
    await clock.settle()
    begin("short", 2.0)
    over = begin("over", 3.0)
    deadlines.discard(over)
    await clock.elapse(1.9)
    assert passed == []
    await clock.elapse(0.2)
    assert passed == ["short"]
    begin("late", 2.0)
    await clock.elapse(20)
    assert passed == ["short", "late", "long"]
    watching.cancel()


# --- the store's time ---------------------------------------------------------------------------


def test_the_stores_time_goes_on_between_exchanges_whatever_the_wall_clock_does(clock):
    time = StoreTime(clock)
    assert time.now() == clock.now()

    time.told(5000.0)
    clock.advance(3)
    clock.jump(-86400)
    assert time.now() == 5003.0


# --- counters -----------------------------------------------------------------------------------


def test_a_status_line_shows_what_is_not_zero():
    assert str(Stats(claimed=3, failed=1)) == "claimed=3 failed=1"


# --- sidecars -----------------------------------------------------------------------------------


async def test_a_sidecar_lives_in_a_thread_of_its_own_and_ends_when_cancelled():
    thread, cleaned = [], threading.Event()
    started = asyncio.Event()
    outer = asyncio.get_running_loop()

    async def main() -> None:
        thread.append(threading.current_thread())
        outer.call_soon_threadsafe(started.set)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    task = asyncio.create_task(Sidecar("test", main, Journal()).run())
    await soon(started.wait())
    task.cancel()
    task.cancel()
    await soon(asyncio.wait([task]))

    assert task.cancelled()
    assert cleaned.is_set()
    assert thread[0] is not threading.current_thread()
    thread[0].join(20)


async def test_a_sidecar_that_fails_fails_its_task():
    async def main() -> None:
        raise ValueError("in the thread")

    with pytest.raises(ValueError, match="in the thread"):
        await soon(Sidecar("test", main, Journal()).run())


async def test_a_sidecar_that_is_stopped_before_it_began_never_begins():
    began = []

    async def main() -> None:
        began.append(1)
        await asyncio.Event().wait()

    task = asyncio.create_task(Sidecar("test", main, Journal()).run())
    task.cancel()
    await soon(asyncio.wait([task]))
    assert began == []
