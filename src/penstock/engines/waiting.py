"""Waiting for work and for results: one discipline over ``version`` and ``listen`` (law 11).

A caller reads the version, looks, and listens to what changed since that version. So a commit
between the look and the sleep ends the sleep at once. The look of a claimer is its exchange: one
that gave nothing is followed by sleep, without asking the store for anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.job import Job
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Exchange, News


class _Look(msgspec.Struct, frozen=True):
    """An exchange that gave nothing: what it asked for, and until when its answer is good."""

    wants: object
    kind: News
    seen: int
    due_at: float | None
    """When something falls due, on the monotonic clock; None: nothing that is known."""


class WorkWaiter:
    """The sleep of one claimer between its exchanges."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._look: _Look | None = None

    async def before(self, ask: Ask, *, runs_dry: bool) -> int | None:
        """Call it before each exchange, and pass the answer to ``after``.

        To read the version makes other processes send wake-ups, so it is for claimers that run dry.
        """
        self._look = None
        return await self._engine.version(_kind(ask)) if runs_dry else None

    def after(self, ask: Ask, seen: int | None, reply: Exchange) -> None:
        """The exchange is over; if it gave nothing, ``sleep`` may follow."""
        if seen is None or reply.jobs or reply.cancels:
            return
        due_at = None
        if reply.due_in is not None:
            due_at = self._engine.clock.monotonic() + reply.due_in
        self._look = _Look(_wants(ask), _kind(ask), seen, due_at)

    def has_looked_for(self, ask: Ask) -> bool:
        """The last exchange asked for the same and gave nothing: to ask again is of no use before
        ``sleep`` has ended.
        """
        return self._look is not None and self._look.wants == _wants(ask)

    async def sleep(self, timeout: float) -> bool:
        """Sleep until the store may have something, at most ``timeout`` seconds; True: it may."""
        look = self._look
        assert look is not None, "a claimer looks before it sleeps"
        clock = self._engine.clock
        if look.due_at is not None:
            due_in = max(0.0, look.due_at - clock.monotonic())
            if due_in <= timeout:
                await self._engine.listen(look.kind, look.seen, due_in)
                self._look = None
                return True
        ends_at = clock.monotonic() + timeout
        await self._engine.listen(look.kind, look.seen, timeout)
        self._look = None  # one that was interrupted goes on with the same look
        return clock.monotonic() < ends_at


def _kind(ask: Ask) -> News:
    return News.WORK if ask.want > 0 and ask.queues else News.CONTROL


def _wants(ask: Ask) -> object:
    """All that decides whether an exchange could give something."""
    return ask.want > 0, ask.slots > 0, frozenset(ask.queues), ask.avoid, ask.least_urgent, ask.told


async def wait_for_results(
    engine: Engine, ids: Sequence[str], timeout: float
) -> dict[str, Job | None]:
    """Wait until one of these jobs has ended or is gone (None), at most ``timeout`` seconds.

    Returns all that have; empty after a time-out.
    """
    deadline = engine.clock.monotonic() + timeout
    while True:
        seen = await engine.version(News.DONE) if timeout > 0 else 0
        jobs = dict(zip(ids, await engine.get(ids), strict=True))
        ended = {id: job for id, job in jobs.items() if job is None or job.state.is_final}
        left = deadline - engine.clock.monotonic()
        if ended or left <= 0:
            return ended
        await engine.listen(News.DONE, seen, left)
