"""One attempt on its way through what surrounds its handler, and back.

    middleware  >  arguments decoded  >  dependencies made  >  the handler
    middleware  <                        dependencies left  <

It is written once, as a coroutine. For a sync task nothing in it ever waits: a thread takes it to
its end in one step.

Nothing but the handler, and the way to it on a loop, can be stopped. In a thread all else is
outside the window; on a loop ``is_cleaning`` tells that the way back has begun. What the attempt
was asked when the way back began decides how it ends; what comes later comes too late, except that
a clean-up which had to be cancelled is no success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from inspect import iscoroutine
from typing import Any

from penstock.context import Interrupted, Signal
from penstock.core.hooks import MIDDLEWARE, Function, Manner, name_of
from penstock.core.needs import DEPENDENCY, Step, not_awaited
from penstock.worker.attempt import Attempt, Ending
from penstock.worker.visit import Visit


class Passage:
    """The way of one attempt. Afterwards ``value``, ``error`` and ``ending`` say how it went.

    ``returned`` is called when the handler has ended, before anything cleans up.
    """

    __slots__ = ("_attempt", "_is_stopped", "_returned", "ending", "error", "value")

    def __init__(self, attempt: Attempt, returned: Callable[[], None]) -> None:
        self._attempt = attempt
        self._returned = returned
        self._is_stopped = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.ending: Ending | None = None
        """Why we ended it; None: it ended by itself."""

    def step(self) -> None:
        """Go all the way in this thread, for a sync task."""
        try:
            self.go().send(None)
        except StopIteration:
            return
        raise AssertionError("something waited on the way of a sync task")

    async def go(self) -> None:
        """Go all the way. Never raises."""
        visits = await self._enter()
        if self.error is None:
            await self._serve()
        await self._turn()
        while visits:
            error = self.error
            self.error = await visits.pop().leave(self.value, error)
            if error is not None or self.error is not None:
                self.value = None
        if self.error is None and not self._is_stopped:
            self.ending = None
        elif isinstance(self.error, asyncio.CancelledError):
            self.ending = self._attempt.ending

    # --- middleware ----------------------------------------------------------------------------

    async def _enter(self) -> list[Visit]:
        """Begin what wraps the attempt, the first declared first."""
        spec = self._attempt.spec
        visits: list[Visit] = []
        try:
            for hook in spec.hooks.middleware:
                if hook.manner is Manner.AWAIT_YIELD and not spec.is_async:
                    continue
                visit = Visit(hook.function(self._attempt.context), hook.name, MIDDLEWARE)
                await visit.enter()
                visits.append(visit)
        except BaseException as error:
            self.error = error
        return visits

    # --- dependencies and the handler ----------------------------------------------------------

    async def _serve(self) -> None:
        """Make what the handler needs, call it, and clean up."""
        attempt = self._attempt
        spec, visits = attempt.spec, list[Visit]()
        try:
            call = spec.signature.decode(attempt.job.payload, attempt.context)
            plan = spec.signature.plan
            if plan.steps and spec.hooks.overrides:
                plan = spec.signature.plan_with(spec.hooks.overrides)
            if not spec.is_async:
                plan.refuse_async(spec.name)
            made: dict[Function, Any] = {}
            for step in plan.steps:
                made[step.maker] = await self._make(step, made, visits)
            args, kwargs = spec.signature.fill(call, made, plan)
            if attempt.ending is not None:
                raise Interrupted
            if spec.is_async:
                value = await spec.function(*args, **kwargs)
                if attempt.is_out_of_time:
                    raise Interrupted
                self.value = value
            else:
                self.value = attempt.window.call(spec.function, args, kwargs)
        except BaseException as error:
            self.error = error
        self._returned()
        await self._turn()
        while visits:
            # One that swallows the error has cleaned up, no more: the attempt ends with it.
            self.error = await visits.pop().leave(None, self.error) or self.error

    async def _make(self, step: Step, made: dict[Function, Any], visits: list[Visit]) -> Any:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for filling in step.fillings:
            value = self._attempt.context if filling.maker is None else made[filling.maker]
            if filling.by_place:
                args.append(value)
            else:
                kwargs[filling.name] = value
        found = step.maker(*args, **kwargs)
        if step.manner is Manner.AWAIT or iscoroutine(found):
            return await self._awaited(found, step)
        if not step.manner.cleans_up:
            return found
        visit = Visit(found, name_of(step.maker), DEPENDENCY)
        found = await visit.enter()
        visits.append(visit)
        return found

    async def _awaited(self, found: Coroutine[Any, Any, Any], step: Step) -> Any:
        """What a coroutine makes, also where only the call shows that it is one."""
        if not self._attempt.spec.is_async:
            found.close()
            raise not_awaited(step.maker, self._attempt.spec.name)
        return await found

    # --- the way back --------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Begin the way back, once: see how it ends, and let nobody cancel what cleans up."""
        attempt = self._attempt
        if attempt.is_cleaning:
            return
        attempt.is_cleaning = True
        self.ending = attempt.ending
        if self.ending is not None:
            is_raised = self.error is not None and not isinstance(self.error, Signal)
            self._is_stopped = is_raised or attempt.context.has_noticed
        if attempt.spec.is_async and not attempt.is_abandoned:
            await absorb_cancellation()


async def absorb_cancellation() -> None:
    """Take a cancellation that is on its way to this task's next wait."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        try:
            await asyncio.sleep(0)
        except (asyncio.CancelledError, GeneratorExit):
            pass
