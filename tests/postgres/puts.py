"""How a test stores jobs on a connection of its own, as a caller in a transaction does."""

from __future__ import annotations

from typing import Final

from penstock.core.job import Draft
from penstock.engines.postgres.draft_columns import to_columns

PUT: Final = "SELECT * FROM penstock.put_json(%s)"
"""Returns a row for each job that was refused: its number, the owner, and why."""


def columns(*drafts: Draft) -> tuple[str]:
    """The value of ``PUT``."""
    return (to_columns(drafts).json(),)
