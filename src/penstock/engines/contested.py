"""Items that somebody else keeps from being stored: tried again by themselves, off the line.

A transaction that is still open has an id or a key that an item needs. Whether the item is stored
depends on how that ends, so its caller waits; nobody else does. The items are tried one by one,
with a pause between rounds; of those that want the same thing only the first is tried until it has
its answer. A task exists only while somebody waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from penstock.clock import Clock
from penstock.errors import EngineUnavailable, ItemContested

T = TypeVar("T")
R = TypeVar("R")

PAUSES: Final = (0.05, 0.1, 0.2, 0.5)
"""Seconds between one round and the next; the last one is for all later rounds."""

Marks = Callable[[T], Iterable[Hashable]]
"""What an item needs for itself alone: its id, its unique key."""


@dataclass(eq=False, slots=True)
class _Waiting(Generic[T, R]):
    """An item, where its answer goes, and why it has none yet."""

    item: T
    answer: asyncio.Future[R]
    refusal: ItemContested
    marks: frozenset[Hashable]


class Contested(Generic[T, R]):
    """The items that wait for others to let go. Belongs to one event loop."""

    def __init__(
        self, send: Callable[[T], Awaitable[R]], marks: Marks[T], clock: Clock, name: str
    ) -> None:
        """``send`` tries one item; ``ItemContested``: still not now."""
        self._send = send
        self._marks = marks
        self._clock = clock
        self._name = name
        self._waiting: list[_Waiting[T, R]] = []
        self._trying: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Nobody waits here."""
        return not self._waiting

    def refusal(self, item: T) -> ItemContested | None:
        """Why there is no use in trying this item: one that waits here wants the same."""
        if self.is_empty:
            return None
        marks = frozenset(self._marks(item))
        return next((each.refusal for each in self._waiting if each.marks & marks), None)

    def has(self, answer: asyncio.Future[R]) -> bool:
        """Whether the item with this answer waits here."""
        return any(each.answer is answer for each in self._waiting)

    def enter(self, item: T, answer: asyncio.Future[R], refusal: ItemContested) -> None:
        """Let an item wait here for its answer; whoever cancels that takes it away."""
        self._waiting.append(_Waiting(item, answer, refusal, frozenset(self._marks(item))))
        self._go_on()

    async def close(self) -> None:
        """Try all once more without a pause; what still cannot be stored is refused."""
        self._closing.set()
        while self._trying is not None:
            await asyncio.wait([self._trying])

    def _go_on(self) -> None:
        if self._waiting and self._trying is None:
            self._trying = asyncio.create_task(self._try(), name="penstock contested")
            self._trying.add_done_callback(self._tried)

    async def _try(self) -> None:
        """Go round until nobody waits."""
        rounds = 0
        while self._waiting:
            pause = PAUSES[min(rounds, len(PAUSES) - 1)]
            is_last = await self._clock.wait(self._closing, pause)
            await self._round()
            rounds += 1
            if is_last:
                for each in self._waiting:
                    each.answer.set_exception(each.refusal)
                self._leave()

    async def _round(self) -> None:
        self._leave()
        tried: set[Hashable] = set()
        for each in self._waiting:
            if each.answer.done() or not tried.isdisjoint(each.marks):
                continue
            try:
                answer = await self._send(each.item)
            except ItemContested as refusal:
                each.refusal = refusal
                tried |= each.marks
            except Exception as error:
                if not each.answer.done():
                    each.answer.set_exception(error)
            else:
                if not each.answer.done():
                    each.answer.set_result(answer)
        self._leave()

    def _leave(self) -> None:
        """Those who have their answers, or want none any more, wait no longer."""
        self._waiting = [each for each in self._waiting if not each.answer.done()]

    def _tried(self, trying: asyncio.Task[None]) -> None:
        """Nobody waits, or somebody who has just come. If it was cut short, perhaps before its
        first step, the loop is going down with everything on it, and nobody may be left waiting.
        """
        self._trying = None
        if trying.cancelled() or trying.exception() is not None:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.answer.done():
                    each.answer.set_exception(unknown(self._name, asyncio.CancelledError()))
        self._go_on()


def unknown(name: str, error: BaseException) -> EngineUnavailable:
    """The error of callers whose send was cut short by something that is no answer."""
    unknown = EngineUnavailable(name, f"the call was cut short ({error!r}) and may have happened")
    unknown.__cause__ = error
    return unknown
