"""The mailbox: what any thread posts is delivered on the loop, all of it, in order."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from penstock.mailbox import Mailbox


@pytest.fixture
def hasty_threads():
    """Threads that take turns far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def test_no_call_is_forgotten_however_many_threads_post(hasty_threads):
    mailbox = Mailbox(asyncio.get_running_loop())
    for _ in range(200):
        left, done = set(range(40)), asyncio.Event()

        def deliver(number: int, left: set[int] = left, done: asyncio.Event = done) -> None:
            left.remove(number)
            if not left:
                done.set()

        def post(numbers: range, deliver: Callable[[int], None] = deliver) -> None:
            for number in numbers:
                mailbox.post(partial(deliver, number))

        starts = range(0, 40, 10)
        threads = [threading.Thread(target=post, args=(range(at, at + 10),)) for at in starts]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(10):
            await done.wait()
        for thread in threads:
            thread.join()


async def test_calls_are_delivered_in_order_by_one_wake_up():
    mailbox = Mailbox(asyncio.get_running_loop())
    seen: list[object] = []
    for number in range(5):
        mailbox.post(partial(seen.append, number))
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [0, 1, 2, 3, 4]


async def test_a_call_posted_during_delivery_is_delivered_too():
    mailbox = Mailbox(asyncio.get_running_loop())
    seen: list[object] = []
    mailbox.post(lambda: mailbox.post(partial(seen.append, "second")))
    await asyncio.sleep(0)
    assert seen == ["second"]


def test_a_loop_that_is_closed_is_no_place_for_calls():
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            mailbox.post(print)


def test_whoever_interrupts_a_post_is_not_left_waiting_for_it():
    """A signal handler runs in the middle of a post; it may wait for its own call."""

    class Loop:
        wake_ups = 0

        def call_soon_threadsafe(self, deliver: Callable[[], None], context: object) -> None:
            self.wake_ups += 1
            if self.wake_ups == 1:
                mailbox.post(print)
                assert self.wake_ups == 2

    loop = Loop()
    mailbox = Mailbox(loop)  # type: ignore[arg-type]
    mailbox.post(print)
    mailbox.post(print)
    assert loop.wake_ups == 2
