"""What every contender can do: a task queue with a task that does nothing, and one that answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Literal

Kind = Literal["async", "sync"]


class Contender(ABC):
    """One task queue on its store in ``place``, set up as it comes.

    ``kind`` is what the idle task is: a coroutine function, or a function that runs on a thread.
    """

    engine: ClassVar[str]
    name: ClassVar[str]
    statement: ClassVar[str]
    """The import that its users write."""

    def __init__(self, place: Path, kind: Kind) -> None:
        self.place = place
        self.kind = kind

    @abstractmethod
    def enqueue(self, number: int) -> None:
        """Store one job that does nothing."""

    @abstractmethod
    async def aenqueue(self, number: int) -> None:
        """The same from async code, in the way that the contender has for it."""

    @abstractmethod
    def enqueue_many(self, count: int) -> None:
        """Store many in the quickest way there is."""

    @abstractmethod
    def drain(self, count: int) -> float:
        """Be a worker for ``count`` waiting jobs; return the seconds until all have ended."""

    @abstractmethod
    def enqueue_stamp(self, delay: float = 0.0) -> None:
        """Store a job that answers when it starts; see ``Elsewhere``."""

    @abstractmethod
    def serve(self) -> None:
        """Be a worker of this process until SIGTERM."""

    @abstractmethod
    def left(self) -> int:
        """How many jobs have not ended, as far as the contender can tell."""

    @abstractmethod
    def close(self) -> None:
        """Let everything go."""
