"""Calls to the store: how long one may take, how often it is tried, how long to wait in between.

Time limits are kept by one task for all calls, on the engine's clock. It looks at them a few times
per limit and ends a call that it has seen too often. Because it counts looks, not instants, a
process that was stopped, or a clock that leapt, costs a call one look and not its life. The task
exists only while there are calls, and ends at the next look after the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import random
from typing import Final, TypeVar

from penstock.clock import Clock
from penstock.engines.engine import Engine
from penstock.errors import EngineTimeout, EngineUnavailable

LOOKS: Final = 4
"""Per time limit: a call ends after the limit, and at most a quarter of it later."""
FIRST: Final = 0.05
LONGEST: Final = 5.0
"""Seconds: the first wait between two tries, and the longest."""

Result = TypeVar("Result")
OnFault = Callable[[str, EngineUnavailable, int, float | None], None]
"""Called after each failed try: the verb, its error, how often it was tried, the wait until the
next try; None: there is none."""


class Backoff:
    """Waits that double from ``first`` to ``longest`` seconds, each of them half left to chance, so
    that processes which failed together do not come back together.
    """

    def __init__(
        self,
        longest: float = LONGEST,
        chance: Callable[[], float] = random,
        *,
        first: float = FIRST,
    ) -> None:
        self._first = first
        self._longest = longest
        self._chance = chance
        self.failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        wait = min(self._longest, self._first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return wait * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """The next failure is the first one again."""
        self.failures = 0


class Retrying:
    """Runs calls with a time limit, and repeats those that may be repeated."""

    def __init__(
        self,
        engine: str,
        clock: Clock,
        on_fault: OnFault,
        *,
        timeout: float,
        tries: int,
        backoff: float,
        max_backoff: float,
    ) -> None:
        self._interval = timeout / LOOKS
        self._engine = engine
        self._clock = clock
        self._on_fault = on_fault
        self._tries = tries
        self._backoff = backoff
        self._max_backoff = max_backoff
        self._looks_left: dict[asyncio.Timeout, float] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._is_over = False

    async def run(
        self,
        verb: str,
        call: Callable[[], Awaitable[Result]],
        limit: float | None,
        *,
        again: bool,
        outlast: float = 0.0,
    ) -> Result:
        """Call. With ``again``, after ``EngineUnavailable`` call again after an ever longer wait;
        ``outlast`` is for how many seconds at least.

        On failure: the last try's error; ``EngineTimeout`` if it took more than ``limit`` seconds.
        """
        deadline = self._clock.monotonic() + outlast
        backoff: Backoff | None = None
        while True:
            try:
                return await self._limited(verb, call, limit)
            except EngineUnavailable as error:
                backoff = backoff or Backoff(self._max_backoff, first=self._backoff)
                tried, wait = backoff.failures + 1, backoff.next()
                is_last = tried >= self._tries and self._clock.monotonic() >= deadline
                delay = wait if again and not is_last else None
                self._on_fault(verb, error, tried, delay)
                if delay is None:
                    raise
            await self._clock.sleep(delay)

    def begin(self) -> None:
        """Watch calls (again)."""
        self._is_over = False

    async def end(self) -> None:
        """Watch no more calls; those under way have no limit any more."""
        self._is_over = True
        if self._watcher is not None and not self._watcher.done():
            self._watcher.cancel()
            await asyncio.wait([self._watcher])

    async def _limited(
        self, verb: str, call: Callable[[], Awaitable[Result]], limit: float | None
    ) -> Result:
        if limit is None or self._is_over:
            return await call()
        mine = asyncio.timeout(None)
        try:
            async with mine:
                # So many looks later, at least ``limit`` seconds have passed.
                self._looks_left[mine] = limit / self._interval + 1
                if self._watcher is None or self._watcher.done():
                    self._watcher = asyncio.create_task(self._watch(), name="penstock time limits")
                return await call()
        except TimeoutError as error:
            if not mine.expired():
                raise
            raise EngineTimeout(self._engine, f"{verb} took more than {limit:g} s") from error
        finally:
            self._looks_left.pop(mine, None)

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(self._interval)
            if not self._looks_left:
                return
            for call, left in list(self._looks_left.items()):
                if left > 1:
                    self._looks_left[call] = left - 1
                else:
                    del self._looks_left[call]
                    call.reschedule(asyncio.get_running_loop().time())


async def open_patiently(
    engine: Engine,
    clock: Clock,
    complain: Callable[[str, EngineUnavailable], None],
    unless: asyncio.Event | None = None,
) -> bool:
    """Open a handle, however long the store is away; any other error is raised.

    ``complain`` hears of each try that failed. False: ``unless`` was set before it could be opened.
    """
    backoff = Backoff()
    unless = unless or asyncio.Event()
    while not unless.is_set():
        try:
            await engine.open()
            return True
        except EngineUnavailable as error:
            complain("open", error)
            await clock.wait(unless, backoff.next())
    return False
