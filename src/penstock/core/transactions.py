"""Effects that commit with the end of their job: what a store offers to transactional tasks.

An attempt of such a task has a transaction in the database that holds the jobs. Its handler writes
there; the last statement settles the job inside the fence; then all of it commits, or nothing.

If the process, the server or the way between them dies

| here                                | then                                                     |
|-------------------------------------|----------------------------------------------------------|
| before the handler is called        | it does not count: the job waits a moment                |
| before the COMMIT is sent           | the server rolls back; the attempt crashed, or failed    |
| after it, before its answer came    | it is there or not: the job's state says which           |
| after its answer                    | the job has ended, and nothing runs again                |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.job import Draft, Job


@dataclass(frozen=True, slots=True)
class Need:
    """What the attempts of one task need."""

    is_async: bool
    timeout: float
    """Seconds that one may take: no transaction stays open for much longer."""
    session: type | None = None
    """The class of the session that it wants around its connection."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What goes into a parameter of some class."""

    is_async: bool
    session: type | None = None
    """The class, if it is one of sessions; None: the connection itself."""


class Effect(ABC):
    """The transaction of one attempt. For a sync task its coroutines never wait: they block."""

    @property
    @abstractmethod
    def connection(self) -> Any:
        """What the handler writes on."""

    @property
    @abstractmethod
    def session(self) -> Any:
        """What it wanted around that; None: nothing."""

    @abstractmethod
    async def settle(
        self,
        result: bytes,
        *,
        progress: float | None = None,
        note: str | None = None,
        then: Sequence[Draft] = (),
    ) -> bool:
        """Settle the job as succeeded and commit; False: it is another's, and nothing was done.

        Atomic with all that the handler wrote, with the progress that it has told, unless that is
        None, and with the jobs that are to follow.
        On failure: ``TransactionEnded``: the handler has ended the transaction by itself;
        ``CommitLost``; or what the driver raises. Whatever it is, nothing of it is in the store,
        except that ``CommitLost`` may not know; then settling the attempt as anything else tells.
        """

    @abstractmethod
    async def undo(self, *, at_once: bool = False) -> None:
        """Roll back. With ``at_once``, without waiting. Never raises an error of the driver."""


class Effects(ABC):
    """Where the transactions of one app's attempts come from. Safe for threads and forks."""

    @abstractmethod
    def supply(self, kind: type) -> Supply | None:
        """What a parameter of this class takes; None: nothing of ours."""

    @abstractmethod
    async def begin(self, job: Job, need: Need) -> Effect:
        """Begin the transaction of an attempt; wait until there is a connection for it.

        On failure: ``EngineUnavailable`` and its kin; nothing has begun.
        """

    @abstractmethod
    def join(self) -> None:
        """A worker begins on this loop: connections may be kept for its next attempts."""

    @abstractmethod
    async def leave(self) -> None:
        """It has ended: let go of what was kept for it."""
