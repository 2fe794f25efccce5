"""A time limit by the injected clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.clock import Clock

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
