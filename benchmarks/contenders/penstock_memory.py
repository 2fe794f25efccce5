"""Penstock in the memory of its process."""

from __future__ import annotations

from benchmarks.contenders.penstock_contender import PenstockContender


class PenstockMemory(PenstockContender):
    """The contender."""

    engine = "memory"
