"""How a test stores jobs on a connection of its own, as a caller in a transaction does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.core.job import Draft
from penstock.engines.postgres.draft_columns import to_columns
from penstock.engines.postgres.rows import Row

PUT: Final = "SELECT * FROM penstock.put_json(%s)"
"""Returns a row for each job that was refused: its number, the owner, and why; row 0 has the
tickets of all others."""


def columns(*drafts: Draft) -> tuple[str]:
    """The value of ``PUT``."""
    return (to_columns(drafts).json(),)


def refused(rows: Iterable[Row]) -> list[Row]:
    """Of what ``PUT`` returns, the jobs that were refused."""
    return [row for row in rows if row[0] > 0]
