"""What surrounds a handler: middleware, dependencies, and the start-up and shutdown of an app.

    middleware  >  arguments decoded  >  dependencies made  >  the handler
    middleware  <                        dependencies left  <

A call is written once, as a coroutine. For a sync task nothing in it ever waits: a thread takes it
to its end in one step.

Nothing but the handler, and the way to it on a loop, can be stopped: in a thread all else is out of
the guard, on a loop ``is_cleaning`` tells that the clean-up has begun. What the attempt was asked
when the clean-up began decides how it ends; what comes later comes too late, except that a clean-up
which had to be cancelled is no success.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager
from inspect import iscoroutine
from typing import Any, Final

from penstock.context import Interrupted, Signal
from penstock.core.hooks import MIDDLEWARE, STARTUP, Function, Hooks, Manner, Stage, name_of
from penstock.core.injection import DEPENDENCY, Step, not_awaited
from penstock.errors import BadHook
from penstock.logs import say
from penstock.worker.inflight import Attempt, Ending

_END: Final = (StopIteration, StopAsyncIteration)

_log: Final = logging.getLogger("penstock.worker")


class YieldingHook:
    """One run of a generator with one yield, sync or async; with a sync one nothing here waits."""

    __slots__ = ("_generator", "_role", "name")

    def __init__(
        self, generator: Generator[Any, Any, Any] | AsyncGenerator[Any, Any], name: str, role: str
    ) -> None:
        self._generator = generator
        self.name = name
        self._role = role

    async def enter(self) -> Any:
        """Run it to its yield and return what it yields.

        On failure: what it raises; BadHook if it ends before.
        """
        try:
            if isinstance(self._generator, AsyncGenerator):
                return await anext(self._generator)
            return next(self._generator)
        except _END:
            why = "it ended without a yield; let it yield once, whatever happens before"
            raise BadHook(self.name, self._role, why) from None

    async def leave(
        self, value: object = None, error: BaseException | None = None
    ) -> BaseException | None:
        """Run it to its end: from its yield it gets ``value``, or ``error`` raised there.

        Returns what it raises, which may be that same ``error``; None if nothing. So an error that
        a coroutine cannot raise, StopIteration, passes unchanged.
        """
        trace = None if error is None else error.__traceback__
        generator = self._generator
        try:
            if isinstance(generator, AsyncGenerator):
                await (generator.asend(value) if error is None else generator.athrow(error))
            elif error is None:
                generator.send(value)
            else:
                generator.throw(error)
        except _END:
            return None
        except BaseException as raised:
            if error is not None and (raised is error or _is_veiled(raised, error)):
                return error.with_traceback(trace)  # without the way through here
            return raised
        await self._close()
        why = "it yielded twice; let it yield once, and clean up after that"
        return BadHook(self.name, self._role, why)

    async def _close(self) -> None:
        try:
            if isinstance(self._generator, AsyncGenerator):
                await self._generator.aclose()
            else:
                self._generator.close()
        except BaseException:
            pass  # that it yielded twice is told already


def _is_veiled(raised: BaseException, error: BaseException) -> bool:
    """It is what Python makes of a StopIteration that leaves a generator."""
    return (
        isinstance(raised, RuntimeError) and isinstance(error, _END) and raised.__cause__ is error
    )


class WrappedCall:
    """One attempt with its middleware and dependencies. Afterwards ``value``, ``error`` and
    ``ending`` say how it went.

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

    def run_sync(self) -> None:
        """Run it in this thread, for a sync task."""
        try:
            self.run().send(None)
        except StopIteration:
            return
        raise AssertionError("something waited in the call of a sync task")

    async def run(self) -> None:
        """Run it to its end. Never raises."""
        entered = await self._enter()
        if self.error is None:
            await self._call_handler()
        await self._begin_cleanup()
        while entered:
            error = self.error
            self.error = await entered.pop().leave(self.value, error)
            if error is not None or self.error is not None:
                self.value = None
        if self.error is None and not self._is_stopped:
            self.ending = None
        elif isinstance(self.error, asyncio.CancelledError):
            self.ending = self._attempt.ending

    # --- middleware ----------------------------------------------------------------------------

    async def _enter(self) -> list[YieldingHook]:
        spec = self._attempt.spec
        entered: list[YieldingHook] = []
        try:
            for hook in spec.hooks.middleware:
                if hook.manner is Manner.AWAIT_YIELD and not spec.is_async:
                    continue
                entering = YieldingHook(hook.function(self._attempt.context), hook.name, MIDDLEWARE)
                await entering.enter()
                entered.append(entering)
        except BaseException as error:
            self.error = error
        return entered

    # --- dependencies and the handler ----------------------------------------------------------

    async def _call_handler(self) -> None:
        attempt = self._attempt
        spec, entered = attempt.spec, list[YieldingHook]()
        try:
            call = spec.signature.decode(attempt.job.payload, attempt.context)
            plan = spec.signature.plan
            if plan.steps and spec.hooks.overrides:
                plan = spec.signature.plan_with(spec.hooks.overrides)
            if not spec.is_async:
                plan.refuse_async(spec.name)
            made: dict[Function, Any] = {}
            for step in plan.steps:
                made[step.maker] = await self._make(step, made, entered)
            args, kwargs = spec.signature.fill(call, made, plan)
            if attempt.ending is not None:
                raise Interrupted
            if spec.is_async:
                value = await spec.function(*args, **kwargs)
                if attempt.is_out_of_time:
                    raise Interrupted
                self.value = value
            else:
                self.value = attempt.guard.call(spec.function, args, kwargs)
        except BaseException as error:
            self.error = error
        self._returned()
        await self._begin_cleanup()
        while entered:
            # One that swallows the error has cleaned up, no more: the attempt ends with it.
            self.error = await entered.pop().leave(None, self.error) or self.error

    async def _make(
        self, step: Step, made: dict[Function, Any], entered: list[YieldingHook]
    ) -> Any:
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
        hook = YieldingHook(found, name_of(step.maker), DEPENDENCY)
        found = await hook.enter()
        entered.append(hook)
        return found

    async def _awaited(self, found: Coroutine[Any, Any, Any], step: Step) -> Any:
        """What a coroutine makes, also where only the call shows that it is one."""
        if not self._attempt.spec.is_async:
            found.close()
            raise not_awaited(step.maker, self._attempt.spec.name)
        return await found

    # --- the clean-up --------------------------------------------------------------------------

    async def _begin_cleanup(self) -> None:
        """Begin the clean-up, once: see how it ends, and let no cancellation reach it."""
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


@asynccontextmanager
async def lifespan(hooks: Iterable[Hooks]) -> AsyncIterator[None]:
    """Start up, and shut down at the end whatever happens in between.

    Hooks run on this loop, in the order of their declaration, those of each app once. The end goes
    backwards: what comes after the yield of each that has started, and the shutdown hooks among
    them. An error there is logged, and the next one runs.
    On failure: what a start-up hook raises, after those before it are shut down.
    """
    begun: list[Stage | YieldingHook] = []
    apps = list(dict.fromkeys(hooks))
    effects = [each.effects for each in apps if each.effects is not None]
    for each in effects:
        each.join()
    try:
        for stage in [stage for each in apps for stage in each.stages]:
            if stage.at_end:
                begun.append(stage)
            elif stage.manner.cleans_up:
                hook = YieldingHook(stage.function(), stage.name, STARTUP)
                await hook.enter()
                begun.append(hook)
            else:
                await _call(stage)
        yield
    finally:
        try:
            await _end_all(begun)
        finally:
            for each in effects:
                await each.leave()


async def _end_all(begun: list[Stage | YieldingHook]) -> None:
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


async def _end(stage: Stage | YieldingHook) -> BaseException | None:
    if isinstance(stage, YieldingHook):
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
