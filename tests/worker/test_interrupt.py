"""The guard: a handler in a thread is hit while it runs, once, and nothing else ever is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.context import Interrupted
from penstock.worker.interrupt import NEVER, InterruptGuard


class Thread:
    """Calls one handler through a guard, and remembers how that ended."""

    def __init__(self, guard: InterruptGuard, handler: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.was_safe = False
        self._window = guard
        self._handler = handler
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._window.call(self._handler, (), {})
        except BaseException as error:
            self.error = error
        # Whatever is still on its way arrives in these steps.
        for _ in range(200):
            pass
        self.was_safe = True

    def ended(self) -> Thread:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self


def spin_until(event: threading.Event) -> None:
    while not event.is_set():
        pass


def test_a_handler_that_runs_is_interrupted():
    guard, started, never = InterruptGuard(), threading.Event(), threading.Event()

    def handler() -> None:
        started.set()
        spin_until(never)

    thread = Thread(guard, handler)
    assert started.wait(60)
    assert guard.interrupt()
    assert isinstance(thread.ended().error, Interrupted)
    assert thread.was_safe


def test_it_can_be_hit_only_once():
    guard, started, hit, go = (
        InterruptGuard(),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def handler() -> str:
        started.set()
        try:
            spin_until(go)
        except Interrupted:
            hit.set()
            spin_until(go)
        return "swallowed"

    thread = Thread(guard, handler)
    assert started.wait(60)
    assert guard.interrupt()
    assert hit.wait(60)
    assert not guard.interrupt()
    go.set()
    assert isinstance(thread.ended().error, Interrupted)
    assert thread.value is None


def test_what_it_raises_instead_is_raised_with_the_hit_as_its_context():
    guard, started, never = InterruptGuard(), threading.Event(), threading.Event()

    def handler() -> None:
        started.set()
        try:
            spin_until(never)
        finally:
            raise OSError("rollback failed")

    thread = Thread(guard, handler)
    assert started.wait(60)
    assert guard.interrupt()
    error = thread.ended().error
    assert isinstance(error, OSError)
    assert isinstance(error.__context__, Interrupted)


def test_before_and_after_the_handler_there_is_nobody_to_hit():
    guard = InterruptGuard()
    assert not guard.interrupt()
    assert Thread(guard, lambda: "done").ended().value == "done"
    assert not guard.interrupt()
    assert not NEVER.interrupt()


def test_what_the_handler_raises_by_itself_comes_out():
    def handler() -> None:
        raise ValueError("bad")

    assert isinstance(Thread(InterruptGuard(), handler).ended().error, ValueError)


@pytest.mark.parametrize("steps", [0, 1, 20, 300])
def test_a_hit_at_the_moment_of_the_end_is_a_hit_or_none(steps):
    """Either it came too late and the value stands, or the call ends interrupted: never both, and
    nothing after the call is hit.
    """
    hits = 0
    for round in range(500):
        guard, started = InterruptGuard(), threading.Event()

        def handler(started: threading.Event = started) -> str:
            started.set()
            for _ in range(steps):
                pass
            return "done"

        thread = Thread(guard, handler)
        started.wait(60)
        if round % 2:
            time.sleep(0)
        was_hit = guard.interrupt()
        thread.ended()
        hits += was_hit
        assert thread.was_safe
        assert (thread.value, type(thread.error)) == (
            (None, Interrupted) if was_hit else ("done", type(None))
        )
    assert hits < 500 or steps
