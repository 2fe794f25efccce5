"""Batching without waiting: what arrives while a batch is in flight is sent as the next one.

This is group commit, without a timer. An item that finds nothing in flight is sent at once, alone,
by its own caller; the more arrive meanwhile, the larger the next batch. One send is in flight at a
time, and a task exists only while there is something to send.

An item is *contested* while an open transaction of another process has an id or a key that it
needs: whether it is stored depends on how that ends. Its caller waits, no other does. Contested
items are tried one by one, with a pause between rounds; of those that want the same thing only the
first is tried until it has its answer.

What a caller can rely on

| if                                     | then                                                   |
|----------------------------------------|--------------------------------------------------------|
| an item of the batch is refused        | the batch is halved until it stands alone; only its    |
|                                        | caller gets the ``ItemRefused`` (law 10)               |
| an item is contested                   | it is taken out and tried again by itself until its    |
|                                        | caller gives up; the others go on                      |
| the send fails in any other way        | every caller of that batch gets the error              |
| a caller is cancelled                  | its item is sent or not; its neighbours notice nothing |
| the send or the flusher is cancelled   | callers get ``EngineUnavailable``: it may have happened |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.errors import EngineClosed, EngineUnavailable, ItemContested, ItemRefused

T = TypeVar("T")
R = TypeVar("R")

PAUSES: Final = (0.05, 0.1, 0.2, 0.5)
"""Seconds between one round and the next; the last one is for all later rounds."""

Marks = Callable[[T], Iterable[Hashable]]
"""What an item needs for itself alone: its id, its unique key."""


Send = Callable[[Sequence[T]], Awaitable[Sequence[R]]]
"""Sends a batch; returns one answer per item, in order."""


async def halved(send: Send[T, R], items: Sequence[T]) -> list[R | ItemRefused]:
    """Send a batch; if it is refused send its halves, until each culprit stands alone.

    Returns each item's answer, or its refusal, in order. Sends one piece at a time, the first items
    first. On failure: any other error ends it; what was sent before that stays sent.
    """
    try:
        return list(await send(items))
    except ItemRefused as refusal:
        if len(items) <= 1:
            return [refusal for _ in items]
    middle = len(items) // 2
    return [*await halved(send, items[:middle]), *await halved(send, items[middle:])]


class _Queued(NamedTuple, Generic[T, R]):
    """An item in line, and where its answer goes."""

    item: T
    weight: int
    answer: asyncio.Future[R]


class Batcher(Generic[T, R]):
    """Sends single items in batches; belongs to one event loop.

    A batch has at most ``max_items`` items and, where ``weigh`` is given, ``max_bytes`` bytes; an
    item that is heavier goes alone. ``marks`` says what an item needs for itself alone: while one
    of those is contested, no other item with it is tried. ``name`` is what errors call it.
    """

    def __init__(
        self,
        send: Send[T, R],
        *,
        max_items: int = 500,
        max_bytes: int = 4 << 20,
        weigh: Callable[[T], int] | None = None,
        marks: Marks[T] = lambda _: (),
        name: str = "the batcher",
        clock: Clock | None = None,
    ) -> None:
        self._send = send
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._weigh = weigh
        self._name = name
        self._line: deque[_Queued[T, R]] = deque()
        self._in_flight = False
        self._flusher: asyncio.Task[None] | None = None
        self._is_closed = False
        self._idle = asyncio.Event()
        self._contested: ContestedItems[T, R] = ContestedItems(
            self._sent_alone, marks, clock or SystemClock(), name
        )

    async def put(self, item: T) -> R:
        """Send an item, with others that wait to be sent; return its answer."""
        if self._in_flight:
            return await self._enter(item)
        self._refuse_if_closed()
        refusal = self._contested.refusal(item)
        if refusal is None:
            self._in_flight = True
            try:
                return await self._sent_alone(item)
            except ItemContested as contested:
                refusal = contested
            finally:
                self._go_on()
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._contested.enter(item, answer, refusal)
        return await answer

    async def close(self) -> None:
        """Send what is in line, then refuse everything. Idempotent."""
        self._is_closed = True
        if self._in_flight:
            await self._idle.wait()
        await self._contested.close()

    # --- the line ------------------------------------------------------------------------------

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise EngineClosed(self._name)

    def _enter(self, item: T) -> asyncio.Future[R]:
        self._refuse_if_closed()
        # Weighed here, so that an item which cannot be weighed is its caller's error alone.
        weight = 0 if self._weigh is None else self._weigh(item)
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._line.append(_Queued(item, weight, answer))
        return answer

    def _take(self) -> list[_Queued[T, R]]:
        """Take the next batch out of the line, without those whose callers have gone."""
        batch: list[_Queued[T, R]] = []
        weight = 0
        while self._line and len(batch) < self._max_items:
            entry = self._line[0]
            if not entry.answer.done():
                weight += entry.weight
                if batch and weight > self._max_bytes:
                    break
                batch.append(entry)
            self._line.popleft()
        return batch

    # --- sending -------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """After a send: start on the line, or rest if there is none."""
        if self._line:
            self._flusher = asyncio.create_task(self._flush(), name="penstock batcher")
            self._flusher.add_done_callback(self._flushed)
            return
        self._in_flight = False
        if self._is_closed:
            self._idle.set()

    async def _flush(self) -> None:
        """Send batches until the line is empty."""
        while batch := self._take():
            try:
                for entry, answer in zip(batch, await halved(self._deliver, batch), strict=True):
                    if answer is not None and not entry.answer.done():
                        entry.answer.set_exception(answer)
            except BaseException as error:
                _fail(batch, unknown(self._name, error))
                raise
            # Callers that were answered may have more: let them into the next batch.
            await asyncio.sleep(0)

    def _flushed(self, flusher: asyncio.Task[None]) -> None:
        """As ``ContestedItems._tried``."""
        self._flusher = None
        if flusher.cancelled() or flusher.exception() is not None:
            _fail(self._line, unknown(self._name, asyncio.CancelledError()))
            self._line.clear()
        self._go_on()

    async def _deliver(self, batch: Sequence[_Queued[T, R]]) -> list[None]:
        """Send a batch, or a piece of one, and answer its callers at once.

        Raises only what ``halved`` deals with, and what ends the flusher.
        """
        left = self._free(batch)
        while left:
            try:
                answers = await self._sent([entry.item for entry in left])
            except ItemContested as refusal:
                if refusal.index is None and len(left) > 1:
                    raise
                taken = left.pop(refusal.index or 0)
                self._contested.enter(taken.item, taken.answer, refusal)
                left = self._free(left)
                continue
            except ItemRefused:
                raise
            except Exception as error:
                _fail(left, error)
            else:
                for entry, answer in zip(left, answers, strict=True):
                    if not entry.answer.done():
                        entry.answer.set_result(answer)
            break
        return [None] * len(batch)

    def _free(self, batch: Sequence[_Queued[T, R]]) -> list[_Queued[T, R]]:
        """The entries without those that need what is contested, which wait for it."""
        if self._contested.is_empty:
            return list(batch)
        free = []
        for entry in batch:
            if entry.answer.done() or self._contested.has(entry.answer):
                continue
            refusal = self._contested.refusal(entry.item)
            if refusal is None:
                free.append(entry)
            else:
                self._contested.enter(entry.item, entry.answer, refusal)
        return free

    async def _sent_alone(self, item: T) -> R:
        (answer,) = await self._sent([item])
        return answer

    async def _sent(self, items: Sequence[T]) -> Sequence[R]:
        """Send; a cancellation that was not asked of this task is a fault of the store."""
        try:
            answers = await self._send(items)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise unknown(self._name, error) from error
        if len(answers) != len(items):
            raise ValueError(f"{len(items)} items were sent, {len(answers)} answers came back")
        return answers


def _fail(entries: Iterable[_Queued[T, R]], error: Exception) -> None:
    for entry in entries:
        if not entry.answer.done():
            entry.answer.set_exception(error)


@dataclass(eq=False, slots=True)
class _Waiting(Generic[T, R]):
    """An item, where its answer goes, and why it has none yet."""

    item: T
    answer: asyncio.Future[R]
    refusal: ItemContested
    marks: frozenset[Hashable]


class ContestedItems(Generic[T, R]):
    """The items that wait for other transactions to end. Belongs to one event loop."""

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
        """No item waits here."""
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
        """Let an item wait here for its answer; cancelling that takes it away."""
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
        """Items that have their answers, or whose callers have gone, wait no longer."""
        self._waiting = [each for each in self._waiting if not each.answer.done()]

    def _tried(self, trying: asyncio.Task[None]) -> None:
        """If the task was cut short, perhaps before its first step, the loop is going down with
        everything on it, and no caller may be left waiting.
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
