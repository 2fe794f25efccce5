"""The small parts of a worker: settings, back-off, alarms, the store's time, side_thread."""

from __future__ import annotations

import asyncio
import threading
from types import ModuleType

import pytest

from penstock import INJECTED
from penstock.engines.retrying import Backoff
from penstock.errors import BadOption
from penstock.worker.child.find_task import find_spec
from penstock.worker.deadlines import DeadlineKind, Deadlines
from penstock.worker.inflight import Attempt
from penstock.worker.log import WorkerLog
from penstock.worker.settings import WorkerSettings
from penstock.worker.side_thread import SideThread
from penstock.worker.status import NoParent, Stats, StoreTime
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


def deadlines_of(clock) -> tuple[Deadlines, list[tuple[str, DeadlineKind]]]:
    """Deadlines, and which of them have passed."""
    deadlines = Deadlines(clock, WorkerSettings(), WorkerLog(), NoParent())
    passed: list[tuple[str, DeadlineKind]] = []
    deadlines._passed = (  # type: ignore[method-assign]
        lambda attempt, kind: passed.append((attempt.job.id, kind))
    )
    return deadlines, passed


async def test_each_deadline_passes_at_its_instant_unless_its_attempt_has_ended(clock):
    deadlines, passed = deadlines_of(clock)
    watching = asyncio.create_task(deadlines.run())

    def set(id: str, seconds: float, kind: DeadlineKind = DeadlineKind.TIMEOUT) -> Attempt:
        attempt = Attempt(make_job(id), spec(lambda: None, "work"), 1, 0.0)
        deadlines._set(attempt, clock.monotonic() + seconds, kind)
        return attempt

    set("long", 10.0)
    await clock.settle()
    set("short", 2.0, DeadlineKind.STALL)
    deadlines.forget(set("over", 3.0))
    await clock.elapse(1.9)
    assert passed == []
    await clock.elapse(0.2)
    assert passed == [("short", DeadlineKind.STALL)]
    set("late", 2.0)
    await clock.elapse(20)
    assert [id for id, _ in passed] == ["short", "late", "long"]
    watching.cancel()


async def test_deadlines_of_attempts_that_have_ended_do_not_pile_up(clock):
    deadlines, _ = deadlines_of(clock)
    for number in range(1000):
        attempt = Attempt(make_job(str(number)), spec(lambda: None, "work"), 1, 0.0)
        deadlines._set(attempt, 100.0, DeadlineKind.TIMEOUT)
        deadlines._set(attempt, 200.0, DeadlineKind.STALL)
        deadlines.forget(attempt)
    assert len(deadlines._heap) < 100
    assert not deadlines._of


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
    assert Stats(claimed=3, failed=1).counted() == {"claimed": 3, "failed": 1}


# --- side thread ----------------------------------------------------------------------------------


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

    task = asyncio.create_task(SideThread("test", main, WorkerLog()).run())
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
        await soon(SideThread("test", main, WorkerLog()).run())


async def test_a_sidecar_that_is_stopped_before_it_began_never_begins():
    began = []

    async def main() -> None:
        began.append(1)
        await asyncio.Event().wait()

    task = asyncio.create_task(SideThread("test", main, WorkerLog()).run())
    task.cancel()
    await soon(asyncio.wait([task]))
    assert began == []


def test_a_child_that_looks_for_a_task_passes_over_what_only_stands_for_something() -> None:
    """Most modules of tasks have such a proxy: the default of a ``Context`` parameter."""
    module = ModuleType("shop")
    vars(module).update(INJECTED=INJECTED, ctx=INJECTED)
    with pytest.raises(LookupError, match="shop has no task 'send'"):
        find_spec(module, "send", "send")
