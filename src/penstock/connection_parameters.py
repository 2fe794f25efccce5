"""Which parameters of a transactional task take its connection, or a session around it.

    @app.task(transactional=True)
    def pay(order: int, db: psycopg.Connection = INJECTED) -> None: ...

They are dependencies that need no mark: their annotation says what they take. Other dependencies of
the task may have such parameters, too.
"""

from __future__ import annotations

from inspect import Parameter
from typing import Any, Final, get_origin

from penstock.context import Context
from penstock.core.annotations import Unresolved, core_class
from penstock.core.hooks import Function
from penstock.core.transactions import Effects, Need
from penstock.errors import BadTask

NAMES: Final = ("Connection", "AsyncConnection", "Session", "AsyncSession")


def connection(ctx: Context) -> Any:
    """What a parameter gets that takes the connection."""
    return ctx.connection


def session(ctx: Context) -> Any:
    """What a parameter gets that takes a session."""
    return None if ctx.effect is None else ctx.effect.session


class Supplier:
    """Knows the parameters of one task."""

    def __init__(self, effects: Effects, task: str, *, is_async: bool) -> None:
        self._effects = effects
        self._task = task
        self._is_async = is_async
        self._session: type | None = None

    def need(self, timeout: float) -> Need:
        """What the task needs, once all its parameters were asked for."""
        return Need(self._is_async, timeout, self._session)

    def __call__(self, parameter: Parameter, hint: Any) -> Function | None:
        """Who makes what this parameter takes; None: it is not for us.

        On failure: ``BadTask`` if the task could not use it.
        """
        self._refuse_unread(parameter, hint)
        kind = core_class(hint) or core_class(get_origin(hint))
        supply = None if kind is None else self._effects.supply(kind)
        if supply is None:
            return None
        if supply.is_async is not self._is_async:
            mine, instead = (
                ("async", "AsyncConnection or AsyncSession")
                if self._is_async
                else ("sync", "Connection or Session")
            )
            why = f"its parameter {parameter.name!r} is of no use to it, for it is {mine}; "
            raise BadTask(self._task, f"{why}annotate it with {instead}")
        if supply.session is None:
            return connection
        if self._session not in (None, supply.session):
            raise BadTask(self._task, "it wants two kinds of sessions; annotate both alike")
        self._session = supply.session
        return session

    def _refuse_unread(self, parameter: Parameter, hint: Any) -> None:
        if not isinstance(hint, Unresolved):
            return
        note = hint.annotation
        if note.partition("[")[0].rpartition(".")[2] in NAMES:
            why = (
                f"its parameter {parameter.name!r} is annotated {note}, which cannot be read; "
                "import that name outside TYPE_CHECKING"
            )
            raise BadTask(self._task, why)
