"""Start-up and shutdown: what an app's hooks do around the life of a worker."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from penstock.core.hooks import STARTUP, Hooks, Stage
from penstock.logs import say
from penstock.worker.visit import Visit

_log: Final = logging.getLogger("penstock.worker")


@asynccontextmanager
async def lifespan(hooks: Iterable[Hooks]) -> AsyncIterator[None]:
    """Start up, and shut down at the end whatever happens in between.

    Hooks run on this loop, in the order of their declaration, those of each app once. The end goes
    backwards: what comes after the yield of each that has started, and the shutdown hooks among
    them. An error there is logged, and the next one runs.
    On failure: what a start-up hook raises, after those before it are shut down.
    """
    begun: list[Stage | Visit] = []
    apps = list(dict.fromkeys(hooks))
    effects = [each.effects for each in apps if each.effects is not None]
    for each in effects:
        each.join()
    try:
        for stage in [stage for each in apps for stage in each.stages]:
            if stage.at_end:
                begun.append(stage)
            elif stage.manner.cleans_up:
                visit = Visit(stage.function(), stage.name, STARTUP)
                await visit.enter()
                begun.append(visit)
            else:
                await _call(stage)
        yield
    finally:
        try:
            await _end_all(begun)
        finally:
            for each in effects:
                await each.leave()


async def _end_all(begun: list[Stage | Visit]) -> None:
    """End each, the latest first; then raise what is no mere error, such as a cancellation."""
    grave: BaseException | None = None
    while begun:
        stage = begun.pop()
        error = await _end(stage)
        if error is not None:
            say(_log, logging.ERROR, "shutdown hook failed", exc_info=error, hook=stage.name)
        if not isinstance(error, Exception):
            grave = grave or error
    if grave is not None:
        raise grave


async def _end(stage: Stage | Visit) -> BaseException | None:
    """What it raises; None: nothing."""
    if isinstance(stage, Visit):
        return await stage.leave()
    try:
        await _call(stage)
    except BaseException as error:
        return error
    return None


async def _call(stage: Stage) -> None:
    found = stage.function()
    if inspect.isawaitable(found):
        await found
