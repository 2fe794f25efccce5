"""A filter as SQL: the conditions it sets, in the words of ``views.sql``, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.job import FINAL
from penstock.engines.postgres.rows import text, texts
from penstock.engines.queries import statements
from penstock.engines.records import Filter


class Conditions(msgspec.Struct, frozen=True):
    """Which rows of each table are meant."""

    live: str
    history: str
    values: Mapping[str, Any]

    def put_in(self, sql: str) -> str:
        """Return a statement with the conditions where it has ``{live}`` and ``{history}``."""
        return sql.replace("{live}", self.live).replace("{history}", self.history)


def conditions(which: Filter) -> Conditions:
    """Say in SQL which jobs are meant; a table that can have none of them is not read."""
    sql = statements("postgres/views.sql")
    values = _values(which)
    fits = " AND ".join(sql[f"if_{each}"] for each in values) or sql["if_any"]
    states = set(which.states)
    return Conditions(
        live=sql["if_none"] if states and states <= FINAL else fits,
        history=sql["if_none"] if states and states.isdisjoint(FINAL) else fits,
        values=values,
    )


def _values(which: Filter) -> dict[str, Any]:
    """What is asked for, by the condition that asks."""
    asked = {"ids": which.ids, "queues": which.queues, "tasks": which.tasks, "keys": which.keys}
    values: dict[str, Any] = {each: texts(given) for each, given in asked.items() if given}
    if which.states:
        values["states"] = [state.value for state in which.states]
    if which.holds:
        values["holds"] = [hold.value for hold in which.holds]
    if which.tag is not None:
        values["tag"] = text(which.tag)
    if which.correlation_id is not None:
        values["correlation_id"] = text(which.correlation_id)
    if which.since is not None:
        values["since"] = which.since
    if which.until is not None:
        values["until"] = which.until
    return values
