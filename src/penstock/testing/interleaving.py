"""Of several coroutines, let one go on at a time, in an order that a seed decides.

A turn lasts from one ``await`` that really waits to the next. Before each turn every coroutine that
could go on has arrived, so the choice is among the same ones whenever the test is run again; those
that wait for something outside of the loop (the app's store, a thread) are waited for. The end of
any other wait, such as for a socket, is up to chance, and may make another order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from random import Random
from typing import Any, Final

TURNS: Final = 25
"""Turns of the loop in which coroutines that can go on arrive: a wake-up needs about three."""

Work = Coroutine[Any, Any, object]


class Interleaver:
    """Leads coroutines until all have ended. Belongs to one loop."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._live: set[int] = set()
        self._ready: dict[int, asyncio.Future[None]] = {}
        self._idle: dict[int, asyncio.Future[bool]] = {}
        self._outside: set[int] = set()
        self._current: int | None = None
        self._is_over = False
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.order: list[int] = []
        """The coroutines that had turns, by number."""

    async def lead(self, works: list[Work]) -> None:
        """Run coroutines to their ends. On failure: the first error; the others are cancelled."""
        self._live.update(range(len(works)))
        try:
            async with asyncio.TaskGroup() as group:
                for number, work in enumerate(works):
                    group.create_task(self._guided(number, work))
                group.create_task(self._conduct())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def step_outside(self) -> None:
        """The coroutine that has the turn is about to wait for something not on this loop."""
        if self._current is not None and _is_on(self._loop):
            self._outside.add(self._current)

    async def idle(self) -> bool:
        """Wait until another coroutine had a turn; False: none is left that could have one."""
        assert self._current is not None
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._idle[self._current] = waiter
        return await waiter

    # --- one coroutine -------------------------------------------------------------------------

    async def _guided(self, number: int, work: Work) -> None:
        try:
            await _Steps(work, lambda: self._turn(number), self._pass_on)
        finally:
            self._live.discard(number)
            for place in (self._ready, self._idle):
                place.pop(number, None)
            self._outside.discard(number)
            if self._current == number:
                self._current = None
            self._changed.set()

    async def _turn(self, number: int) -> None:
        """Wait for one's turn; once the interleaving has ended, there is nothing to wait for."""
        if self._is_over:
            return
        self._outside.discard(number)
        self._idle.pop(number, None)
        self._ready[number] = waiter = self._loop.create_future()
        self._changed.set()
        await waiter
        self._current = number

    def _pass_on(self) -> None:
        self._current = None
        self._changed.set()

    # --- all of them ---------------------------------------------------------------------------

    async def _conduct(self) -> None:
        try:
            while self._live:
                await self._next()
        finally:
            self._is_over = True

    async def _next(self) -> None:
        await self._arrive()
        if self._ready:
            chosen = self._random.choice(sorted(self._ready))
            self.order.append(chosen)
            self._ready.pop(chosen).set_result(None)
            await self._over()
            if chosen not in self._idle:  # else it has only looked
                self._look_again()
        elif self._idle and self._live == set(self._idle):
            for waiter in self._idle.values():
                waiter.set_result(False)
            self._idle.clear()
            await asyncio.sleep(0)
        else:
            await self._change()

    async def _arrive(self) -> None:
        """Let every coroutine arrive that can go on."""
        while True:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if not self._outside:
                return
            await self._change()

    async def _over(self) -> None:
        # The turn has to begin first.
        await asyncio.sleep(0)
        while self._current is not None:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _look_again(self) -> None:
        for number, waiter in list(self._idle.items()):
            del self._idle[number]
            if not waiter.done():
                waiter.set_result(True)


class _Steps:
    """Awaits a coroutine, and a turn before each of its steps."""

    def __init__(
        self, work: Work, turn: Callable[[], Awaitable[None]], over: Callable[[], None]
    ) -> None:
        self._work = work
        self._turn = turn
        self._over = over

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[Any], Any] = self._work.send
        sent: Any = None
        while True:
            if not isinstance(sent, asyncio.CancelledError):  # which lets it clean up at once
                try:
                    yield from self._turn().__await__()
                except BaseException as error:
                    sent, step = error, self._work.throw
            try:
                future = step(sent)
            except StopIteration:
                return
            finally:
                self._over()
            try:
                sent, step = (yield future), self._work.send
            except BaseException as error:
                sent, step = error, self._work.throw


def _is_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
