"""The mailbox: what any thread posts is delivered on the loop, all of it, in order."""

from __future__ import annotations

import asyncio
import sys
import threading
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
    """The last call of each round is posted when the box is just about to be found empty."""
    loop = asyncio.get_running_loop()
    mailbox, delivered = Mailbox(loop), 0
    for _ in range(300):
        done = asyncio.Event()

        def count(done: asyncio.Event = done) -> None:
            nonlocal delivered
            delivered += 1
            if delivered % 40 == 0:
                done.set()

        def post(count=count) -> None:
            for _ in range(10):
                mailbox.post(count)

        threads = [threading.Thread(target=post) for _ in range(4)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(10):
            await done.wait()
        for thread in threads:
            thread.join()


async def test_calls_are_delivered_in_order_by_one_wake_up():
    mailbox, seen = Mailbox(asyncio.get_running_loop()), []
    for number in range(5):
        mailbox.post(partial(seen.append, number))
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [0, 1, 2, 3, 4]


async def test_a_call_posted_during_delivery_is_delivered_too():
    mailbox, seen = Mailbox(asyncio.get_running_loop()), []
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
