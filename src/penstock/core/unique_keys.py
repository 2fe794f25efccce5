"""How a unique key is stored: behind the name of the task that it belongs to, or behind none.

PostgreSQL does the same for plain SQL: ``penstock.stored_key`` and ``penstock.given_key``.
"""

from __future__ import annotations

from typing import Literal

Scope = Literal["task", "app"]
"""Whose key it is: the task's own, or one for all tasks of the store."""


def stored_key(task: str, key: str, scope: Scope) -> str:
    """The text under which a store knows a key; no two tasks have the same, whatever their names
    and keys are. A key for all tasks begins with the colon.
    """
    return f"{len(task)}:{task}:{key}" if scope == "task" else f":{key}"


def given_key(task: str, stored: str | None) -> tuple[str | None, Scope]:
    """The key as the caller of this task's job gave it, and its scope."""
    if stored is None:
        return None, "task"
    if stored.startswith(":"):
        return stored[1:], "app"
    return stored[len(stored_key(task, "", "task")) :], "task"
