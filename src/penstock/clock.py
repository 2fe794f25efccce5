"""Time: the only module that asks the operating system what time it is.

A wall clock says when (``now``), a monotonic one says how long (``monotonic``, ``wait``). The two
are never mixed: an instant may jump, a duration may not.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar


class Clock(ABC):
    """Where a process reads the time."""

    @abstractmethod
    def now(self) -> float:
        """Return seconds since 1970, UTC; may jump."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return seconds that only grow, at the speed of time."""

    @abstractmethod
    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """Sleep until ``event`` is set or ``timeout`` seconds have passed; True: set."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for a duration."""
        await self.wait(asyncio.Event(), seconds)


class SystemClock(Clock):
    """The machine's own clocks."""

    # The functions themselves: every attempt asks several times.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout):
                return await event.wait()
        except TimeoutError:
            return event.is_set()


# --- within -------------------------------------------------------------------------------------
#
# A time limit by the injected clock.


Answer = TypeVar("Answer")


async def within(clock: Clock, seconds: float, call: Coroutine[Any, Any, Answer]) -> Answer:
    """Await ``call`` for at most ``seconds``; then it is cancelled, and this raises TimeoutError.

    What the call raises is raised as it is.
    """
    done = asyncio.Event()
    answer: list[Answer] = []
    error: list[Exception] = []

    async def run() -> None:
        try:
            answer.append(await call)
        except Exception as trouble:
            error.append(trouble)
        finally:
            done.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        await clock.wait(done, seconds)
        task.cancel()
    if error:
        raise error[0]
    if not answer:
        raise TimeoutError(f"took longer than {seconds:g} s")
    return answer[0]
