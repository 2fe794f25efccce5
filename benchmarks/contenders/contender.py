"""What every contender can do: a task queue with a task that does nothing, and one that answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar, Literal, TypeVar

from benchmarks.locations import Location

Kind = Literal["async", "sync"]
Answer = TypeVar("Answer")


class Contender(ABC):
    """One task queue on its store in ``location``, set up as it comes.

    ``kind`` is what the idle task is: a coroutine function, or a function that runs on a thread.
    """

    engine: ClassVar[str]
    name: ClassVar[str]
    statement: ClassVar[str]
    """The import that its users write."""
    pace: ClassVar[float] = 1.0
    """The share of the jobs of a long measurement that it gets: who is slow gets fewer."""

    def __init__(self, location: Location, kind: Kind) -> None:
        self.location = location
        self.kind = kind

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run async code that calls it, on the loop that suits it best."""
        return asyncio.run(work)

    @abstractmethod
    def enqueue(self, number: int) -> None:
        """Store one job that does nothing."""

    def session(self) -> AbstractAsyncContextManager[object]:
        """What async code enters once before it calls ``aenqueue``, as its users would."""
        return nullcontext()

    @abstractmethod
    async def aenqueue(self, number: int) -> None:
        """The same from async code, in the way that the contender has for it."""

    @abstractmethod
    def enqueue_many(self, count: int) -> None:
        """Store many in the quickest way there is."""

    @abstractmethod
    def drain(self, count: int) -> float:
        """Be a worker for the waiting jobs; return the seconds until none is left to be run.

        There are ``count`` of them, and other processes may take their share.
        """

    @abstractmethod
    def enqueue_stamp(self, delay: float = 0.0) -> None:
        """Store a job that answers when it starts; see ``WorkerProcess``."""

    @abstractmethod
    def enqueue_stamps(self, count: int) -> None:
        """Store many of these in the quickest way there is."""

    @abstractmethod
    def serve(self) -> None:
        """Be a worker of this process until SIGTERM."""

    @abstractmethod
    def left(self) -> int:
        """How many jobs have not ended, as far as the contender can tell."""

    @abstractmethod
    def close(self) -> None:
        """Let everything go."""
