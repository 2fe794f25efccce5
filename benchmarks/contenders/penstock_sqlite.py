"""Penstock on an SQLite file."""

from __future__ import annotations

from benchmarks.contenders.penstock_contender import PenstockContender


class PenstockSqlite(PenstockContender):
    """The contender."""

    engine = "sqlite"
