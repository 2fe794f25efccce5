"""A test's own connections, on which transactional tasks write in a sandbox.

    with Sandbox(app, connection=connection) as t:
        pay.enqueue(7)
        t.drain()
        assert connection.execute("SELECT ...").fetchone() == ...

Each attempt writes inside a savepoint of the test's transaction, which stays the test's: roll it
back at the end, and nothing was ever there. What an attempt wrote goes with it if it does not
succeed. On a connection that commits each statement by itself, each attempt commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutinefunction
from typing import Any, Final

from penstock.core.job import Job
from penstock.core.transactions import Effect, Effects, Need, Supply
from penstock.errors import BadOption, NoTransaction, TransactionEnded

_TAKEN: Final = (
    "give a psycopg.Connection, an AsyncConnection, a Session or an AsyncSession, or a list of them"
)


class Lent(Effects):
    """The connections and sessions that a sandbox was given."""

    def __init__(self, given: object) -> None:
        """``given`` is one of them, a list of them, or None."""
        several = given if isinstance(given, (list, tuple)) else (given,)
        self._given: Sequence[Any] = [each for each in several if each is not None]
        for each in self._given:
            if not (hasattr(each, "begin_nested") or hasattr(each, "transaction")):
                raise BadOption("connection", each, _TAKEN)

    def supply(self, kind: type) -> Supply | None:
        return None  # declarations ask the app's own store

    def join(self) -> None:
        pass  # nothing of it is ours to keep

    async def leave(self) -> None:
        pass

    async def begin(self, job: Job, need: Need) -> Effect:
        """Begin a savepoint on what suits the task.

        On failure: ``NoTransaction``.
        """
        for each in self._given:
            is_session = hasattr(each, "begin_nested")
            is_async = iscoroutinefunction(each.execute)
            if is_async is not need.is_async or is_session is not (need.session is not None):
                continue
            effect = _InSession(job, each) if is_session else _OnConnection(each)
            await effect.begin()
            return effect
        kind = "AsyncConnection" if need.is_async else "Connection"
        kind = f"psycopg.{kind}" if need.session is None else need.session.__name__
        why = f"a sandbox has no database; lend it a {kind}: Sandbox(app, connection=...)"
        raise NoTransaction(job.task, why)


class _OnConnection(Effect):
    """On a connection of psycopg, whose block is a savepoint inside the test's transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._block = connection.transaction()

    @property
    def connection(self) -> Any:
        return self._connection

    @property
    def session(self) -> Any:
        return None

    async def begin(self) -> None:
        if not self._connection.autocommit:
            # The block is a savepoint only where a transaction is open; else its end commits.
            await _awaited(self._connection.execute("SELECT 1"))
        await self._do("enter")

    async def settle(self, result: bytes, **_: object) -> bool:
        await self._do("exit", None, None, None)
        return True

    async def undo(self, *, at_once: bool = False) -> None:
        error = RuntimeError("the attempt has not succeeded")
        await self._do("exit", type(error), error, None)

    async def _do(self, what: str, *args: object) -> None:
        if hasattr(self._block, "__aenter__"):
            await getattr(self._block, f"__a{what}__")(*args)
        else:
            getattr(self._block, f"__{what}__")(*args)


class _InSession(Effect):
    """In a session of SQLAlchemy, below the test's transaction."""

    def __init__(self, job: Job, session: Any) -> None:
        self._job = job
        self._session = session

    @property
    def session(self) -> Any:
        return self._session

    @property
    def connection(self) -> Any:
        why = "a sandbox has only the session that it was lent; write on that"
        raise NoTransaction(self._job.task, why)

    async def begin(self) -> None:
        self._nested = await _awaited(self._session.begin_nested())

    async def settle(self, result: bytes, **_: object) -> bool:
        if not self._nested.is_active:
            raise TransactionEnded(self._job.task)
        await _awaited(self._nested.commit())
        return True

    async def undo(self, *, at_once: bool = False) -> None:
        if self._nested.is_active:
            await _awaited(self._nested.rollback())


async def _awaited(found: Any) -> Any:
    """What an async driver gives when it is awaited; a sync one gives it at once."""
    return await found if hasattr(found, "__await__") else found
