"""Sleepers under a clock that stands still: start one, and see it wake for the right reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from conformance.steps import soon
from conformance.stores import Store
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Exchange, News
from penstock.engines.waiting import WorkWaiter

LONG = 1e6
"""A timeout that no test lives to see."""
LOOKS = 1000
"""Exchanges after which a worker under a clock that stands still has shown that it cannot sleep."""


async def gives_in(engine: Engine, turn: Ask) -> Any:
    """In how many seconds an exchange gives something: 0 if this one did; None: it is unknown."""
    reply = await engine.exchange(turn)
    return 0 if reply.jobs or reply.cancels else reply.due_in


async def work(engine: Engine, turn: Ask, timeout: float) -> Exchange | None:
    """Sleep as a worker does until an exchange gives something, at most ``timeout`` seconds."""
    waiter = WorkWaiter(engine)
    deadline = engine.clock.monotonic() + timeout
    for _ in range(LOOKS):
        left = deadline - engine.clock.monotonic()
        if left <= 0:
            return None
        seen = await waiter.before(turn, runs_dry=True)
        reply = await engine.exchange(turn)
        if reply.jobs or reply.cancels:
            return reply
        waiter.after(turn, seen, reply)
        await waiter.sleep(left)
    raise AssertionError("it asks again and again instead of sleeping")


async def breathe(turns: int = 50) -> None:
    """Let everything else on this loop go on until it can go no further."""
    for _ in range(turns):
        await asyncio.sleep(0)


@asynccontextmanager
async def asleep(sleeping: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Start a sleeper and give it time to fall asleep; it must not wake by itself."""
    nap = asyncio.create_task(sleeping)
    try:
        await breathe()
        assert not nap.done(), "it did not sleep"
        yield nap
    finally:
        nap.cancel()
        await asyncio.gather(nap, return_exceptions=True)


async def sleeps_through(engine: Engine, nap: asyncio.Task[Any], commit: Awaitable[Any]) -> None:
    """Whoever listens on this handle hears the commit, but this sleeper lies down again."""
    seen = await engine.version(News.CHANGED)
    await commit
    await soon(engine.listen(News.CHANGED, seen, LONG))
    for _ in range(3):
        # A call of the same handle comes back after what the sleeper asked before it.
        await engine.version(News.CHANGED)
        await breathe()
    assert not nap.done(), "it woke for nothing"


async def awake_after(store: Store, nap: asyncio.Task[Any], seconds: float) -> None:
    """Move the clock; the sleeper must wake."""
    store.clock.advance(seconds)
    await soon(_nudged(store, nap))


async def _nudged(store: Store, nap: asyncio.Task[Any]) -> None:
    # A sleeper that measured before the clock moved may fall asleep only now.
    while not nap.done():
        await asyncio.sleep(0)
        store.clock.advance(0.01)
    await nap
